package shell

import (
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/pty"
	"github.com/cove-sandbox/cove/internal/vt"
)

// The size of a terminal until a viewer says otherwise: wide, since programs cut
// their lines to it.
const (
	startCols = 200
	startRows = 50
)

const (
	// grace is the time between asking a shell to end and killing it.
	grace = 500 * time.Millisecond
	// drain is how long output is awaited after the end of a shell when programs
	// that it left behind still hold the terminal.
	drain = 250 * time.Millisecond
)

//go:embed rc.bash
var rcTemplate string

// terminal is one life of a session's shell.
type terminal struct {
	ss   *session
	p    *proc.Process
	tty  *pty.PTY
	path string        // of the files through which the shell gets things, without their endings
	done chan struct{} // closed when the shell has ended and its last output was taken
	keys sync.Mutex    // held while typing

	// hands is held while a command is given to the shell, so that nobody else
	// types in between.
	hands sync.Mutex
	marks []string // the latest keys; guarded by hands

	// What follows is guarded by the session's lock.
	screen  *vt.Terminal
	scan    scanner
	log     ring
	viewers map[*viewer]struct{}
	exit    proc.Exit // from done on

	key, next string        // the key of hooks, and of the command that is being handed over
	turn      chan struct{} // closed and replaced when one of the following changes
	prompts   int           // how often the shell came to its prompt
	prompted  time.Time     // when, if the prompt was not shown since
	shown     bool          // the shell waits for a command at its prompt
	more      bool          // the shell waits for the rest of a command
	entered   time.Time     // when Enter was pressed at the prompt
	current   *command
	doubt     bool // a prompt was shown while it ran

	mute    bool      // what comes is the line editor's echo of our keys
	changed time.Time // when something was printed last
	ps1     string
	dir     string
	jobs    int
	code    int // what the prompt said last
}

// launch starts a shell; bare leaves out the user's own startup file.
func (ss *session) launch(bare bool) (*terminal, error) {
	s := ss.service
	folder := filepath.Join(s.State, "shell")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, op.Errorf(op.Unavailable, "no shell can be started: make the state folder: %w", err)
	}
	bash, ok := s.Shell, s.Shell != ""
	if !ok {
		if bash, ok = s.Runner.Look("bash"); !ok {
			return nil, op.Errorf(op.Unavailable, "no shell can be started: bash is not installed; install the package bash")
		}
	}
	t := &terminal{
		ss: ss, path: filepath.Join(folder, strings.ToLower(rand.Text())), done: make(chan struct{}),
		viewers: map[*viewer]struct{}{}, key: rand.Text(), turn: make(chan struct{}), dir: ss.startDir(),
	}
	t.screen = vt.New(startCols, startRows, vt.Options{Limit: keptOutput, Reply: t.answer})
	if err := os.WriteFile(t.path+".rc", t.startup(bare), 0o600); err != nil {
		return nil, op.Errorf(op.Unavailable, "no shell can be started: write its startup file: %w", err)
	}
	if err := t.start(bash); err != nil {
		t.removeFiles()
		return nil, err
	}
	return t, nil
}

// startup is the startup file.
func (t *terminal) startup(bare bool) []byte {
	user := "if [[ -f ~/.bashrc ]]; then . ~/.bashrc; fi"
	if bare {
		user = ""
	}
	return []byte(strings.NewReplacer("@key@", t.key, "@file@", quote(t.path+".cmd"), "@user@", user).Replace(rcTemplate))
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func (t *terminal) start(bash string) error {
	tty, err := pty.Open(startCols, startRows)
	if err != nil {
		return op.Errorf(op.Unavailable, "no shell can be started: %w", err)
	}
	t.tty = tty
	t.setModes()
	s := t.ss.service
	t.p, err = s.Runner.Start(proc.Command{
		Path: bash, Argv0: "bash", Args: []string{"--rcfile", t.path + ".rc", "-i"},
		Dir: t.dir, Env: s.environ(t.dir, bash), TTY: tty.Slave(), Grace: grace,
	})
	if err != nil {
		tty.Close()
		return op.Errorf(op.Unavailable, "no shell can be started: %w", err)
	}
	s.tasks.Go(t.read)
	s.tasks.Go(func() {
		<-t.p.Done()
		// Held until now, so that a shell which closes its streams does not look
		// as if it had ended. What is left behind in the background may hold it on.
		tty.CloseSlave()
		tty.Master().SetReadDeadline(time.Now().Add(drain))
	})
	return nil
}

// environ is a shell's environment.
func (s *Service) environ(dir, bash string) []string {
	env := s.Runner.Environ()
	set := func(key, value string, only bool) {
		for i, pair := range env {
			if strings.HasPrefix(pair, key+"=") {
				if !only {
					env[i] = key + "=" + value
				}
				return
			}
		}
		env = append(env, key+"="+value)
	}
	set("HOME", s.Home, false)
	set("PWD", dir, false)
	set("SHELL", bash, false)
	set("TERM", "xterm-256color", false)
	set("COLORTERM", "truecolor", false)
	// Without it the line editor takes every byte for a character.
	if !strings.Contains("\n"+strings.Join(env, "\n"), "\nLC_ALL=") {
		set("LANG", "C.UTF-8", true)
	}
	return env
}

// read takes what is printed until the shell has ended.
func (t *terminal) read() {
	buf := make([]byte, 32<<10)
	for {
		n, err := t.tty.Read(buf)
		if n > 0 {
			t.feed(buf[:n])
		}
		if err != nil {
			break
		}
	}
	<-t.p.Done()
	t.tty.Close()
	t.removeFiles()
	ss := t.ss
	ss.mu.Lock()
	t.scan.flush(t)
	t.exit = t.p.Exit()
	if c := t.current; c != nil && c.hasBegun() {
		if c.reason == "" {
			c.reason = terminated
		}
		t.finish(c, t.exit.Code)
	}
	if ss.terminal == t {
		ss.terminal = nil
	}
	close(t.done)
	t.ring()
	ss.mu.Unlock()
	ss.service.ended(ss, t)
}

func (t *terminal) removeFiles() {
	files, _ := filepath.Glob(t.path + ".*")
	for _, f := range files {
		os.Remove(f)
	}
}

// feed takes a piece of what was printed.
func (t *terminal) feed(p []byte) {
	t.ss.mu.Lock()
	t.scan.feed(p, t)
	t.ring()
	t.ss.mu.Unlock()
	t.pace()
}

// text, query and hook are called by the scanner; the lock is held.
func (t *terminal) text(b []byte) {
	if !t.mute {
		t.changed = time.Now()
		t.show(b)
	}
}

func (t *terminal) query(b []byte) {
	if !t.mute {
		t.screen.Write(b)
	}
}

// show puts something on the screen and before the viewers.
func (t *terminal) show(b []byte) {
	t.screen.Write(b)
	t.log.write(b)
}

// answer types what the terminal answers to a program's question. It is called
// with the lock held and never waits: a program that does not read its input
// loses the answer.
func (t *terminal) answer(b []byte) {
	conn, err := t.tty.Master().SyscallConn()
	if err != nil {
		return
	}
	conn.Control(func(fd uintptr) { syscall.Write(int(fd), b) })
}

// press types keys. It waits while the terminal's input is full.
func (t *terminal) press(keys string, patience time.Duration) error {
	t.keys.Lock()
	defer t.keys.Unlock()
	m := t.tty.Master()
	m.SetWriteDeadline(time.Now().Add(patience))
	n, err := t.tty.Write([]byte(keys))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return op.Errorf(op.Unavailable, "the program does not read what is typed: it took %d of %d bytes; wait until it does, or end it", n, len(keys))
	}
	return errEnded
}

// enter types what a person or a caller types.
func (t *terminal) enter(keys string, patience time.Duration) error {
	t.hands.Lock()
	defer t.hands.Unlock()
	if strings.ContainsAny(keys, "\r\n") {
		t.ss.mu.Lock()
		t.entered = time.Now()
		t.ss.mu.Unlock()
	}
	if i := strings.LastIndexByte(keys, '\x03'); i >= 0 {
		if mode, err := t.tty.Mode(); err == nil && mode.Signals {
			if err := t.interrupt(patience); err != nil {
				return err
			}
			keys = keys[i+1:]
		}
	}
	if keys == "" {
		return nil
	}
	return t.press(keys, patience)
}

// interrupt presses Ctrl-C, which also takes back what was typed before it and not
// read yet.
func (t *terminal) interrupt(patience time.Duration) error {
	t.tty.DropInput()
	return t.press("\x03", patience)
}

// resize sets the terminal's size.
func (t *terminal) resize(cols, rows int) error {
	if cols < 1 || rows < 1 || cols > vt.MaxCols || rows > vt.MaxRows {
		return op.Errorf(op.Invalid, "a terminal has 1 to %d columns and 1 to %d rows, not %d by %d", vt.MaxCols, vt.MaxRows, cols, rows)
	}
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.screen.Resize(cols, rows)
	return t.tty.Resize(cols, rows)
}

// postprocessed is false after "stty raw" and its like: lines then form a staircase.
func (t *terminal) postprocessed() bool {
	ok := true
	if conn, err := t.tty.Master().SyscallConn(); err == nil {
		conn.Control(func(fd uintptr) {
			if tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
				ok = tio.Oflag&(unix.OPOST|unix.ONLCR) == unix.OPOST|unix.ONLCR
			}
		})
	}
	return ok
}

// setModes lets Backspace erase characters, not bytes, while a program reads lines,
// and keeps Ctrl-C from throwing away what was printed and not read yet: what the
// hooks say would be lost.
func (t *terminal) setModes() {
	if conn, err := t.tty.Slave().SyscallConn(); err == nil {
		conn.Control(func(fd uintptr) {
			if tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
				tio.Iflag |= unix.IUTF8
				tio.Lflag |= unix.NOFLSH
				unix.IoctlSetTermios(int(fd), unix.TCSETS, tio)
			}
		})
	}
}

// stop ends the shell and everything in its terminal's session.
func (t *terminal) stop() {
	t.p.Stop()
	<-t.done
}

// signal reaches the group that runs in the foreground and tells its number, which
// is 0 when the shell itself is there.
func (t *terminal) signal(sig syscall.Signal) (group int, err error) {
	group, err = t.tty.Foreground()
	if err != nil || group <= 0 || group == t.p.PID() {
		return 0, err
	}
	// The leader may have ended while its group lives on; a leader in another
	// session means that the number is no longer ours.
	if sid, err := unix.Getsid(group); err == nil && sid != t.p.PID() {
		return 0, fmt.Errorf("signal the foreground group: %w", os.ErrProcessDone)
	}
	return group, syscall.Kill(-group, sig)
}
