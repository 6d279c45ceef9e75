package vt_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/pty"
	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
)

// patience is how long a program may take on a busy machine.
const patience = 3 * time.Minute

// program is a real program on a pseudo-terminal that is connected to a Terminal.
type program struct {
	t    *testing.T
	pty  *pty.PTY
	mu   sync.Mutex
	term *vt.Terminal
	news chan struct{} // closed and replaced by every change
	done chan struct{}
}

func start(t *testing.T, cols, rows int, name string, args ...string) *program {
	t.Helper()
	testenv.Need(t, name)
	tty, err := pty.Open(cols, rows)
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, pty: tty, news: make(chan struct{}), done: make(chan struct{})}
	p.term = vt.New(cols, rows, vt.Options{Reply: func(b []byte) { tty.Write(b) }})
	cmd := exec.Command(name, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = []string{"TERM=xterm-256color", "LANG=C.UTF-8", "PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir, "PS1=$ ", "LESS="}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty.Slave(), tty.Slave(), tty.Slave()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.CloseSlave()
	go func() {
		defer close(p.done)
		p.read()
		cmd.Wait()
	}()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		tty.Close()
		<-p.done
	})
	return p
}

func (p *program) read() {
	buf := make([]byte, 4<<10)
	for {
		n, err := p.pty.Read(buf)
		p.mu.Lock()
		p.term.Write(buf[:n])
		close(p.news)
		p.news = make(chan struct{})
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// until waits for a state of the terminal.
func (p *program) until(what string, ok func(*vt.Terminal) bool) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	for {
		p.mu.Lock()
		done, news := ok(p.term), p.news
		screen := strings.Join(p.term.Screen(), "\n")
		p.mu.Unlock()
		if done {
			return
		}
		select {
		case <-news:
		case <-ctx.Done():
			p.t.Fatalf("got no %s within %v; the screen shows:\n%s", what, patience, screen)
		}
	}
}

func (p *program) shows(text string) {
	p.t.Helper()
	p.until(text, func(vt *vt.Terminal) bool { return strings.Contains(strings.Join(vt.Screen(), "\n"), text) })
}

func (p *program) types(s string) {
	p.t.Helper()
	if _, err := p.pty.Write([]byte(s)); err != nil {
		p.t.Fatal(err)
	}
}

// text waits for the program's end and returns its output.
func (p *program) text() string {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(patience):
		p.t.Fatalf("the program did not end within %v", patience)
	}
	return p.term.Text().String()
}

func TestCommandsText(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ script, want string }{
		"echo":          {"echo hello", "hello\n"},
		"no newline":    {"printf hello", "hello"},
		"long line":     {"head -c 1000 /dev/zero | tr '\\0' x", strings.Repeat("x", 1000)},
		"many lines":    {"seq 1000", lines(1000)},
		"tabs":          {"printf 'a\\tb\\tc\\n\\td\\n'", "a\tb\tc\n\td\n"},
		"colors":        {"ls --color=always -d /", "/\n"},
		"grep":          {"echo a long line with a needle in it | grep --color=always needle", "a long line with a needle in it\n"},
		"progress":      {"for i in 1 2 3; do printf '\\r%d%%' $i; done; echo", "3%\n"},
		"tput":          {"printf abc; tput cub 2; tput el; echo x", "ax\n"},
		"clear":         {"echo a; clear; echo b", "b\n"},
		"fullscreen":    {"echo a; tput smcup; echo vim; tput cup 5 5; echo x; tput rmcup; echo b", "a\nb\n"},
		"UTF-8":         {"printf '世界 é e\\u0301 👩\\u200d👩\\n'", "世界 é e\u0301 👩\u200d👩\n"},
		"binary":        {"printf 'a\\0b\\377c\\n'", "ab\ufffdc\n"},
		"unended":       {"printf 'a\\033]title'; printf '\\033[0mok\\n'", "aok\n"},
		"cursor report": {"stty raw -echo; printf 'ab\\033[6n'; IFS= read -rd R x; stty sane; printf '\\r\\n%q\\n' \"$x\"", "ab\n$'\\E[1;3'\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := start(t, 20, 5, "bash", "--norc", "-c", c.script).text(); got != c.want {
				t.Errorf("%s\n got  %q\n want %q", c.script, got, c.want)
			}
		})
	}
}

func lines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintln(&b, i+1)
	}
	return b.String()
}

func TestVim(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file.txt")
	p := start(t, 60, 12, "bash", "--norc", "-c", "echo before; vim -u NONE -N "+file+"; echo after")
	p.shows("[New")
	p.types("ihello 世界\rsecond line\x1b")
	p.shows("hello 世界\nsecond line\n~")
	p.until("the alternate screen", (*vt.Terminal).Alt)
	p.mu.Lock()
	p.pty.Resize(40, 8)
	p.term.Resize(40, 8)
	p.mu.Unlock()
	p.types(":set number\r")
	p.shows("1 hello 世界\n  2 second line")
	p.types("yyp:wq\r")
	if got, want := p.text(), "before\nafter\n"; got != want {
		t.Errorf("got text %q after vim, want %q", got, want)
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != "hello 世界\nsecond line\nsecond line\n" {
		t.Errorf(`got file %q, %v, want "hello 世界\nsecond line\nsecond line\n"`, got, err)
	}
}

func TestLess(t *testing.T) {
	t.Parallel()
	p := start(t, 30, 6, "bash", "--norc", "-c", "echo before; seq 100 | less; echo after")
	p.shows("1\n2\n3\n4\n5\n:")
	p.types("G")
	p.shows("96\n97\n98\n99\n100\n(END)")
	p.types("bb")
	p.shows("86\n87\n88\n89\n90\n:")
	p.types("/42\r")
	p.types("g/50\r")
	p.shows("50\n51\n52\n53\n54\n:")
	p.types("q")
	if got, want := p.text(), "before\nafter\n"; got != want {
		t.Errorf("got text %q after less, want %q", got, want)
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	p := start(t, 100, 20, "top", "-d", "1")
	p.shows("PID USER")
	p.shows("load average")
	p.types("q")
	if got := p.text(); !strings.Contains(got, "load average") {
		t.Errorf(`got text %q after top, want "load average" in it`, got)
	}
}

// TestReadline edits a long line, which bash redraws with cursor movements.
func TestReadline(t *testing.T) {
	t.Parallel()
	p := start(t, 20, 6, "bash", "--norc", "--noprofile", "-i")
	p.shows("$")
	p.types("echo 0123456789 0123456789 world")
	p.shows("world")
	p.types("\x17moon\x01\x0b\x19\x02\x02\x7f\r") // delete the word, cut and paste the line, edit inside it
	p.shows("0123456789 012345678\n9 mon\n$")
	p.types("exit\r")
	if got := p.text(); !strings.Contains(got, "\n0123456789 0123456789 mon\n") {
		t.Errorf(`got %q, want "\n0123456789 0123456789 mon\n" in it`, got)
	}
}
