package cdp

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestParseCookies(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cookies.json")
	if err := os.WriteFile(path, []byte(`{"cookies":[{"name":"a","value":"1","url":"https://x.example"}],"origins":[]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"": "", path: "", "[]": "", `[{"name":"a","value":"1","domain":"x.example"}]`: "",
		"/no/such/file": "path of a file", "[hunter2": "JSON list", `{"cookies":"hunter2"}`: "JSON list",
		`[{"name":"a"}]`: "entry 1: the cookie \"a\" has neither url nor domain", `["hunter2"]`: "JSON list",
	} {
		_, err := ParseCookies(text)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "hunter2")) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
