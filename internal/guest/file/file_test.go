package file

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/transfer"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/tree"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) {
	if os.Getenv(asNobody) != "" {
		os.Exit(m.Run()) // the parent checks for leaks
	}
	// The clock of regexp2 stops some time after the last search.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// sandbox is a service with its own folders.
type sandbox struct {
	*Service
	cfg Config
	t   testing.TB
	dir string // the workspace
	ops map[string]op.Op
}

func newSandbox(t testing.TB, change ...func(*Config)) *sandbox {
	t.Helper()
	base := t.TempDir()
	runner := proc.New(proc.Config{})
	c := Config{Home: base + "/home", Workspace: base + "/work", State: base + "/state", Runner: runner,
		Viewer: document.Reader{Runner: runner}}
	for _, f := range change {
		f(&c)
	}
	must(t, os.MkdirAll(c.Home, 0o755))
	must(t, os.MkdirAll(c.Workspace, 0o755))
	s := New(c)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, s.Close())
		must(t, runner.Close())
	})
	return &sandbox{Service: s, cfg: c, t: t, dir: c.Workspace, ops: byName(s)}
}

// restart replaces the service.
func (s *sandbox) restart(service *Service) {
	s.t.Helper()
	must(s.t, s.Close())
	s.Service, s.ops = service, byName(service)
}

func byName(s *Service) map[string]op.Op {
	ops := map[string]op.Op{}
	for _, o := range s.Ops() {
		ops[o.Name] = o
	}
	return ops
}

// put writes files in the workspace.
func (s *sandbox) put(files map[string]string) {
	s.t.Helper()
	for name, content := range files {
		path := filepath.Join(s.dir, name)
		must(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(s.t, os.WriteFile(path, []byte(content), 0o644))
	}
}

func (s *sandbox) get(name string) string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	must(s.t, err)
	return string(b)
}

type args = map[string]any

// do runs an operation as a surface does: it decodes JSON, fills defaults and checks the input.
func do[Out any](s *sandbox, name string, in args) (Out, error) {
	s.t.Helper()
	var none Out
	b, err := json.Marshal(in)
	must(s.t, err)
	o := s.ops[name]
	bound, err := o.Bind(op.Input{JSON: b, Flat: true})
	if err != nil {
		return none, err
	}
	out, err := o.Call(op.WithCall(s.t.Context(), &op.Call{}), bound)
	if err != nil {
		return none, err
	}
	return out.(Out), nil
}

// want does the same and fails the test on an error.
func want[Out any](s *sandbox, name string, in args) Out {
	s.t.Helper()
	out, err := do[Out](s, name, in)
	if err != nil {
		s.t.Fatalf("%s %v: got %v, want no error", name, in, err)
	}
	return out
}

// failure returns the data of a failed operation.
func failure(t testing.TB, err error) pyerr.Failure {
	t.Helper()
	e, ok := op.AsError(err)
	if !ok {
		t.Fatalf("%v (%T) is not safe to show", err, err)
	}
	f, ok := e.Data.(pyerr.Failure)
	if !ok {
		t.Fatalf("%v has the data %v", err, e.Data)
	}
	if f.Message == "" || f.Operation == "" || f.Exception == nil || e.Msg != f.Message {
		t.Errorf("incomplete: got %+v, want a message, an operation, an exception and the error %q", f, f.Message)
	}
	return f
}

// fails checks the kind of a failure and its exception.
func fails(t testing.TB, err error, kind pyerr.Kind, class string) {
	t.Helper()
	if err == nil {
		t.Errorf("no failure, want %s", kind)
		return
	}
	if f := failure(t, err); f.ErrorType != kind || class != "" && *f.Exception != class {
		t.Errorf("%v: %s %s, want %s %s", err, f.ErrorType, *f.Exception, kind, class)
	}
}

// Inputs may be null or omitted if the reference allows it.
func TestInputs(t *testing.T) {
	t.Parallel()
	ops := byName(New(Config{}))
	for name, bodies := range map[string][]string{
		"file_read": {`{"file":"a"}`, `{"file":"a","start_line":null,"end_line":null,"sudo":null}`,
			`{"file":"a","start_line":-3,"end_line":5,"sudo":true}`},
		"file_write": {`{"file":"a","content":""}`,
			`{"file":"a","content":"","encoding":null,"append":null,"leading_newline":null,"trailing_newline":null,"sudo":null}`},
		"file_grep": {`{"path":"a","pattern":""}`,
			`{"path":"a","pattern":"","include":null,"exclude":null,"case_insensitive":null,"fixed_strings":null,` +
				`"context_before":null,"context_after":null,"max_results":null,"max_file_size":null,` +
				`"multiline":null,"offset":null,"type":null,"recursive":null}`},
		"file_glob": {`{"path":"a","pattern":"","exclude":null,"include_hidden":null,` +
			`"files_only":null,"include_metadata":null,"max_results":null,"sort_by":null,"sort_desc":null}`},
		"file_list": {`{"path":"a","recursive":null,"show_hidden":null,"file_types":null,` +
			`"max_depth":null,"include_size":null,"include_permissions":null,"sort_by":null,"sort_desc":null}`},
		"file_str_replace_editor": {`{"command":"view","path":"a","file_text":null,"old_str":null,"new_str":null,` +
			`"insert_line":null,"view_range":null,"replace_mode":null,"page_range":null,"sheet_name":null,` +
			`"row_range":null,"slide_range":null,"enable_metadata":null}`},
	} {
		for _, body := range bodies {
			if _, err := ops[name].Bind(op.Input{JSON: []byte(body)}); err != nil {
				t.Errorf("%s %s: got %v, want no error", name, body, err)
			}
		}
	}
	in, err := ops["file_grep"].Bind(op.Input{JSON: []byte(`{"path":"a","pattern":"b","max_results":null}`)})
	must(t, err)
	if g := in.(*tree.GrepIn); g.MaxResults != 500 || g.MaxFileSize != "1M" || !g.Recursive {
		t.Errorf(`defaults: got %+v, want max results 500, max file size "1M" and recursive`, g)
	}
	if _, err := ops["file_grep"].Bind(op.Input{JSON: []byte(`{"path":"a","pattern":"b","max_results":10001}`)}); err == nil {
		t.Error("max_results above the maximum: got no error, want one")
	}
}

func TestNewTouchesNothing(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	s := New(Config{Home: dir, Workspace: dir, State: dir})
	if op.NewTable(s.Ops()); len(s.Ops()) != 20 {
		t.Errorf("got %d operations, want 20 operations", len(s.Ops()))
	}
	must(t, s.Close())
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("New created the folder: got %v, want os.ErrNotExist", err)
	}
}

// Every operation responds for every kind of file, with a clear failure if it cannot handle it.
func TestStrangeFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"plain": "text\n", "dir/inside": "x\n"})
	must(t, unix.Mkfifo(s.dir+"/fifo", 0o644))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, unix.Bind(fd, &unix.SockaddrUnix{Name: s.dir + "/socket"}))
	for link, to := range map[string]string{"loop": "loop", "a": "b", "b": "a", "gone": "nowhere/f",
		"tolink": "plain", "tozero": "/dev/zero", "tofifo": "fifo"} {
		must(t, os.Symlink(to, s.dir+"/"+link))
	}
	deep := strings.Repeat("d/", 600)
	must(t, os.MkdirAll(s.dir+"/"+deep, 0o755))

	kinds := map[string]struct {
		kind  pyerr.Kind
		class string
	}{
		"":                                  {pyerr.Path, ""},
		"zero\x00byte":                      {pyerr.Path, ""},
		"missing":                           {pyerr.NotFound, "FileNotFoundError"},
		"missing/deep/er":                   {pyerr.NotFound, "FileNotFoundError"},
		"plain/below":                       {pyerr.Target, "NotADirectoryError"},
		"dir":                               {pyerr.Target, "IsADirectoryError"},
		"/":                                 {pyerr.Target, "IsADirectoryError"},
		"fifo":                              {pyerr.Target, "OSError"},
		"socket":                            {pyerr.Target, "OSError"},
		"tofifo":                            {pyerr.Target, "OSError"},
		"tozero":                            {pyerr.Target, "OSError"},
		"/dev/zero":                         {pyerr.Target, "OSError"},
		"/dev/null":                         {pyerr.Target, "OSError"},
		"loop":                              {pyerr.Path, "OSError"},
		"a":                                 {pyerr.Path, "OSError"},
		"gone":                              {pyerr.NotFound, "FileNotFoundError"},
		strings.Repeat("n", 256):            {pyerr.Path, "OSError"},
		strings.Repeat("long/", 1000) + "f": {pyerr.Path, "OSError"},
	}
	for path, k := range kinds {
		t.Run(fmt.Sprintf("read %.20q", path), func(t *testing.T) {
			_, err := do[text.ReadOut](s, "file_read", args{"file": path})
			fails(t, err, k.kind, k.class)
			for name, in := range map[string]args{
				"file_search":             {"file": path, "regex": "x"},
				"file_replace":            {"file": path, "old_str": "x", "new_str": "y"},
				"file_str_replace_editor": {"command": "str_replace", "path": path, "old_str": "x", "new_str": "y"},
				"file_download":           {"path": path},
			} {
				o := s.ops[name]
				b, err := json.Marshal(in)
				must(t, err)
				bound, err := o.Bind(op.Input{JSON: b, Flat: true})
				must(t, err)
				_, err = o.Call(t.Context(), bound)
				fails(t, err, k.kind, "")
			}
		})
	}
	for _, name := range []string{"sp ace", "line\nbreak", "tab\t", "quote'\"", "größe 你好 🎈", "-rf", "*",
		`back\slash`, strings.Repeat("n", 255), strings.Repeat("é", 127), "%2e%2e", deep + "f"} {
		t.Run(fmt.Sprintf("good name %.20q", name), func(t *testing.T) {
			want[text.WriteOut](s, "file_write", args{"file": name, "content": "hello\n"})
			want[text.ReplaceOut](s, "file_replace", args{"file": name, "old_str": "hello", "new_str": "bye"})
			if out := want[text.ReadOut](s, "file_read", args{"file": name}); out.Content != "bye\n" {
				t.Errorf(`got %q, want content "bye\n"`, out.Content)
			}
			want[tree.DeleteOut](s, "file_delete", args{"path": name})
		})
	}
}

// Files of /proc and /sys have no size, have no end, or block.
func TestProcFiles(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	if out := want[text.ReadOut](s, "file_read", args{"file": "/proc/self/status"}); !strings.Contains(out.Content, "\nPid:") {
		t.Errorf(`got %q, want content that contains "\nPid:"`, out.Content)
	}
	if out := want[text.ReadOut](s, "file_read", args{"file": "/proc/self/status", "start_line": 0,
		"end_line": 1}); !strings.HasPrefix(out.Content, "Name:") || strings.Contains(out.Content, "\n") {
		t.Errorf(`got %q, want content that starts with "Name:", without "\n"`, out.Content)
	}
	if out := want[text.ReadOut](s, "file_read", args{"file": "/proc/self/status", "start_line": -1}); out.Content == "" {
		t.Error("last line: got no content, want some")
	}
	blob := want[*op.Blob](s, "file_download", args{"path": "/proc/self/status"})
	b := make([]byte, 5)
	if n, err := blob.Body.Read(b); err != nil || string(b[:n]) != "Name:" || blob.Size != -1 {
		t.Errorf(`got %q %v size %d, want "Name:" and size -1`, b, err, blob.Size)
	}
	must(t, blob.Body.Close())
	if out := want[text.SearchOut](s, "file_search", args{"file": "/proc/self/status", "regex": "^Pid:"}); len(out.Matches) != 1 {
		t.Errorf("got %+v, want 1 match", out)
	}
	if _, err := do[text.ReadOut](s, "file_read", args{"file": "/proc/self/mem"}); err == nil {
		t.Error("memory of a process: got no error, want one")
	}
	if os.Geteuid() == 0 {
		if _, err := do[text.ReadOut](s, "file_read", args{"file": "/proc/kmsg"}); err != nil {
			failure(t, err) // blocks until there is a message, so the read times out
		}
	}
	want[tree.ListOut](s, "file_list", args{"path": "/proc/self", "include_permissions": true})
	want[tree.StatOut](s, "file_stat", args{"path": "/dev/null"})
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	odd := "bad\xff\xfename"
	if err := os.WriteFile(s.dir+"/"+odd, []byte("found\n"), 0o644); err != nil {
		testenv.Lack(t, err.Error())
	}
	shown := want[tree.ListOut](s, "file_list", args{"path": "."}).Files[0].Path
	if out := want[text.ReadOut](s, "file_read", args{"file": shown}); out.Content != "found\n" {
		t.Errorf(`got %q, want content "found\n"`, out.Content)
	}
	found := want[tree.GrepOut](s, "file_grep", args{"path": ".", "pattern": "found"})
	if len(found.Matches) != 1 || found.Matches[0].File != shown {
		t.Errorf("got %+v, want 1 match and first file %q", found, shown)
	}
	want[text.WriteOut](s, "file_write", args{"file": shown, "content": "again\n"})
	if s.get(odd) != "again\n" {
		t.Errorf("got %q, want the file with the invalid name to be written", s.get(odd))
	}
	want[tree.DeleteOut](s, "file_delete", args{"path": shown})
}

func TestCanceledCallsEnd(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"a": "x"})
	ctx, cancel := context.WithCancel(t.Context())
	stalled := stalledReader{make(chan struct{}), make(chan struct{})}
	var upload sync.WaitGroup
	upload.Go(func() { // holds the lock of the file
		_, err := s.transfer.Upload(t.Context(), transfer.UploadIn{File: &op.File{Name: "a", Reader: stalled}})
		if err != nil {
			t.Error(err)
		}
	})
	<-stalled.started
	cancel()
	if _, err := s.text.Write(ctx, text.WriteIn{File: "a", Content: "y"}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	close(stalled.resume)
	upload.Wait()
}

// stalledReader blocks once, and is empty.
type stalledReader struct{ started, resume chan struct{} }

func (r stalledReader) Read([]byte) (int, error) {
	close(r.started)
	<-r.resume
	return 0, io.EOF
}
