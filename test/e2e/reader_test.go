package e2e

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestReadOnlyReadsNoSecrets: a viewer and a read-only link can read pages and stored files of a
// sandbox, but no data of its processes through any path.
func TestReadOnlyReadsNoSecrets(t *testing.T) {
	t.Parallel()
	const value = "s3cr3t-of-the-reader"
	admin := tenants(t, nil)
	ann, looker := admin.tenant(t, "ann", "user"), admin.tenant(t, "ann", "viewer")
	if _, errs, code := ann.cove(t, value, "secret", "set", "key"); code != 0 {
		t.Fatalf("got %q, want code 0", errs)
	}
	ann.must(t, "create", "a", "--secrets", "key")
	ann.must(t, "exec", "a", "echo stored > note; ln -s /proc/self/environ link; (sleep 300 >/dev/null 2>&1 &)")
	var link struct{ ID, Sandbox, Token string }
	if err := json.Unmarshal([]byte(ann.must(t, "share", "create", "a", "--minutes", "5", "--read-only")), &link); err != nil {
		t.Fatal(err)
	}
	get := func(key, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, admin.URL+"/sandbox/"+link.Sandbox+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return read(t, res)
	}
	for name, key := range map[string]string{"link": link.Token, "viewer": looker.key} {
		for _, path := range []string{"/proc/self/environ", "/proc/1/environ", "/proc/1/cmdline",
			"/proc/../proc/self/environ", "/dev/fd/../environ", "/proc/self/root/proc/self/environ", "/home/gem/link", "/etc/mtab"} {
			for _, at := range []string{"", "/proxy/8080"} {
				if status, body := get(key, at+"/v1/file/download?path="+
					url.QueryEscape(path)); strings.Contains(body, value) || status == 200 && !strings.Contains(body, `"success":false`) {
					t.Errorf("%s read %s at %q: %d %.200q, want a refusal", name, path, at, status, body)
				}
			}
		}
		for _, path := range []string{"/v1/file/archive?path=/proc", "/v1/browser/screenshot", "/v1/browser/info",
			"/json/version", "/cdp", "/v1/sandbox/packages/python", "/mcp", "/v1/jupyter/info",
			"/v1/display/clipboard", "/code-server/", "/code-server/static/x", "/jupyter/", "/jupyter/lab",
			"/jupyter/api/kernels", "/v1/sandbox/components"} {
			if status, body := get(key, path); status != 403 && !strings.Contains(body, "read-only") {
				t.Errorf("%s got %s: %d %.200q, want a refusal", name, path, status, body)
			}
		}
		for path, want := range map[string]string{"/v1/file/download?path=/home/gem/note": "stored",
			"/v1/sandbox": "home_dir", "/v1/openapi.json": "openapi", "/v1/shell/sessions": "success"} {
			if status, body := get(key, path); status != 200 || !strings.Contains(body, want) {
				t.Errorf("%s got %s: %d %.200q, want 200 with %q", name, path, status, body, want)
			}
		}
	}
	// The owner can read everything.
	if status, body := get(ann.key, "/v1/file/download?path=/proc/self/cmdline"); status != 200 || !strings.Contains(body, "aio") {
		t.Errorf("the owner got %d %.200q, want the command line", status, body)
	}
}
