package browser

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestSwitches(t *testing.T) {
	t.Parallel()
	runner := proc.New(proc.Config{})
	defer runner.Close()
	s := New(Config{
		Runner: runner, State: "/state", Home: "/home", Lang: "de-DE,de,en", UserAgent: "me/1", Homepage: "http://home/",
		ExtraArgs: []string{"--mute-audio", "--disable-features=Mine", "--user-data-dir=/elsewhere",
			"--remote-debugging-port=1", "--remote-debugging-address=0.0.0.0", "not-a-switch", "--enable-features=Yours"},
		Proxy: Proxy{Server: "http://user:secret@proxy:3128", Exclude: []string{"*.internal"}},
	})
	args := s.cfg.complete(settings{}).switches(false, true)
	for _, want := range []string{"--remote-debugging-pipe", "--mute-audio", "--enable-features=Yours",
		"--user-agent=me/1", "--lang=de-DE", "--accept-lang=de-DE,de,en", "--user-data-dir=/state/browser/profile", "http://home/"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is missing in %q", want, args)
		}
	}
	features := 0
	for _, a := range args {
		switch {
		case strings.HasPrefix(a, "--disable-features="):
			features++
			if !strings.Contains(a, "Translate") || !strings.Contains(a, "Mine") {
				t.Errorf("features: %s, want a containing \"Translate\", a containing \"Mine\"", a)
			}
		case strings.Contains(a, "elsewhere") || strings.HasPrefix(a, "--remote-debugging-port") ||
			strings.HasPrefix(a, "--remote-debugging-address") || a == "not-a-switch" ||
			strings.Contains(a, "secret") || a == "--restore-last-session":
			t.Errorf("unexpected switch %s", a)
		}
	}
	if features != 1 {
		t.Errorf("%d lists of features, want features 1", features)
	}
	args = s.cfg.complete(settings{Locale: "fr-FR"}).switches(true, true)
	if !slices.Contains(args, "--restore-last-session") || slices.Contains(args, "http://home/") ||
		!slices.Contains(args, "--lang=fr-FR") || !slices.Contains(args, "--accept-lang=fr-FR") {
		t.Errorf("with restored tabs: %q, want --restore-last-session and fr-FR, and no homepage", args)
	}
	if env := s.cfg.complete(settings{Locale: "fr-FR"}).environ(); !slices.Contains(env, "LANGUAGE=fr_FR:fr") {
		t.Errorf("environment %q, want env containing \"LANGUAGE=fr_FR:fr\"", env)
	}
}

func TestPreferencesKeepOtherValues(t *testing.T) {
	t.Parallel()
	s := New(Config{State: t.TempDir(), Home: "/home/gem", Lang: "de-DE", DoH: []string{"https://a/dns{?dns}", "https://b/dns"}})
	path := filepath.Join(s.cfg.dir("profile"), "Default", "Preferences")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(`{"download":{"own":1},"big":9007199254740993}`), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(path string) (tree map[string]any) {
		b, err := os.ReadFile(path)
		if err == nil {
			err = json.Unmarshal(b, &tree)
		}
		if err != nil {
			t.Fatal(err)
		}
		return tree
	}
	if err := s.cfg.complete(settings{}).writePreferences(); err != nil {
		t.Fatal(err)
	}
	d := read(path)["download"].(map[string]any)
	if d["own"] != 1.0 || d["default_directory"] != "/home/gem/Downloads" || d["prompt_for_download"] != false {
		t.Errorf("download: %v, want own 1, /home/gem/Downloads, no prompt", d)
	}
	if b, _ := os.ReadFile(path); !strings.Contains(string(b), "9007199254740993") {
		t.Errorf("a large number was changed: %s, want containing \"9007199254740993\"", b)
	}
	local := filepath.Join(s.cfg.dir("profile"), "Local State")
	dns := read(local)["dns_over_https"].(map[string]any)
	if dns["mode"] != "secure" || dns["templates"] != "https://a/dns{?dns} https://b/dns" {
		t.Errorf("dns: %v, want mode secure with both templates", dns)
	}
	if err := os.WriteFile(local, []byte(`{"cut`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.cfg.complete(settings{}).writePreferences(); err != nil {
		t.Fatal(err)
	}
	read(local)
}

func TestProxyScript(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"proxy:3128": "PROXY proxy:3128", "http://proxy": "PROXY proxy:80", "https://proxy": "HTTPS proxy:443",
		"socks5://u:p@proxy:1080": "SOCKS5 proxy:1080", "http://[::1]:8080": "PROXY [::1]:8080", "": "", "http://": "",
	} {
		if got := (Proxy{Server: server}).directive(); got != want {
			t.Errorf("%q: %q, want %q", server, got, want)
		}
	}
	script := Proxy{Server: "p:1", Exclude: []string{`"];alert(1)//</script>`}}.script()
	if !strings.Contains(script, `["\"];alert`) {
		t.Errorf("a host breaks out of its quotes: %s, want script containing %q", script, `["\"];alert`)
	}
}
