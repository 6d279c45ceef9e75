package activity_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/activity"
	"github.com/cove-sandbox/cove/internal/guest/e2b/envd"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// doOp is a command that does something.
func doOp(do func() error) op.Op {
	return op.New(op.Spec{Name: "bash_exec", Route: "POST /do", Tag: "bash", Doc: "Do."},
		func(context.Context, sayIn) (sayOut, error) { return sayOut{"done"}, do() })
}

func write(path, text string) func() error {
	return func() error { return os.WriteFile(path, []byte(text), 0o600) }
}

// The entry of a command has its changes of the workspace, without those of file operations.
func TestCommandsChangeFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, do := range []func() error{
		write(dir+"/old", "1\n2\n"), func() error { return os.MkdirAll(dir+"/sub/deep", 0o700) }, write(dir+"/sub/deep/x", "x\n"),
		func() error { return os.MkdirAll(dir+"/node_modules", 0o700) }, func() error { return os.Mkdir(dir+"/.git", 0o700) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	upload := op.New(op.Spec{Name: "file_write", Route: "POST /write", Tag: "file", Doc: "Write."},
		func(_ context.Context, in writeIn) (op.None, error) {
			return op.None{}, os.WriteFile(dir+"/"+in.File, []byte(in.Content), 0o600)
		})
	steps := []struct {
		name string
		do   func() error
		want []activity.Change
	}{
		{"nothing", func() error { return nil }, nil},
		{"changed", write(dir+"/old", "1\nzwei\n"),
			[]activity.Change{{Path: "old", Diff: "@@ -1,2 +1,2 @@\n 1\n-2\n+zwei\n", Content: "1\nzwei\n"}}},
		{"the same", write(dir+"/old", "1\nzwei\n"), nil},
		{"new", write(dir+"/new", "n\n"), []activity.Change{{Path: "new", Diff: "@@ -0,0 +1,1 @@\n+n\n", Content: "n\n"}}},
		{"below", write(dir+"/sub/deep/x", "y\n"), []activity.Change{{Path: "sub/deep/x", Diff: "@@ -1,1 +1,1 @@\n-x\n+y\n", Content: "y\n"}}},
		{"new folder", func() error {
			return errors.Join(os.MkdirAll(dir+"/made/here", 0o700), write(dir+"/made/here/f", "f\n")())
		},
			[]activity.Change{{Path: "made/here/f", Diff: "@@ -0,0 +1,1 @@\n+f\n", Content: "f\n"}}},
		{"in it, later", write(dir+"/made/here/f", "g\n"),
			[]activity.Change{{Path: "made/here/f", Diff: "@@ -1,1 +1,1 @@\n-f\n+g\n", Content: "g\n"}}},
		{"folder moved away", func() error { return os.Rename(dir+"/made", dir+"/.made") },
			[]activity.Change{{Path: "made/here/f", Diff: "@@ -1,1 +0,0 @@\n-g\n", Deleted: true}}},
		{"deleted", func() error { return os.Remove(dir + "/new") },
			[]activity.Change{{Path: "new", Diff: "@@ -1,1 +0,0 @@\n-n\n", Deleted: true}}},
		{"moved over", func() error {
			return errors.Join(write(dir+"/.tmp", "moved\n")(), os.Rename(dir+"/.tmp", dir+"/old"))
		}, []activity.Change{{Path: "old", Diff: "@@ -1,2 +1,1 @@\n-1\n-zwei\n+moved\n", Content: "moved\n"}}},
		{"of no interest", func() error { return errors.Join(write(dir+"/node_modules/m", "m")(), write(dir+"/.git/HEAD", "h")()) }, nil},
		{"binary and large", func() error {
			return errors.Join(write(dir+"/big", strings.Repeat("x", 100<<10))(), write(dir+"/raw", "\x00\xff")())
		}, []activity.Change{{Path: "big"}, {Path: "raw"}}},
		{"a secret", write(dir+"/env", "password=hunter22\n"),
			[]activity.Change{{Path: "env", Diff: "@@ -0,0 +1,1 @@\n+password=[removed]\n", Content: "password=[removed]\n"}}},
	}
	for _, step := range steps {
		call(t, s, doOp(step.do), &sayIn{Command: step.name})
		call(t, s, upload, &writeIn{"old-" + strings.ReplaceAll(step.name, " ", "-"), "by an operation\n"})
	}
	got := get(t, s, activity.GetIn{Kind: "bash"})
	for i, step := range steps {
		var changes []activity.Change
		for _, c := range got[i].Changes {
			if !strings.HasPrefix(filepath.Base(c.Path), ".tmp") { // it existed only temporarily
				changes = append(changes, c)
			}
		}
		for j := range step.want {
			step.want[j].Path = filepath.Join(dir, step.want[j].Path)
		}
		if d := cmp.Diff(step.want, changes); d != "" {
			t.Errorf("%s: %s", step.name, d)
		}
	}
}

// A hostile workspace neither blocks nor slows commands, and their entries read nothing outside and
// are bounded.
func TestHostileWorkspace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := errors.Join(syscall.Mkfifo(dir+"/pipe", 0o600), os.Symlink("/etc/passwd", dir+"/link"),
		os.Symlink(dir, dir+"/round"), os.Symlink("/", dir+"/root")); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	call(t, s, doOp(func() error { return nil }), &sayIn{})
	call(t, s, doOp(func() error {
		err := errors.Join(syscall.Mkfifo(dir+"/pipe2", 0o600), os.Symlink("/etc/passwd", dir+"/link2"))
		for i := range 2200 {
			err = errors.Join(err, write(fmt.Sprintf("%s/f%d", dir, i), strings.Repeat("<b>\"\\\n", 1000))())
		}
		for i := range 400 {
			err = errors.Join(err, os.Mkdir(fmt.Sprintf("%s/d%d", dir, i), 0o700))
		}
		return err
	}), &sayIn{Command: "many"})
	call(t, s, doOp(write(dir+"/f1", "after\n")), &sayIn{Command: "after"})
	got := get(t, s, activity.GetIn{})
	if len(got) != 3 || len(got[1].Changes) == 0 || len(got[1].Changes) > 20 {
		t.Fatalf("got %d entries, want 3, the second with up to 20 changes", len(got))
	}
	size := 0
	for _, c := range got[1].Changes {
		size += len(c.Diff) + len(c.Content)
		if strings.Contains(c.Content, "root:") {
			t.Errorf("got the content of another file: %+v", c)
		}
	}
	if size > 40<<10 {
		t.Errorf("got %d bytes of changes, want at most 40 KiB", size)
	}
	if c := got[2].Changes; len(c) != 1 || c[0].Path != dir+"/f1" {
		t.Errorf("got %+v, want the change of f1", c)
	}
}

// Processes and files of E2B clients are recorded like commands.
func TestE2BRequests(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	dir := t.TempDir()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}})
	daemon := envd.New(envd.Config{Runner: runner, Home: dir})
	t.Cleanup(func() { daemon.Close(); runner.Close() })
	s := open(t, dir)
	handler := s.Record(daemon.Ops()[0]).Handler
	send := func(method, path, kind, body string) string {
		r := httptest.NewRequestWithContext(op.WithCall(t.Context(), &op.Call{Via: "rest", Subject: "anna",
			KeyID: "k1"}), method, envd.Path+path, strings.NewReader(body))
		r.Header.Set("Content-Type", kind)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		return w.Body.String()
	}
	start := func(command string) string {
		body := fmt.Sprintf(`{"process":{"cmd":"/bin/bash","args":["-l","-c",%q],"envs":{"API_KEY":"hunter22"}}}`, command)
		return send(http.MethodPost, "/process.Process/Start", "application/connect+json",
			string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))))+body)
	}
	if reply := start("echo hello; echo x > made; exit 3"); !strings.Contains(reply, "aGVsbG8K") {
		t.Fatalf("got %q, want the output as without a record", reply)
	}
	send(http.MethodGet, "/health", "", "")
	send(http.MethodPost, "/filesystem.Filesystem/MakeDir", "application/json", `{"path":"folder"}`)
	send(http.MethodPost, "/process.Process/Start", "application/connect+json", "\x00\xff\xff\xff\xff{")
	got := get(t, s, activity.GetIn{})
	if len(got) != 3 {
		t.Fatalf("got %d entries, want 3: %+v", len(got), got)
	}
	e := got[0]
	if e.Op != "e2b_envd:process.Process/Start" || e.Kind != "e2b" || e.Caller != "anna" || e.Key != "k1" || e.Error != "" ||
		!strings.Contains(e.Input, `"command":"echo hello; echo x > made; exit 3"`) || strings.Contains(e.Input, "hunter22") ||
		e.Output != `{"exit_code":3,"stdout":"hello\n"}` && e.Output != `{"stdout":"hello\n","exit_code":3}` {
		t.Errorf("got %+v, want the command with its output", e)
	}
	if len(e.Changes) != 1 || e.Changes[0].Path != dir+"/made" {
		t.Errorf("got changes %+v, want that of made", e.Changes)
	}
	if e := got[1]; !strings.Contains(e.Input, "folder") || e.Error != "" {
		t.Errorf("got %+v, want the folder", e)
	}
}
