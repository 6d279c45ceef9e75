package display

import (
	"bufio"
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

	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// sockets is the folder of X sockets. Only an X server of root creates it.
const sockets = "/tmp/.X11-unix"

// maxSocket is the maximum path length of a unix socket, without the final zero byte.
const maxSocket = 107

// windowManager is the configuration of openbox. The default one has menus and shortcuts that would intercept input.
//
//go:embed openbox.xml
var windowManager []byte

// desktop is an X server with its window manager and our connection.
type desktop struct {
	s      *Service
	dir    string
	lock   *os.File
	server *proc.Process
	conn   *x11.Conn
	number int
	env    []string // for programs on the display
	rfb    string   // the VNC socket

	lent    chan struct{} // has an element after a loan was recorded
	lending sync.Mutex    // held while a loan is ended
	loan    *loan         // nil: none

	*proc.Lifetime
	cancel context.CancelFunc
	loops  sync.WaitGroup
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

// startTime bounds a start, which takes a tenth of a second on an idle machine.
const startTime = 30 * time.Second

// start starts a display. If it fails, it releases all resources.
func (s *Service) start(ctx context.Context) (*desktop, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not ready after %v", startTime))
	defer cancel()
	d := &desktop{s: s, dir: filepath.Join(s.cfg.State, "display"), Lifetime: proc.NewLifetime(), cancel: func() {},
		lent: make(chan struct{}, 1)}
	if err := d.start(ctx); err != nil {
		d.Stop()
		return nil, err
	}
	s.mu.Lock()
	if s.last != nil && s.last.Err() != nil {
		s.restarted = fmt.Sprintf("The display ended (%v) and was restarted; its windows were closed.", s.last.Err())
	}
	s.last = d
	s.mu.Unlock()
	return d, nil
}

func (d *desktop) start(ctx context.Context) error {
	if err := d.prepareFolder(); err != nil {
		return err
	}
	cookie := x11.NewCookie()
	authority := filepath.Join(d.dir, "authority")
	if err := x11.WriteAuthority(authority, 0, cookie); err != nil {
		return err
	}
	if err := d.startServer(ctx, authority); err != nil {
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
	if err := conn.AddLetters(ctx); err != nil {
		return err
	}
	// Without num lock, digits of the keypad need shift, and Chromium interprets them as arrows.
	if err := conn.Chord(ctx, "numlock"); err != nil {
		return err
	}
	life, cancel := context.WithCancel(context.Background())
	d.cancel = cancel
	d.loops.Go(func() { d.runWindowManager(life) })
	d.loops.Go(func() { d.watchServer(life) })
	d.loops.Go(func() { d.endLoans(life) })
	return nil
}

// prepareFolder creates and locks the display's folder: two sandboxes with one state folder must not share its files.
func (d *desktop) prepareFolder() error {
	if err := os.MkdirAll(d.dir, 0o700); err != nil {
		return fmt.Errorf("create the display's folder: %w", err)
	}
	d.rfb = filepath.Join(d.dir, "rfb")
	if len(d.rfb) > maxSocket {
		return fmt.Errorf("socket path %q is too long (limit %d bytes); choose a shorter state folder", d.rfb, maxSocket)
	}
	lock, err := lockfile.Open(filepath.Join(d.dir, "lock"))
	switch {
	case errors.Is(err, lockfile.ErrLocked):
		return fmt.Errorf("another sandbox uses the display in %q; give each sandbox its own state folder", d.dir)
	case err != nil:
		return fmt.Errorf("lock the display's folder: %w", err)
	}
	d.lock = lock
	if err := os.Remove(d.rfb); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the old VNC socket: %w", err)
	}
	if err := os.WriteFile(filepath.Join(d.dir, "openbox.xml"), windowManager, 0o600); err != nil {
		return fmt.Errorf("write the window manager's configuration: %w", err)
	}
	if os.Mkdir(sockets, 0o700) == nil {
		return os.Chmod(sockets, 0o777|os.ModeSticky)
	}
	return nil // it exists; otherwise the server reports the error
}

// startServer starts the X server and waits until it reports its display number.
func (d *desktop) startServer(ctx context.Context, authority string) error {
	ready, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	d.s.mu.Lock()
	size := d.s.size
	d.s.mu.Unlock()
	output := proc.NewCapture(2<<10, 2<<10)
	d.server, err = d.s.cfg.Runner.Start(proc.Command{
		Path: "Xtigervnc", ExtraFiles: []*os.File{w}, Stdout: output, Stderr: output,
		Args: []string{
			"-displayfd", "3", "-auth", authority, "-geometry", fmt.Sprintf("%dx%d", size.X, size.Y), "-depth", "24",
			"-nolisten", "tcp", "-noreset", "-desktop", "sandbox",
			"-rfbport", "-1", "-rfbunixpath", d.rfb, "-rfbunixmode", "0600", "-SecurityTypes", "None", "-AlwaysShared",
			// Selected text must not replace the clipboard of a viewer.
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
		return fmt.Errorf("start the X server: it %v: %s", d.server.Stop(), proc.LastLine(output.Bytes()))
	}
	return nil
}

func (d *desktop) socket() string { return fmt.Sprintf("%s/X%d", sockets, d.number) }

// runWindowManager keeps a window manager running. It restarts one that ends immediately, and waits longer if it keeps
// ending.
func (d *desktop) runWindowManager(life context.Context) {
	const stable, maxPause = 10 * time.Second, 5 * time.Second
	pause := time.Duration(0)
	for {
		began := time.Now()
		p, err := d.s.cfg.Runner.Start(proc.Command{
			Path: "openbox", Args: []string{"--sm-disable", "--config-file", filepath.Join(d.dir, "openbox.xml")},
			Env: append(d.s.cfg.Runner.Environ(), d.env...), Grace: time.Second,
		})
		if err != nil {
			d.s.cfg.Log.Warn("window manager failed to start", "error", err)
		} else {
			select {
			case <-p.Done():
				d.s.cfg.Log.Warn("window manager ended", "exit", p.Exit().String())
			case <-life.Done():
			}
			p.Stop()
		}
		if pause = max(50*time.Millisecond, min(2*pause, maxPause)); time.Since(began) > stable {
			pause = 50 * time.Millisecond
		}
		select {
		case <-life.Done():
			return
		case <-time.After(pause):
		}
	}
}

// watchServer ends the display when its server or our connection to it has ended.
func (d *desktop) watchServer(life context.Context) {
	select {
	case <-d.server.Done():
		d.End(fmt.Errorf("the X server %v", d.server.Exit()))
	case <-d.conn.Done():
		// The exit status of the server is more informative, and is known a moment later.
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		select {
		case <-d.server.Done():
			d.End(fmt.Errorf("the X server %v", d.server.Exit()))
		case <-timer.C:
			d.End(d.conn.Err())
		case <-life.Done():
		}
	case <-life.Done():
	}
}

// Stop ends the display and removes its files. It also cleans up after a failed start.
func (d *desktop) Stop() {
	d.End(nil)
	d.cancel()
	d.loops.Wait()
	if d.conn != nil {
		d.conn.Close()
	}
	if d.server != nil {
		if d.Err() == nil {
			d.server.Stop()
		} else {
			d.server.Kill()
		}
		d.removeServerFiles()
	}
	if d.lock != nil {
		os.Remove(d.rfb)
		_ = lockfile.Release(d.lock)
	}
}

// removeServerFiles removes the files of a killed server, unless another server has its number already.
func (d *desktop) removeServerFiles() {
	lock := fmt.Sprintf("/tmp/.X%d-lock", d.number)
	if pid, err := os.ReadFile(lock); err == nil && strings.TrimSpace(string(pid)) == strconv.Itoa(d.server.PID()) {
		os.Remove(d.socket())
		os.Remove(lock)
	}
}

// rememberSize sets the size of the next display.
func (s *Service) rememberSize(size image.Point) {
	s.mu.Lock()
	s.size = size
	s.mu.Unlock()
}
