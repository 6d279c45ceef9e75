package shell

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

// client is a viewer's end of a connection.
type client struct {
	t    testing.TB
	in   chan []byte
	left chan struct{} // closed when the viewer disconnects
	end  chan error    // the result of Attach

	mu       sync.Mutex
	gate     chan struct{} // closed while the viewer reads
	messages []message
	seen     strings.Builder // all output
	code     int
	reason   string
}

// connect attaches a viewer to a session.
func connect(t testing.TB, s *Service, id string) *client {
	t.Helper()
	p := &client{t: t, in: make(chan []byte), left: make(chan struct{}), end: make(chan error, 1), gate: make(chan struct{})}
	close(p.gate)
	in := AttachIn{SessionID: &id}
	if id == "" {
		in.SessionID = nil
	}
	go func() { p.end <- s.Attach(context.Background(), in, p) }()
	t.Cleanup(func() { p.leave(); <-p.end })
	return p
}

func (p *client) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !isClosed(p.left) {
		close(p.left)
	}
}

func (p *client) Read(ctx context.Context) ([]byte, bool, error) {
	select {
	case b := <-p.in:
		return b, true, nil
	case <-p.left:
		return nil, false, io.EOF
	case <-ctx.Done():
		return nil, false, ctx.Err()
	}
}

func (p *client) Write(ctx context.Context, data []byte, text bool) error {
	p.mu.Lock()
	gate := p.gate
	p.mu.Unlock()
	select {
	case <-gate:
	case <-p.left:
		return io.EOF
	case <-ctx.Done():
		return ctx.Err()
	}
	var m message
	if err := json.Unmarshal(data, &m); err != nil || !text {
		p.t.Errorf("got %q, want a text message", data)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.messages = append(p.messages, m)
	if m.Type == "output" {
		p.seen.WriteString(m.Data.(string))
	}
	return nil
}

func (p *client) Close(code int, reason string) error {
	p.mu.Lock()
	p.code, p.reason = code, reason
	p.mu.Unlock()
	p.leave()
	return nil
}

// stall makes the viewer stop reading until the returned function is called.
func (p *client) stall() (resume func()) {
	gate := make(chan struct{})
	p.mu.Lock()
	p.gate = gate
	p.mu.Unlock()
	return func() { close(gate) }
}

func (p *client) send(m string) {
	p.t.Helper()
	select {
	case p.in <- []byte(m):
	case <-time.After(patience):
		p.t.Fatalf("message %q was not read within %v", m, patience)
	}
}

func (p *client) typeLine(line string) {
	p.t.Helper()
	b, _ := json.Marshal(line + "\r")
	p.send(`{"type":"input","data":` + string(b) + `}`)
}

func (p *client) output() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

func (p *client) waitFor(text string) {
	p.t.Helper()
	defer func() {
		if p.t.Failed() {
			out := p.output()
			p.t.Logf("got output … %q, want %q in it", out[max(0, len(out)-1000):], text)
		}
	}()
	testenv.Poll(p.t, "output "+text, func() bool { return strings.Contains(p.output(), text) })
}

// waitForPrompt waits for the prompt at the end of the output.
func (p *client) waitForPrompt() {
	p.t.Helper()
	testenv.Poll(p.t, "the prompt", func() bool { return strings.HasSuffix(p.output(), "\x1b[?2004h> ") })
}

// waitForMessage waits for a message of a kind.
func (p *client) waitForMessage(kind string) (m message) {
	p.t.Helper()
	testenv.Poll(p.t, "message "+kind, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, m = range p.messages {
			if m.Type == kind {
				return true
			}
		}
		return false
	})
	return m
}

// waitIdle waits until the typed command has ended.
func waitIdle(t testing.TB, s *Service, id string) {
	t.Helper()
	testenv.Poll(t, "the end of the typed command", func() bool { return listSessions(t, s)[id].Status == "idle" })
}

func TestAttach(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "")
	id := p.waitForMessage("session_id").Data.(string)
	if m := p.waitForMessage("ready"); m.Data != "Terminal ready" || m.SessionID != id {
		t.Errorf("got ready %v of %q, want the text Terminal ready of %q", m.Data, m.SessionID, id)
	}
	p.waitFor("> ")
	p.send(`{"type":"ping"}`)
	if m := p.waitForMessage("pong"); m.Timestamp == 0 || m.Data.(map[string]any)["timestamp"] != float64(m.Timestamp) {
		t.Errorf("got %+v, want a pong with its time at top level and in data", m)
	}
	if _, there := listSessions(t, s)[id]; !there || len(listSessions(t, s)) != 1 {
		t.Errorf("got sessions %v, want only %q", listSessions(t, s), id)
	}
	p.typeLine("echo $((6*7))-answer")
	p.waitFor("> echo $((6*7))-answer\r\n")
	p.waitFor("\r42-answer\r\n")
	p.send(`{"type":"resize","data":{"cols":77,"rows":33}}`)
	p.send(`{"type":"pong","data":{"timestamp":1}}`)
	p.send(`{"type":"pong","timestamp":1}`)
	p.typeLine("stty size; echo $COLUMNS")
	p.waitFor("33 77\r\n77\r\n")
	p.mu.Lock()
	kinds := []string{p.messages[0].Type, p.messages[1].Type, p.messages[2].Type}
	p.mu.Unlock()
	if fmt.Sprint(kinds) != "[session_id ready output]" {
		t.Errorf(`got first messages %v, want kinds "[session_id ready output]"`, kinds)
	}

	waitIdle(t, s, id)
	// A command of the API in the same session is shown as if typed, and its output has no
	// traces of the hooks.
	wantOutput(t, s, id, "echo from outside\necho $0", "from outside\nbash")
	p.waitFor("> echo from outside\r\n> echo $0\r\n")
	p.waitFor("from outside\r\nbash\r\n")
	p.waitForPrompt()
	p.typeLine("echo back at the prompt")
	p.waitFor("\rback at the prompt\r\n")
	for _, internal := range []string{"5379", "__cove", "7001"} {
		if strings.Contains(p.output(), internal) {
			t.Errorf("got output %q, want it without %q", p.output(), internal)
		}
	}
	testenv.Poll(t, "the record", func() bool {
		v := view(t, s, id)
		return len(v.Console) == 4 && v.Console[0] == (Record{">", "echo $((6*7))-answer", "42-answer"}) &&
			v.Console[3] == (Record{">", "echo back at the prompt", "back at the prompt"})
	})
}

func TestTypedCommandKeepsTheSessionBusy(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "a")
	p.waitFor("> ")
	p.typeLine("read x; echo got $x")
	testenv.Poll(t, "the typed command runs", func() bool { return listSessions(t, s)["a"].Status == "active" })
	_, err := s.Exec(t.Context(), ExecIn{ID: new("a"), Command: "true"})
	wantError(t, err, op.Conflict, `"read x; echo got $x" is still running`)
	write(t, s, "a", "it", true)
	p.waitFor("\ngot it\r\n")
	wantEnd(t, wait(t, s, "a"), "it\ngot it", 0)
	p.typeLine("(exit 9)")
	testenv.Poll(t, "the exit code of a typed command", func() bool { v := view(t, s, "a"); return v.ExitCode != nil && *v.ExitCode == 9 })
	wantOutput(t, s, "a", "echo $?", "9")
	p.typeLine("unset PROMPT_COMMAND")
	p.typeLine("PS1='$ '")
	p.waitFor("\r\n\x1b[?2004l\r\x1b[?2004h$ ")
	waitIdle(t, s, "a")
	wantOutput(t, s, "a", "echo still", "still")
}

// TestIncompleteInput runs commands while the viewer has typed incomplete input.
func TestIncompleteInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "a")
	p.waitFor("> ")
	for i, c := range []struct{ keys, shows string }{
		{"echo half a line", "echo half a line"},
		{"for i in 1 2 3\r", "3\r\n\x1b[?2004l\r\x1b[?2004h> "},
		{"cat <<EOF\rline\r", "line\r\n\x1b[?2004l\r\x1b[?2004h> "},
		{"echo 'open\r", "open\r\n\x1b[?2004l\r\x1b[?2004h> "},
		{"\x12hal", "reverse-i-search"},
		{"x\x1b[D", "x\b"},
	} {
		from := len(p.output())
		b, _ := json.Marshal(c.keys)
		p.send(`{"type":"input","data":` + string(b) + `}`)
		testenv.Poll(t, "the echo of "+c.keys, func() bool { return strings.Contains(p.output()[from:], c.shows) })
		want := fmt.Sprint("complete ", i)
		wantOutput(t, s, "a", "echo "+want, want)
		p.waitFor("> echo " + want + "\r\n")
		p.waitForPrompt()
	}
	p.typeLine("echo fine")
	p.waitFor("\rfine\r\n")
}

// TestInterruptDiscardsInput: Ctrl-C discards input that was typed ahead, and keeps the output.
func TestInterruptDiscardsInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "a")
	p.waitFor("> ")
	p.typeLine("sh -c 'echo printed; exec sleep 1000'") // the printing process receives Ctrl-C
	p.waitFor("\rprinted\r\n")
	p.typeLine("touch typed-ahead")
	p.waitFor("touch typed-ahead\r\n") // the terminal's echo: the input is unread
	p.send(`{"type":"input","data":"\u0003"}`)
	waitIdle(t, s, "a")
	if out := run(t, s, "a", "ls typed-ahead"); *out.ExitCode == 0 {
		t.Errorf("got %q, want a nonzero exit code", *out.Output)
	}
}

// TestConcurrentInput types and presses Ctrl-C while commands run. The echo may appear in their
// output, as on any terminal, but each command runs once and ends.
func TestConcurrentInput(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "a")
	p.waitFor("> ")
	done := make(chan struct{})
	var typing sync.WaitGroup
	typing.Go(func() {
		for _, keys := range []string{"echo half", "\r", "for i in 1\r", "do :\r", "done\r", "\x03",
			"echo x\recho y\r", "\x03\x03", "cat <<E\r", "\x03", "x"} {
			b, _ := json.Marshal(keys)
			p.send(`{"type":"input","data":` + string(b) + `}`)
		}
		close(done)
	})
	for i := 0; !isClosed(done) || i < 5; i++ {
		out, err := s.Exec(t.Context(), ExecIn{ID: new("a"), Command: fmt.Sprintf("echo run %d >>log", i), Timeout: new(patience.Seconds())})
		if e, ok := op.AsError(err); err == nil && out.Status != completed || err != nil && (!ok || e.Code != op.Conflict) {
			t.Fatalf("got %+v %v, want completed or a conflict", out, err)
		}
	}
	typing.Wait()
	waitIdle(t, s, "a")
	out := run(t, s, "a", "sort log | uniq -d; echo end")
	if !strings.HasSuffix(*out.Output, "end") || strings.Contains(*out.Output, "run ") {
		t.Errorf(`got %q, want output that ends with "end", without "run "`, *out.Output)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	s := newService(t)
	run(t, s, "a", "echo before any viewer; echo Grüße")
	first := connect(t, s, "a")
	first.waitFor("> echo before any viewer; echo Grüße\r\n")
	first.waitFor("before any viewer\r\nGrüße\r\n")
	second := connect(t, s, "a")
	second.waitFor("before any viewer\r\n")
	first.typeLine("echo to all")
	first.waitFor("\rto all\r\n")
	second.waitFor("\rto all\r\n")
	second.leave()
	testenv.Poll(t, "the second viewer is detached", func() bool {
		ss, _ := s.find("a")
		ss.mu.Lock()
		defer ss.mu.Unlock()
		return len(ss.terminal.display.viewers) == 1
	})
	first.typeLine("echo alone")
	first.waitFor("\ralone\r\n")
	waitIdle(t, s, "a")

	// More output than is kept: a new viewer starts with a complete line.
	run(t, s, "a", "seq -f 'line %08.0f ä' 100000")
	third := connect(t, s, "a")
	third.waitFor("line 00100000 ä\r\n")
	if out := third.output(); !strings.HasPrefix(out, "line ") || len(out) > ringSize+1000 {
		t.Errorf(`got %d bytes, beginning with %q, want text that starts with "line " and at most %d bytes`,
			len(out), out[:50], ringSize+1000)
	}
}

func TestCharactersAreNotSplit(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "a")
	p.waitFor("> ")
	// The bytes of each character are written separately.
	p.typeLine(`for i in 1 2 3 4 5; do for b in xf0 x9f x98 x80 xe4 xb8 x96; do printf "\\$b"; sleep 0.001; done; ` +
		`done; echo; printf '\xff|\xe4'; echo end`)
	p.waitFor("\ufffdend\r\n")
	p.typeLine("yes 'a世😀é' | head -n 30000; printf 'fini%s\n' shed")
	p.waitFor("finished\r\n")
	p.mu.Lock()
	defer p.mu.Unlock()
	replaced := 0
	for _, m := range p.messages {
		if text, ok := m.Data.(string); ok {
			replaced += strings.Count(text, "\ufffd")
			if !utf8.ValidString(text) {
				t.Fatalf("got %q, want valid UTF-8", text)
			}
		}
	}
	if all := p.seen.String(); replaced != 2 || !strings.Contains(all, strings.Repeat("😀世", 5)+"\r\n") ||
		strings.Count(all, "a世😀é\r\n") != 30000 {
		t.Errorf(`got %d replacements, %d lines, want 2 replacements, %q in it and "a世😀é\r\n" 30000 times`,
			replaced, strings.Count(all, "a世😀é\r\n"), strings.Repeat("😀世", 5)+"\r\n")
	}
}

// TestStalledViewer: a viewer that does not read neither blocks the program nor receives all
// output later. Other viewers lose no output.
func TestStalledViewer(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p, other := connect(t, s, "a"), connect(t, s, "a")
	p.waitFor("> ")
	other.waitFor("> ")
	resume := p.stall()
	const lines = 150_000
	out := run(t, s, "a", fmt.Sprintf("seq -f 'line %%010.0f' %d; echo end", lines)) // 17 bytes each
	if out.Status != completed || !strings.HasSuffix(*out.Output, "\nend") {
		t.Fatalf(`got %+v, want status %q and output that ends with "\nend"`, out, completed)
	}
	other.waitFor("end\r\n")
	resume()
	p.waitFor("end\r\n")
	p.waitFor("bytes of output were skipped ...]\r\nline ")
	if got := len(p.output()); got > 2*ringSize {
		t.Errorf("got %d bytes, want at most %d", got, 2*ringSize)
	}
	p.typeLine("echo with us again")
	p.waitFor("\rwith us again\r\n")
}

func TestExitMessage(t *testing.T) {
	t.Parallel()
	s := newService(t)
	p := connect(t, s, "a")
	p.waitFor("> ")
	p.typeLine("echo last words; exit 7")
	exit := p.waitForMessage("exit").Data.(map[string]any)
	if exit["code"] != 7.0 || !strings.Contains(p.output(), "last words\r\n") {
		t.Errorf(`got %v %q, want code 7.0 and output that contains "last words\r\n"`, exit, p.output())
	}
	if err := <-p.end; err != nil {
		t.Error(err)
	}
	p.end <- nil
	if p.code != 1000 || p.reason != "the shell ended with code 7" {
		t.Errorf(`got %d %q, want p.code 1000, p.reason "the shell ended with code 7"`, p.code, p.reason)
	}
	next := connect(t, s, "a") // starts a new shell
	next.waitFor("> ")
	if strings.Contains(next.output(), "last words") {
		t.Errorf(`got %q, want output without "last words"`, next.output())
	}
	if _, err := s.Cleanup(t.Context(), CleanupIn{SessionID: "a"}); err != nil {
		t.Fatal(err)
	}
	next.waitForMessage("exit")
}

func TestInvalidMessages(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, c := range []struct{ send, says string }{
		{"hello", "invalid message"},
		{`{"type":"dance"}`, `unknown message type "dance"`},
		{`{"type":"input","data":5}`, "must be a string"},
		{`{"type":"input"}`, "must be a string"},
		{`{"type":"resize","data":"big"}`, "must be {"},
		{`{"type":"resize","data":{"cols":0,"rows":-5}}`, "1 to 1000 columns"},
		{`{"type":"resize","data":{"cols":100000,"rows":5}}`, "1 to 1000 columns"},
	} {
		p := connect(t, s, "a")
		p.send(c.send)
		if note := p.waitForMessage("error").Data.(string); !strings.Contains(note, c.says) {
			t.Errorf("%s: got %q, want note that contains %q", c.send, note, c.says)
		}
		p.leave()
	}
	wantOutput(t, s, "a", "stty size", "50 200")
	wantError(t, s.Attach(t.Context(), AttachIn{SessionID: new("a/b")}, nil), op.Invalid, "no slash")
}

// TestQueries: the terminal itself replies to queries of programs, with and without viewers.
// Viewers never receive the queries.
func TestQueries(t *testing.T) {
	t.Parallel()
	s := newService(t)
	query := `stty -echo; printf 'ab\e[6n'; IFS= read -rsd R pos; echo; echo "${pos:1}"; stty echo`
	run(t, s, "a", "clear")
	wantOutput(t, s, "a", query, "ab\n[2;3") // the prompt is in the first line
	p := connect(t, s, "a")
	p.waitFor("> ")
	if strings.Contains(p.output(), "\x1b[6n") {
		t.Errorf(`got %q, want output without "\x1b[6n"`, p.output())
	}
	if out := run(t, s, "a", query); !strings.HasPrefix(*out.Output, "ab\n[") {
		t.Errorf(`got %q, want output that starts with "ab\n["`, *out.Output)
	}
}

func TestFullScreenReplay(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "vim")
	s := newService(t)
	run(t, s, "a", "seq 300000") // so that the ring does not keep all output
	background(t, s, "a", "vim -u NONE -i NONE")
	waitForOutput(t, s, "a", "~\n~")
	write(t, s, "a", "ipicture", false)
	waitForOutput(t, s, "a", "picture")
	p := connect(t, s, "a")
	p.waitFor("\x1b[?1049h\x1b[2J\x1b[Hpicture\r\n~\r\n~")
	write(t, s, "a", "\x1b:q!", true)
	wait(t, s, "a")
	p.waitFor("\x1b[?1049l")
}

func TestWebSocket(t *testing.T) {
	t.Parallel()
	s := newService(t)
	server := httptest.NewServer(rest.New(rest.Config{Table: op.NewTable(s.Ops())}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	url := "ws" + strings.TrimPrefix(server.URL, "http") + "/v1/shell/ws?session_id=web"
	conn, _, err := websocket.Dial(ctx, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	seen := ""
	read := func(want string) {
		t.Helper()
		for !strings.Contains(seen, want) {
			_, data, err := conn.Read(ctx)
			if err != nil {
				t.Fatalf("got %q, %v, want %q in it", seen, err, want)
			}
			seen += string(data)
		}
	}
	read(`{"type":"session_id","data":"web"}`)
	read(`{"type":"ready",`)
	read(`> `)
	if err := conn.Write(ctx, websocket.MessageText, []byte(`{"type":"input","data":"echo $((40+2)); exit 3\r"}`)); err != nil {
		t.Fatal(err)
	}
	read(`42\r\n`)
	read(`{"type":"exit","data":{"code":3,`)
	_, _, err = conn.Read(ctx)
	var closed websocket.CloseError
	if !errors.As(err, &closed) || closed.Code != websocket.StatusNormalClosure || closed.Reason != "the shell ended with code 3" {
		t.Errorf(`got %v, want close code %d with "the shell ended with code 3"`, err, websocket.StatusNormalClosure)
	}
	conn.CloseNow()
}

// TestTypedCommandsAreReported: the owner of the service learns each command that a viewer typed, with its result, and none
// of an API caller.
func TestTypedCommandsAreReported(t *testing.T) {
	t.Parallel()
	ran := make(chan Ran, 8)
	s := newService(t, func(c *Config) { c.Ran = func(_ *op.Call, r Ran) { ran <- r } })
	p := connect(t, s, "typed")
	p.waitForPrompt()
	wantOutput(t, s, "typed", "echo of-the-caller", "of-the-caller")
	p.typeLine("echo of-$((40+2)); (exit 3)")
	r := <-ran
	if r.Command != "echo of-$((40+2)); (exit 3)" || r.Output != "of-42" || r.ExitCode != 3 || r.Session != "typed" || r.Began.IsZero() {
		t.Errorf(`got %+v, want the typed command with output "of-42" and exit code 3`, r)
	}
	p.typeLine("echo ask; read -s secret")
	p.waitFor("ask\r\n")
	p.typeLine("hunter2")
	if r := <-ran; r.Command != "echo ask; read -s secret" || strings.Contains(r.Command+r.Output, "hunter2") {
		t.Errorf("got %+v, want no text that was not shown", r)
	}
}
