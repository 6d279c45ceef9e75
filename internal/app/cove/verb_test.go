package cove

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/api"
	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// TestErrorsOfSandboxesNameCommands: errors of the server in a sandbox name its routes. Users of cove read commands that they can
// type, and flags.
func TestErrorsOfSandboxesNameCommands(t *testing.T) {
	t.Parallel()
	table, err := verbTable("0")
	if err != nil {
		t.Fatal(err)
	}
	v := verb.New(verb.Config{Table: table, Inside: api.AioCommands})
	for message, want := range map[string]string{
		"no session; list sessions with GET /v1/bash/sessions": "no session; list sessions with cove exec NAME aio bash sessions",
		"no sandbox; list sandboxes with GET /api/v1/sandbox":  "no sandbox; list sandboxes with cove list",
		"use POST /v1/nowhere":                                 "use POST /v1/nowhere",
		"deleted; set idle_policy to stop":                     "deleted; set --idle-policy to stop",
	} {
		got := v.Explain(&client.Error{Status: http.StatusNotFound, Message: message})
		if e, ok := errors.AsType[*client.Error](got); !ok || e.Status != http.StatusNotFound || !strings.HasSuffix(e.Message, want) {
			t.Errorf("%s: got %v, want %s", message, got, want)
		}
	}
}

// TestVerbs runs the verbs for multiple tenants from the command line.
func TestVerbs(t *testing.T) {
	r := newRig(t, nil)
	admin, _ := r.key("root", "admin")
	user, _ := r.key("acme", "user")
	run := func(key, stdin string, args ...string) (string, int) {
		t.Helper()
		t.Setenv("COVE_API_KEY", key)
		t.Setenv("HOME", t.TempDir())
		var out bytes.Buffer
		cmd, err := Command("0", append(args, "--hub-url", r.server.URL), host.Streams{In: strings.NewReader(stdin), Out: &out, Err: &out})
		if err == nil {
			err = cmd.ExecuteContext(t.Context())
		}
		if err != nil {
			out.WriteString(err.Error())
		}
		return out.String(), cli.Code(err)
	}
	dir := filepath.Join(r.cfg.State, "audit")
	for _, c := range []struct {
		key, stdin, line string
		code             int
		want             string
	}{
		{user, "", "create a", 0, "a\n"},
		{user, "", "list", 0, "stop"},
		{admin, "", "key add acme --role viewer", 0, `"secret": "cove_`},
		{user, "", "key list", cli.ExitAuth, "role admin"},
		{user, "hunter2\n", "secret set token", 0, ""},
		{user, "\n", "secret set token", cli.ExitUsage, "standard input"},
		{user, "", "secret list", 0, "token"},
		{user, "", "secret rm token", 0, "token\n"},
		{user, "", "snapshot create a s", 0, "s\n"},
		{user, "", "rollback a s", 0, "a\n"},
		{user, "", "fork a b", 0, "b\n"},
		{user, "", "diff a", 0, `"changes"`},
		{user, "", "snapshot rm s", 0, "s\n"},
		{user, "", "volume create v", 0, "v\n"},
		{user, "", "volume rm v", 0, "v\n"},
		{user, "", "share create a --port 3000 --read-only", 0, "/share?token=covs_"},
		{user, "", "share list", 0, "3000"},
		{user, "", "share ls -o json", 0, `"port": 3000`},
		{user, "", "usage -o json", 0, `"sandboxes": 2`},
		{user, "", "audit tail", cli.ExitAuth, "role admin"},
		{admin, "", "audit tail --sandbox a", 0, `"op":"sandbox_fork"`},
		{admin, "", "audit verify", 0, `"lines"`},
		{"", "", "audit verify --dir " + dir, 0, `"lines"`},
		{"", "", "audit verify --dir " + r.cfg.State + "/nowhere", cli.ExitFailed, "nowhere"},
	} {
		if out, code := run(c.key, c.stdin, strings.Fields(c.line)...); code != c.code ||
			!strings.Contains(out, c.want) || strings.Contains(out, "hunter") {
			t.Errorf(`cove %s: got %d %s, want exit code %d, %q and no "hunter" in it`, c.line, code, out, c.code, c.want)
		}
	}
	// The error names a modified line.
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %v %v, want at least 1 file", files, err)
	}
	b, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	for name, data := range map[string][]byte{filepath.Base(files[0]): bytes.Replace(b, []byte(`"op":"sandbox_fork"`),
		[]byte(`"op":"sandbox_look"`), 1), "head": nil} {
		if name == "head" {
			if data, err = os.ReadFile(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(copied, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, code := run("", "", "audit", "verify", "--dir", copied); code != cli.ExitFailed || !strings.Contains(out, "changed") {
		t.Errorf(`got %d %s, want exit code %d and "changed" in it`, code, out, cli.ExitFailed)
	}
}
