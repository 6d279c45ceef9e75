package cove

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// A bug report contains the data that is needed to find a fault, and no secret from
// settings, variables, the log, the state folder, or the output of the hub.
func TestBugReport(t *testing.T) {
	r := newRig(t, nil)
	admin, _ := r.key("root", "admin")
	user, _ := r.key("acme", "user")
	share, _ := r.share(user, r.box("acme", "build").Spec.Name, "{}")
	r.must(user, "PUT", "/api/v1/secret/db", `{"value":"vaulted-value"}`)
	first, err := os.ReadFile(filepath.Join(r.cfg.State, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	jwt := "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"
	secrets := []string{admin, user, share, strings.TrimSpace(string(first)), jwt, "vaulted-value", "otlp-pass",
		"plain-token", "hunter2hunter", "proxy-password", "registry-pw", "cookie-value", "ticket-value", "YWxhZGRpbg==", "MIIEvQIBADANBg"}
	log := "level=INFO msg=request path=/api/v1/sandbox status=200 subject=acme\n" +
		"key " + user + " and " + admin + "\nlink https://h/share?token=" + share + "&x=1\nAuthorization: Bearer " +
		jwt + "\nauthorization: Basic YWxhZGRpbg==\n" +
		`{"api_key":"plain-token","password": "hunter2hunter"}` +
		"\nupstream=http://ann:proxy-password@proxy:3128\nREGISTRY_PASSWORD=registry-pw\nCookie: cookie-value\nGET " +
		"/?ticket=ticket-value HTTP/1.1\n" +
		"-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----\nlevel=ERROR msg=\"the last line\"\n"
	logFile := filepath.Join(t.TempDir(), "cove.log")
	if err := os.WriteFile(logFile, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("COVE_API_KEY", admin)
	t.Setenv("COVE_OTLP_HEADERS", "x-auth=otlp-pass")
	t.Setenv("SOME_TOKEN", "plain-token")
	t.Setenv("HOME", t.TempDir())
	out := filepath.Join(t.TempDir(), "report.tar.gz")
	var said bytes.Buffer
	cmd, err := Command("1.2.3", []string{"bug-report", out, "--state", r.cfg.State, "--log-file", logFile, "--aio",
		"/nowhere", "--hub-url", r.server.URL}, host.Streams{In: strings.NewReader(""), Out: &said, Err: &said})
	if err == nil {
		err = cmd.ExecuteContext(t.Context())
	}
	if err != nil || said.String() != out+"\n" {
		t.Fatalf("got %q and error %v, want the name of the file", &said, err)
	}
	files := untar(t, out)
	all := ""
	for name, text := range files {
		all += text
		for _, s := range secrets {
			if strings.Contains(text, s) {
				t.Errorf("%s: got the secret %q in it, want none:\n%s", name, s, text)
			}
		}
	}
	for name, want := range map[string]string{
		"version.txt": "1.2.3", "machine.txt": "MemTotal", "doctor.txt": "missing", "settings.txt": "memory_limit",
		"state.txt": "keys.json", "log.txt": "the last line", "hub.json": `"provider"`,
		"ready.json": `"hub"`, "metrics.txt": "cove_sandboxes", "sandboxes.json": "[",
	} {
		if !strings.Contains(files["cove-bug-report/"+name], want) {
			t.Errorf("%s: got %s, want %q in it", name, files["cove-bug-report/"+name], want)
		}
	}
	if !strings.Contains(all, "status=200 subject=acme") || !strings.Contains(all, "http://[hidden]@proxy:3128") {
		t.Errorf("got %s, want everything but the secrets", files["cove-bug-report/log.txt"])
	}
	if info, err := os.Stat(out); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v and error %v, want mode 0600", info.Mode(), err)
	}
}

// Without a hub, the rest is reported.
func TestBugReportWithoutAHub(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	bin := t.TempDir()
	testenv.WriteProgram(t, filepath.Join(bin, "journalctl"),
		[]byte("#!/bin/sh\necho a line of the journal of $2; echo key=cove_aaaaaaaaaaaa_bbbbbbbbbbbbbbbbbbbbbbbb\n"))
	t.Setenv("PATH", bin)
	out := filepath.Join(t.TempDir(), "report.tar.gz")
	var said bytes.Buffer
	cmd, err := Command("1.2.3", []string{"bug-report", out, "--state", filepath.Join(t.TempDir(), "none"), "--aio",
		"/nowhere", "--hub-url", "http://127.0.0.1:1"}, host.Streams{In: strings.NewReader(""), Out: &said, Err: &said})
	if err == nil {
		err = cmd.ExecuteContext(t.Context())
	}
	if err != nil {
		t.Fatalf("got %q and error %v, want a report", &said, err)
	}
	files := untar(t, out)
	if got := files["cove-bug-report/hub.json"]; !strings.HasPrefix(got, "not available: ") {
		t.Errorf("got %q, want the reason why it is empty", got)
	}
	if got := files["cove-bug-report/log.txt"]; !strings.Contains(got, "a line of the journal of cove") || strings.Contains(got, "bbbb") {
		t.Errorf("got %q, want the journal without the key", got)
	}
}

func untar(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(b)
	}
}
