package shell

import (
	"crypto/rand"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
	"github.com/cove-sandbox/cove/internal/guest/internal/pty"
	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// The size of a terminal until a viewer changes it. It is wide, because programs truncate
// their lines to it.
const (
	startCols = 200
	startRows = 50
)

const (
	// grace is the time between TERM and KILL when a shell is ended.
	grace = 500 * time.Millisecond
	// drain is how long to wait for output after the end of a shell while background
	// processes keep the terminal open.
	drain = 250 * time.Millisecond
)

//go:embed rc.bash
var rcTemplate string

// terminal is one shell of a session, from its start to its end.
type terminal struct {
	ss    *Session
	p     *proc.Process
	tty   *pty.PTY
	input *input
	path  string        // prefix of the files that pass commands to the shell
	done  chan struct{} // closed when the shell has ended and its last output was read

	// submitLock is held while a command is passed to the shell, so that no viewer types
	// in between.
	submitLock sync.Mutex
	marks      marks // guarded by submitLock

	// What follows is guarded by the session's lock.
	display *display
	scan    scanner
	exit    proc.Exit // set when done is closed

	key, next string        // keys of the hooks and of the command that is being passed
	turn      chan struct{} // closed and replaced if one of the following fields changes
	prompts   int           // number of prompts so far
	prompted  time.Time     // when the shell was about to show its prompt; zero: the prompt was shown
	shown     bool          // the shell waits for a command at its prompt
	more      bool          // the shell waits for the rest of a command
	entered   time.Time     // when Enter was pressed at the prompt
	current   *command
	typist    *op.Call // of the viewer that typed last
	doubt     bool     // a prompt was shown while it ran, so it may have ended

	mute    bool      // output is the line editor's echo of the loading keys
	changed time.Time // time of the last output
	ps1     string
	dir     string
	jobs    int
	code    int // exit code at the last prompt
}

// startShell starts a shell; bare skips the user's startup file.
func (ss *Session) startShell(bare bool) (*terminal, error) {
	s := ss.service
	folder := filepath.Join(s.State, "shell")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, op.Errorf(op.Unavailable, "cannot start a shell: create the state folder: %w", err)
	}
	bash, ok := s.Shell, s.Shell != ""
	if !ok {
		if bash, ok = s.Runner.Look("bash"); !ok {
			return nil, op.Errorf(op.Unavailable, "cannot start a shell: bash is not installed; install the bash package")
		}
	}
	path := filepath.Join(folder, strings.ToLower(rand.Text()))
	t := &terminal{
		ss: ss, path: path, done: make(chan struct{}), key: rand.Text(), turn: make(chan struct{}), dir: ss.startDir(),
		input: &input{}, marks: marks{prefix: path + ".cmd"},
		display: &display{mu: &ss.mu, viewers: map[*viewer]struct{}{}, bells: map[chan struct{}]struct{}{}},
	}
	t.display.screen = vt.New(startCols, startRows, vt.Options{Limit: keptOutput, Reply: t.input.reply})
	if err := os.WriteFile(t.path+".rc", t.startupFile(bare), 0o600); err != nil {
		return nil, op.Errorf(op.Unavailable, "cannot start a shell: write its startup file: %w", err)
	}
	if err := t.start(bash); err != nil {
		t.removeFiles()
		return nil, err
	}
	return t, nil
}

// startupFile returns the text of the startup file.
func (t *terminal) startupFile(bare bool) []byte {
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
		return op.Errorf(op.Unavailable, "cannot start a shell: %w", err)
	}
	t.tty, t.input.tty = tty, tty
	t.input.setModes()
	s := t.ss.service
	t.p, err = s.Runner.Start(proc.Command{
		Path: bash, Argv0: "bash", Args: []string{"--rcfile", t.path + ".rc", "-i"},
		Dir: t.dir, Env: s.environ(t.dir, bash), TTY: tty.Slave(), Grace: grace,
	})
	if err != nil {
		tty.Close()
		return op.Errorf(op.Unavailable, "cannot start a shell: %w", err)
	}
	s.tasks.Go(t.read)
	s.tasks.Go(func() {
		<-t.p.Done()
		// Keep the slave open until here, so that a shell that closes its streams does not
		// appear to have ended. Background processes may also keep it open.
		_ = tty.CloseSlave()
		tty.Master().SetReadDeadline(time.Now().Add(drain))
	})
	return nil
}

// environ returns the environment of a shell.
func (s *Service) environ(dir, bash string) []string {
	env := s.Runner.Environ()
	env = environ.Set(env, "HOME", s.Home)
	env = environ.Set(env, "PWD", dir)
	env = environ.Set(env, "SHELL", bash)
	env = environ.Set(env, "TERM", "xterm-256color")
	env = environ.Set(env, "COLORTERM", "truecolor")
	_, all := environ.Lookup(env, "LC_ALL")
	_, lang := environ.Lookup(env, "LANG")
	if !all && !lang { // without a locale the line editor handles bytes, not characters
		env = environ.Set(env, "LANG", "C.UTF-8")
	}
	return env
}

// read processes output until the shell has ended.
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
	if c := t.current; c != nil && c.hasStarted() {
		if c.reason == "" {
			c.reason = terminated
		}
		t.finishCommand(c, t.exit.Code)
	}
	if ss.terminal == t {
		ss.terminal = nil
	}
	close(t.done)
	t.display.wakeViewers()
	ss.mu.Unlock()
	ss.service.shellEnded(ss, t)
}

func (t *terminal) removeFiles() {
	files, _ := filepath.Glob(t.path + ".*")
	for _, f := range files {
		os.Remove(f)
	}
}

// feed processes a piece of output.
func (t *terminal) feed(p []byte) {
	t.ss.mu.Lock()
	t.scan.feed(p, t)
	t.display.wakeViewers()
	t.ss.mu.Unlock()
	t.display.pace()
}

// text, query and handleHook are called by the scanner; the lock is held.
func (t *terminal) text(b []byte) {
	if !t.mute {
		t.changed = time.Now()
		t.display.show(b)
	}
}

func (t *terminal) query(b []byte) {
	if !t.mute {
		_, _ = t.display.screen.Write(b)
	}
}

// typeInput types input of a viewer or an API caller.
func (t *terminal) typeInput(keys string, patience time.Duration) error {
	t.submitLock.Lock()
	defer t.submitLock.Unlock()
	if strings.ContainsAny(keys, "\r\n") {
		t.ss.mu.Lock()
		t.entered = time.Now()
		t.ss.mu.Unlock()
	}
	if i := strings.LastIndexByte(keys, '\x03'); i >= 0 {
		if mode, err := t.tty.Mode(); err == nil && mode.Signals {
			if err := t.input.interrupt(patience); err != nil {
				return err
			}
			keys = keys[i+1:]
		}
	}
	if keys == "" {
		return nil
	}
	return t.input.typeKeys(keys, patience)
}

// resize sets the terminal's size.
func (t *terminal) resize(cols, rows int) error {
	if cols < 1 || rows < 1 || cols > vt.MaxCols || rows > vt.MaxRows {
		return op.Errorf(op.Invalid, "invalid terminal size %[3]d by %[4]d; use 1 to %[1]d columns and 1 to "+
			"%[2]d rows", vt.MaxCols, vt.MaxRows, cols, rows)
	}
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.display.screen.Resize(cols, rows)
	return t.tty.Resize(cols, rows)
}

// stop ends the shell and all processes of its terminal.
func (t *terminal) stop() {
	t.p.Stop()
	<-t.done
}

// signal signals the foreground process group and returns its ID, or 0 if the shell
// itself is in the foreground.
func (t *terminal) signal(sig syscall.Signal) (group int, err error) {
	group, err = t.tty.Foreground()
	if err != nil || group <= 0 || group == t.p.PID() {
		return 0, err
	}
	// The leader may have ended before its group. A leader in another session means that the
	// ID was reused.
	if sid, err := unix.Getsid(group); err == nil && sid != t.p.PID() {
		return 0, fmt.Errorf("signal the foreground group: %w", os.ErrProcessDone)
	}
	return group, syscall.Kill(-group, sig)
}
