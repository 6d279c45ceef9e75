package activity_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/activity"
)

type sayIn struct {
	Command  string `json:"command"`
	Password string `json:"password"`
	Env      map[string]string
}

type sayOut struct {
	Output string `json:"output"`
}

func sayOp() op.Op {
	return op.New(op.Spec{Name: "bash_exec", Route: "POST /say", Tag: "bash", Doc: "Say."}, func(_ context.Context, in sayIn) (sayOut, error) {
		if in.Command == "fail" {
			return sayOut{}, errors.New("it failed")
		}
		return sayOut{"did " + in.Command}, nil
	})
}

func clickOp() op.Op {
	return op.New(op.Spec{Name: "browser_click", Route: "POST /click", Tag: "browser", Doc: "Click."},
		func(context.Context, op.None) (op.None, error) { return op.None{}, nil })
}

func open(t *testing.T, dir string, env ...string) *activity.Service {
	t.Helper()
	s := activity.New(activity.Config{State: dir, Home: dir, Workspace: dir, Secrets: []string{"server-token-1", ""}, Env: env,
		Screen: func(context.Context, int) ([]byte, error) { return []byte("\xff\xd8picture"), nil }})
	t.Cleanup(func() { s.Close() })
	return s
}

func call(t *testing.T, s *activity.Service, o op.Op, in any) {
	t.Helper()
	s.Record(o).Call(op.WithCall(t.Context(), &op.Call{Via: "mcp", Subject: "anna"}), in)
}

func get(t *testing.T, s *activity.Service, in activity.GetIn) []activity.Entry {
	t.Helper()
	if in.Limit == 0 {
		in.Limit = 1000
	}
	out, err := s.Get(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	return out.Entries
}

// Calls are recorded, can be filtered, survive a restart and are exported as text.
func TestRecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	if got := get(t, s, activity.GetIn{}); len(got) != 0 {
		t.Fatalf("got %v before anything happened, want nothing", got)
	}
	if _, err := os.Stat(dir + "/activity"); err == nil {
		t.Error("a record exists before anything happened, want none")
	}
	call(t, s, sayOp(), &sayIn{Command: "<script>attack()</script>\x1b[31mred\u202e"})
	call(t, s, sayOp(), &sayIn{Command: "fail"})
	call(t, s, clickOp(), &op.None{})
	call(t, s, sayOp(), &sayIn{Command: strings.Repeat("x", 1<<20)})
	all := get(t, s, activity.GetIn{})
	if len(all) != 4 || all[0].Caller != "anna" || all[0].Via != "mcp" || !strings.Contains(all[0].Output, "did") ||
		all[1].Error != "it failed" || !all[2].Picture || len(all[3].Input) > 16<<10 {
		t.Fatalf("got %+v, want the four calls", all)
	}
	for name, in := range map[string]activity.GetIn{"failed": {Failed: true}, "kind": {Kind: "browser"},
		"op": {Op: "browser_click"}, "search": {Search: "IT FAILED"}, "after": {After: 3}, "limit": {Limit: 1}} {
		if got := get(t, s, in); len(got) != 1 {
			t.Errorf("%s: got %d entries, want 1", name, len(got))
		}
	}
	reader := op.WithCall(t.Context(), &op.Call{Reader: true})
	if out, err := s.Get(reader, activity.GetIn{Limit: 10}); err != nil || len(out.Entries) != 0 {
		t.Errorf("got %v and error %v, want no entries for a caller with read-only access", out.Entries, err)
	}
	if err := s.Follow(reader, activity.GetIn{}, nil); err == nil {
		t.Error("caller with read-only access: got a stream, want an error")
	}
	if b, err := s.Picture(t.Context(), activity.PictureIn{ID: all[2].ID}); err != nil {
		t.Errorf("picture: %v, want one", err)
	} else {
		b.Body.Close()
	}
	if _, err := s.Picture(t.Context(), activity.PictureIn{ID: 999}); err == nil {
		t.Error("got a picture of no entry, want an error")
	}
	b, err := s.Export(t.Context(), op.None{})
	if err != nil {
		t.Fatal(err)
	}
	page, _ := io.ReadAll(b.Body)
	if text := string(page); strings.Contains(text, "<script>") || !strings.Contains(text, "attack()") ||
		!strings.Contains(text, "data:image/jpeg;base64,") {
		t.Errorf("got %s, want everything as text, with the picture", text)
	}
	if text := string(page); !strings.Contains(text, "<pre><b>$ ") ||
		!strings.Contains(text, `class="step failed"`) || strings.Contains(text, "\x1b") ||
		strings.Contains(text, "\u202e") {
		t.Errorf("got %s, want commands, marked failures and no control sequences", text)
	}
	next := open(t, dir) // as if the first server had been killed
	call(t, next, sayOp(), &sayIn{Command: "again"})
	if got := get(t, next, activity.GetIn{}); len(got) != 5 || got[4].ID <= got[3].ID || got[0].Op != "bash_exec" {
		t.Errorf("got %d entries after a restart, want 5 with ascending IDs", len(got))
	}
}

// Secrets are recognized by the name of a field, by their form and by their value.
func TestSecretsAreNotRecorded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, "DEPLOY_TOKEN=of-programs-1", "PWD=/home/anna", "LANG=C.UTF-8")
	call(t, s, sayOp(), &sayIn{Command: "ls", Password: "hunter2", Env: map[string]string{"API_TOKEN": "hunter2",
		"OPENAI_KEY": "hunter2", "LANG": "kept"}})
	for _, command := range []string{
		`curl -H "Authorization: Bearer hunter2.abc" x`, "curl -u a https://anna:hunter2@example.test/",
		`export DB_PASSWORD="hunter2"; ls`, "export MY_API_KEY=hunter2",
		"mysql --password hunter2", `{"access_token": "hunter2", "x": 1}`, "echo server-token-1",
		"echo of-programs-1 in /home/anna", "Cookie: session=hunter2", "sk-hunter2hunter2hunter2", "ghp_hunter2hunter2hunter2hunter2",
		"-----BEGIN RSA PRIVATE KEY-----\nhunter2\nhunter2\n-----END RSA PRIVATE KEY-----", `curl -d '{"client_secret":"hunter2"}'`,
	} {
		call(t, s, sayOp(), &sayIn{Command: command})
	}
	call(t, s, op.New(op.Spec{Name: "file_write", Route: "POST /write", Tag: "file", Doc: "Write."},
		func(_ context.Context, in writeIn) (op.None, error) {
			return op.None{}, os.WriteFile(dir+"/"+in.File, []byte(in.Content), 0o600)
		}), &writeIn{File: ".env", Content: "A=1\nSECRET_TOKEN=hunter2\n"})
	list := get(t, s, activity.GetIn{})
	if len(list) != 15 || list[14].Change == nil || !strings.Contains(list[14].Change.Diff, "SECRET_TOKEN=[removed]") {
		t.Fatalf("got %d entries, the last of them %+v, want 15 and a change", len(list), list[len(list)-1])
	}
	stored, err := os.ReadFile(dir + "/activity/new.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%+v", list), string(stored)} {
		for line := range strings.SplitSeq(text, "\n") {
			if strings.Contains(line, "hunter2") || strings.Contains(line, "server-token-1") || strings.Contains(line, "of-programs-1") {
				t.Errorf("got %s, want no secret", line)
			}
		}
	}
	if !strings.Contains(list[0].Input, "kept") || !strings.Contains(list[3].Input, "; ls") ||
		!strings.Contains(list[8].Input, "in /home/anna") {
		t.Errorf("got %s, %s and %s, want what is not secret", list[0].Input, list[3].Input, list[8].Input)
	}
}

type writeIn struct {
	File    string `json:"file"`
	Content string `json:"content"`
}

// Files that operations write are recorded as diffs.
func TestChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	write := op.New(op.Spec{Name: "file_write", Route: "POST /write", Tag: "file", Doc: "Write."},
		func(_ context.Context, in writeIn) (op.None, error) {
			if in.Content == "" {
				return op.None{}, os.Remove(dir + "/" + in.File)
			}
			return op.None{}, os.WriteFile(dir+"/"+in.File, []byte(in.Content), 0o600)
		})
	steps := []struct {
		name, file, content string
		want                *activity.Change
	}{
		{"new", "a", "1\n2\n", &activity.Change{Diff: "@@ -0,0 +1,2 @@\n+1\n+2\n", Content: "1\n2\n"}},
		{"same", "a", "1\n2\n", nil},
		{"line", "a", "1\nzwei\n", &activity.Change{Diff: "@@ -1,2 +1,2 @@\n 1\n-2\n+zwei\n", Content: "1\nzwei\n"}},
		{"no newline", "a", "1\nzwei",
			&activity.Change{Diff: "@@ -1,2 +1,2 @@\n 1\n-zwei\n+zwei\n\\ No newline at end of file\n", Content: "1\nzwei"}},
		{"binary", "a", "\x00\xff", &activity.Change{}},
		{"deleted", "a", "", &activity.Change{Deleted: true}},
		{"context", "b", "1\n2\n3\n4\n5\n6\n7\n8\n",
			&activity.Change{Diff: "@@ -0,0 +1,8 @@\n+1\n+2\n+3\n+4\n+5\n+6\n+7\n+8\n", Content: "1\n2\n3\n4\n5\n6\n7\n8\n"}},
		{"inserted", "b", "1\n2\n3\n4\nnew\n5\n6\n7\n8\n",
			&activity.Change{Diff: "@@ -2,6 +2,7 @@\n 2\n 3\n 4\n+new\n 5\n 6\n 7\n", Content: "1\n2\n3\n4\nnew\n5\n6\n7\n8\n"}},
		{"long deleted", "b", "", &activity.Change{Deleted: true, Diff: "@@ -1,9 +0,0 @@\n-1\n-2\n-3\n-4\n-new\n-5\n-6\n-7\n-8\n"}},
		{"hostile name", "<b>\n\"", "x\n", &activity.Change{Diff: "@@ -0,0 +1,1 @@\n+x\n", Content: "x\n"}},
	}
	for _, step := range steps {
		call(t, s, write, &writeIn{step.file, step.content})
	}
	got := get(t, s, activity.GetIn{})
	for i, step := range steps {
		if step.want != nil {
			step.want.Path = dir + "/" + step.file
		}
		if d := cmp.Diff(step.want, got[i].Change); d != "" {
			t.Errorf("%s: %s", step.name, d)
		}
	}
	if err := syscall.Mkfifo(dir+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	call(t, s, op.New(op.Spec{Name: "file_delete", Route: "POST /delete", Tag: "file", Doc: "Delete."},
		func(context.Context, writeIn) (op.None, error) { return op.None{}, nil }), &writeIn{File: "pipe"})
	call(t, s, write, &writeIn{"big", strings.Repeat("x", 1<<20)})
	if got := get(t, s, activity.GetIn{Limit: 1}); got[0].Change == nil || got[0].Change.Content != "" {
		t.Errorf("got %+v, want a change without content", got[0].Change)
	}
}

// A stream starts with past entries and continues with new ones, also if its reader is slow.
func TestStream(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for range 5 {
		call(t, s, sayOp(), &sayIn{Command: "before"})
	}
	ctx, stop := context.WithCancel(t.Context())
	var mu sync.Mutex
	var ids []int64
	begun, release := make(chan struct{}), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		done <- s.Follow(ctx, activity.GetIn{Limit: 2}, func(e op.Event) error {
			mu.Lock()
			ids = append(ids, e.Data.(activity.Entry).ID)
			n := len(ids)
			mu.Unlock()
			if n == 2 {
				close(begun)
				<-release
			}
			return nil
		})
	}()
	<-begun
	for range 300 { // more than a stream's queue
		call(t, s, sayOp(), &sayIn{Command: "more"})
	}
	get(t, s, activity.GetIn{Limit: 1})
	close(release)
	testenv.Poll(t, "the stream has all entries", func() bool { mu.Lock(); defer mu.Unlock(); return len(ids) == 302 })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for i, id := range ids {
		if want := int64(4 + i); id != want {
			t.Fatalf("entry %d of the stream has the ID %d, want %d", i, id, want)
		}
	}
	if err := s.Follow(op.WithCall(t.Context(), &op.Call{LastEventID: "304"}), activity.GetIn{Limit: 1000}, func(e op.Event) error {
		if e.ID != "305" {
			t.Errorf("got entry %s after 304, want 305", e.ID)
		}
		return io.EOF
	}); !errors.Is(err, io.EOF) {
		t.Errorf("got error %v, want that of the receiver", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Follow(t.Context(), activity.GetIn{}, func(op.Event) error { return nil }) }()
	s.Close() // ends all streams
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The record never exceeds its limits.
func TestBounds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	nasty := strings.Repeat(`\"<`, 2<<10)
	for i := range 180 {
		call(t, s, sayOp(), &sayIn{Command: nasty, Env: map[string]string{"a": nasty, "b": nasty, "c": nasty}})
		if i%60 == 59 {
			get(t, s, activity.GetIn{Limit: 1}) // the writer catches up
		}
	}
	all := get(t, s, activity.GetIn{})
	if last := all[len(all)-1]; len(all) < 50 || last.ID != 180 {
		t.Errorf("got %d entries, the last with ID %d, want the latest ones up to 180", len(all), last.ID)
	}
	for _, name := range []string{"old", "new"} {
		if info, err := os.Stat(dir + "/activity/" + name + ".jsonl"); err != nil || info.Size() > 4<<20 {
			t.Errorf("%s: got %v and error %v, want at most 4 MiB", name, info, err)
		}
	}
	again := open(t, dir)
	if got := get(t, again, activity.GetIn{}); len(got) != len(all) {
		t.Errorf("got %d entries after a restart, want %d", len(got), len(all))
	}
}

// The server neither blocks nor fails nor follows links if a program replaces the record.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	for name, attack := range map[string]func(dir string) error{
		"symlink": func(dir string) error { return os.Symlink("/dev/zero", dir+"/new.jsonl") },
		"pipe":    func(dir string) error { return syscall.Mkfifo(dir+"/new.jsonl", 0o600) },
		"folder":  func(dir string) error { return os.Mkdir(dir+"/new.jsonl", 0o700) },
		"torn":    func(dir string) error { return os.WriteFile(dir+"/new.jsonl", []byte(`{"id":7,"op":"to`), 0o600) },
		"huge":    func(dir string) error { return os.WriteFile(dir+"/new.jsonl", make([]byte, 12<<20), 0o600) },
		"garbage": func(dir string) error {
			return os.WriteFile(dir+"/new.jsonl", []byte("null\n[]\n{\"id\":-1}\n{\"id\":\"x\"}\n\xff\n"), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := errors.Join(os.Mkdir(dir+"/activity", 0o700), attack(dir+"/activity")); err != nil {
				t.Fatal(err)
			}
			s := open(t, dir)
			call(t, s, sayOp(), &sayIn{Command: "works"})
			if got := get(t, s, activity.GetIn{}); len(got) != 1 || !strings.Contains(got[0].Input, "works") {
				t.Errorf("got %+v, want one entry", got)
			}
			// If the file of the running server is truncated, only its entries are lost.
			if err := os.Truncate(dir+"/activity/new.jsonl", 0); err != nil {
				t.Fatal(err)
			}
			call(t, s, sayOp(), &sayIn{Command: "still"})
			if got := get(t, s, activity.GetIn{}); len(got) > 1 {
				t.Errorf("got %+v, want at most one entry", got)
			}
		})
	}
}

// If the setting is off, nothing is recorded.
func TestNoRecord(t *testing.T) {
	t.Parallel()
	s := activity.New(activity.Config{})
	defer s.Close()
	call(t, s, sayOp(), &sayIn{Command: "x"})
	if got := get(t, s, activity.GetIn{}); len(got) != 0 {
		t.Errorf("got %v, want nothing", got)
	}
	if err := s.Follow(t.Context(), activity.GetIn{}, nil); err == nil {
		t.Error("got a stream, want an error that names the setting")
	}
	if _, err := s.Export(t.Context(), op.None{}); err == nil {
		t.Error("got an export, want an error that names the setting")
	}
}

// BenchmarkRecord measures the cost of recording a call.
func BenchmarkRecord(b *testing.B) {
	for name, dir := range map[string]string{"on": b.TempDir(), "off": ""} {
		b.Run(name, func(b *testing.B) {
			s := activity.New(activity.Config{State: dir})
			defer s.Close()
			o := s.Record(sayOp())
			for b.Loop() {
				o.Call(b.Context(), &sayIn{Command: "ls -la /usr/bin | head -50"})
			}
		})
	}
}
