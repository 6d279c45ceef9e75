package page_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/state"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/wait"
)

// TestConfiguredBrowser checks the settings that apply from the first start: URL lists, cookies, the folder of downloads,
// and a copy of the output.
func TestConfiguredBrowser(t *testing.T) {
	t.Parallel()
	folder, output := filepath.Join(t.TempDir(), "fetched"), &bytes.Buffer{}
	r := newFixture(t, func(c *browser.Config) {
		c.Block, c.Allow = []string{"127.0.0.1/private"}, []string{"127.0.0.1/private/not"}
		c.Policies = "/proc/no/such/folder" // otherwise every browser of the machine would apply them
		c.Cookies, c.Folder, c.Output = `[{"name":"early","value":"bird","domain":"127.0.0.1","path":"/"}]`, folder, output
		c.ExtraArgs = append(c.ExtraArgs, "--enable-logging=stderr")
	})
	must(t, r.browser.CheckConfig())
	r.visit(t, "/echo")
	text, err := r.Text(ctx(t), driver.Here{})
	must(t, err)
	if !strings.Contains(text, "early=bird") {
		t.Errorf("got the headers %q, want the cookie early=bird", text)
	}
	for path, open := range map[string]bool{"/private/x": false, "/private/not/x": true} {
		if _, err := r.Navigate(ctx(t), navigation.NavigateIn{URL: r.site + path, WaitUntil: "load"}); (err == nil) != open {
			t.Errorf("%s: got %v, want allowed: %v", path, err, open)
		}
	}
	_, err = r.Navigate(ctx(t), navigation.NavigateIn{URL: r.site + "/report.csv", WaitUntil: "load"})
	wantError(t, err, folder)
	_, err = r.Wait(ctx(t), wait.WaitIn{Type: "download", Timeout: 60})
	must(t, err)
	if b, err := os.ReadFile(filepath.Join(folder, "report.csv")); err != nil || string(b) != "a,b\n1,2\n" {
		t.Errorf("got %q, %v, want the download in the configured folder", b, err)
	}
	// Settings of a restart replace the configuration, even an empty list. Cookies are not set again.
	_, err = r.ClearCookies(ctx(t), state.ClearCookiesIn{})
	must(t, err)
	out, err := r.browser.Restart(ctx(t), browser.RestartIn{Mode: "hard", Block: &[]string{}})
	must(t, err)
	if len(out.Block) != 0 || len(out.Allow) != 1 {
		t.Errorf("got %+v, want an empty blocklist and the configured allowlist", out)
	}
	r.visit(t, "/private/x")
	left, err := r.Cookies(ctx(t), state.CookiesIn{})
	must(t, err)
	if len(left) != 0 {
		t.Errorf("got %+v, want no cookies after a restart", left)
	}
	r.eval(t, `console.log("printed by the page")`)
	r.browser.Close()
	if !strings.Contains(output.String(), "printed by the page") {
		t.Errorf("got the output %q, want the output of Chromium", output)
	}
}
