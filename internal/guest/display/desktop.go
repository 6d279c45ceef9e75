package display

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"image"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/x11"
)

// sockets is where X keeps its sockets. Only root's X server makes the folder itself.
const sockets = "/tmp/.X11-unix"

// maxSocket is the longest path that the kernel takes for a unix socket, less its final zero.
const maxSocket = 107

// windowManager is openbox's configuration: its own would put menus and shortcuts between the agent and the programs.
//
//go:embed openbox.xml
var windowManager []byte

// desktop is one X server, the window manager on it, and our connection to it.
type desktop struct {
	s      *Service
	dir    string
	lock   *os.File
	server *proc.Process
	conn   *x11.Conn
	number int
	env    []string // for programs on it
	rfb    string   // the VNC socket

	end   context.CancelFunc
	parts sync.WaitGroup // the goroutines
	once  sync.Once
	done  chan struct{}
	why   error // set before done is closed; nil when it was asked to stop
}

func (s *Service) installed() error {
	var missing []string
	for program, pkg := range map[string]string{"Xtigervnc": "tigervnc-standalone-server", "openbox": "openbox"} {
		if _, ok := s.cfg.Runner.Look(program); !ok {
			missing = append(missing, pkg)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("install the package %s", strings.Join(missing, " and "))
	}
	return nil
}

// startTime bounds a start, which takes a tenth of a second on a machine that is not overloaded.
const startTime = 30 * time.Second

// start brings up a display. Whatever fails, nothing of it is left.
func (s *Service) start(ctx context.Context) (*desktop, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not ready after %v", startTime))
	defer cancel()
	d := &desktop{s: s, dir: filepath.Join(s.cfg.State, "display"), done: make(chan struct{}), end: func() {}}
	if err := d.begin(ctx); err != nil {
		d.Stop()
		return nil, err
	}
	s.mu.Lock()
	if s.last != nil && s.last.why != nil {
		s.news = fmt.Sprintf("The display had ended (%v) and was started anew: windows that were open on it are gone.", s.last.why)
	}
	s.last = d
	s.mu.Unlock()
	return d, nil
}

func (d *desktop) begin(ctx context.Context) error {
	if err := d.prepare(); err != nil {
		return err
	}
	cookie := x11.NewCookie()
	authority := filepath.Join(d.dir, "authority")
	if err := x11.WriteAuthority(authority, 0, cookie); err != nil {
		return err
	}
	if err := d.serve(ctx, authority); err != nil {
		return err
	}
	if err := x11.WriteAuthority(authority, d.number, cookie); err != nil {
		return err
	}
	d.env = []string{"DISPLAY=:" + strconv.Itoa(d.number), "XAUTHORITY=" + authority}
	conn, err := x11.Dial(ctx, x11.Config{Socket: d.socket(), Cookie: cookie})
	if err != nil {
		return err
	}
	d.conn = conn
	// Without the lock, digits of the keypad need shift, and Chromium takes them for arrows all the same.
	if err := conn.Chord(ctx, "numlock"); err != nil {
		return err
	}
	life, end := context.WithCancel(context.Background())
	d.end = end
	d.parts.Go(func() { d.manage(life) })
	d.parts.Go(func() { d.watch(life) })
	return nil
}

// prepare makes the folder and claims it: two servers with one state folder must not share a display's files.
func (d *desktop) prepare() error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("make the display's folder: %w", err)
	}
	d.rfb = filepath.Join(d.dir, "rfb")
	if len(d.rfb) > maxSocket {
		return fmt.Errorf("the path %s is too long for a socket (at most %d bytes): choose a shorter state folder", d.rfb, maxSocket)
	}
	lock, err := os.OpenFile(filepath.Join(d.dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("claim the display's folder: %w", err)
	}
	d.lock = lock
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another sandbox has its display in %s: give this one a state folder of its own", d.dir)
	}
	if err := os.Remove(d.rfb); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old VNC socket: %w", err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "openbox.xml"), windowManager, 0o600); err != nil {
		return fmt.Errorf("write the window manager's configuration: %w", err)
	}
	if os.Mkdir(sockets, 0o700) == nil {
		return os.Chmod(sockets, 0o777|os.ModeSticky)
	}
	return nil // it exists, or the server will say why it cannot be used
}

// serve starts the X server and waits until it says which display it is.
func (d *desktop) serve(ctx context.Context, authority string) error {
	ready, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	d.s.mu.Lock()
	size := d.s.size
	d.s.mu.Unlock()
	said := proc.NewCapture(2<<10, 2<<10)
	d.server, err = d.s.cfg.Runner.Start(proc.Command{
		Path: "Xtigervnc", ExtraFiles: []*os.File{w}, Stdout: said, Stderr: said,
		Args: []string{
			"-displayfd", "3", "-auth", authority, "-geometry", fmt.Sprintf("%dx%d", size.X, size.Y), "-depth", "24",
			"-nolisten", "tcp", "-noreset", "-desktop", "sandbox",
			"-rfbport", "-1", "-rfbunixpath", d.rfb, "-rfbunixmode", "0600", "-SecurityTypes", "None", "-AlwaysShared",
			// What is only marked must not replace what a viewer has copied.
			"-SendPrimary=0", "-SetPrimary=0",
		},
	})
	w.Close()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })()
	line, err := bufio.NewReader(io.LimitReader(ready, 64)).ReadString('\n')
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err == nil {
		d.number, err = strconv.Atoi(strings.TrimSpace(line))
	}
	if err != nil {
		return fmt.Errorf("start the X server: %w: %s", d.gone(), lastLine(said.Bytes()))
	}
	return nil
}

// gone tells how the server ended, which it must have.
func (d *desktop) gone() error {
	return fmt.Errorf("it %v", d.server.Stop())
}

// lastLine is what a program said last, which is usually why it ended.
func lastLine(said []byte) string {
	lines := bytes.Split(bytes.TrimSpace(said), []byte("\n"))
	for i := len(lines) - 1; i >= 0; i-- {
		if line := strings.TrimSpace(string(lines[i])); line != "" {
			return strings.ToValidUTF8(line, "?")
		}
	}
	return "it said nothing"
}

func (d *desktop) socket() string { return fmt.Sprintf("%s/X%d", sockets, d.number) }

// manage keeps a window manager on the display. One that dies takes nothing with it and is replaced at once; one that dies
// again and again is replaced less and less often.
func (d *desktop) manage(life context.Context) {
	const calm, most = 10 * time.Second, 5 * time.Second
	pause := time.Duration(0)
	for {
		began := time.Now()
		p, err := d.s.cfg.Runner.Start(proc.Command{
			Path: "openbox", Args: []string{"--sm-disable", "--config-file", filepath.Join(d.dir, "openbox.xml")},
			Env: append(d.s.cfg.Runner.Environ(), d.env...), Grace: time.Second,
		})
		if err != nil {
			d.s.cfg.Log.Warn("window manager does not start", "error", err)
		} else {
			select {
			case <-p.Done():
				d.s.cfg.Log.Warn("window manager ended", "exit", p.Exit().String())
			case <-life.Done():
			}
			p.Stop()
		}
		if pause = max(50*time.Millisecond, min(2*pause, most)); time.Since(began) > calm {
			pause = 50 * time.Millisecond
		}
		select {
		case <-life.Done():
			return
		case <-time.After(pause):
		}
	}
}

// watch notices the death of the display.
func (d *desktop) watch(life context.Context) {
	select {
	case <-d.server.Done():
		d.fail(fmt.Errorf("the X server %v", d.server.Exit()))
	case <-d.conn.Done():
		// The server's own end tells more, and is known a moment later.
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		select {
		case <-d.server.Done():
			d.fail(fmt.Errorf("the X server %v", d.server.Exit()))
		case <-timer.C:
			d.fail(d.conn.Err())
		case <-life.Done():
		}
	case <-life.Done():
	}
}

// fail declares the display dead; it is stopped and replaced by whoever manages it.
func (d *desktop) fail(why error) {
	d.once.Do(func() {
		d.why = why
		close(d.done)
	})
}

// Done is closed when the display is dead.
func (d *desktop) Done() <-chan struct{} { return d.done }

func (d *desktop) over() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// Err tells why it is dead.
func (d *desktop) Err() error {
	if !d.over() {
		return nil
	}
	return d.why
}

// Stop ends it and removes what it left. It serves a display that came up only half, too.
func (d *desktop) Stop() {
	d.fail(nil)
	d.end()
	d.parts.Wait()
	if d.conn != nil {
		d.conn.Close()
	}
	if d.server != nil {
		if d.why == nil {
			d.server.Stop()
		} else {
			d.server.Kill()
		}
		d.sweep()
	}
	if d.lock != nil {
		os.Remove(d.rfb)
		d.lock.Close()
	}
}

// sweep removes the files of a server that was killed, if they are still its own: the next one may have the number.
func (d *desktop) sweep() {
	lock := fmt.Sprintf("/tmp/.X%d-lock", d.number)
	if pid, err := os.ReadFile(lock); err == nil && strings.TrimSpace(string(pid)) == strconv.Itoa(d.server.PID()) {
		os.Remove(d.socket())
		os.Remove(lock)
	}
}

// resized remembers the size for the next display.
func (s *Service) resized(size image.Point) {
	s.mu.Lock()
	s.size = size
	s.mu.Unlock()
}
