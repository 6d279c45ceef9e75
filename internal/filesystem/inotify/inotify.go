// Package inotify is a thin layer over the kernel's file notification: watches, events with
// cookies, and queue overflow. It owns the descriptor. Its users interpret events and watch
// trees.
package inotify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Watcher is one inotify instance. Add and Remove may be called while another
// goroutine reads.
type Watcher struct {
	f      *os.File
	buf    []byte
	closed atomic.Bool

	mu    sync.Mutex // guards the deadline
	woken bool
}

// Event is one notification.
type Event struct {
	WD     int    // the watch, -1 for an overflow of the queue
	Mask   uint32 // unix.IN_…
	Cookie uint32 // the same for both halves of a rename
	Name   string // in the watched folder; empty: the folder itself
}

// New returns an instance. It fails with EMFILE if the user has reached
// fs.inotify.max_user_instances.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", err)
	}
	return &Watcher{f: os.NewFile(uintptr(fd), "inotify"), buf: make([]byte, 64<<10)}, nil
}

// Add watches a path. It fails with ENOSPC if the user has reached
// fs.inotify.max_user_watches.
func (w *Watcher) Add(path string, mask uint32) (int, error) {
	wd := -1
	err := w.control(func(fd int) (err error) {
		wd, err = unix.InotifyAddWatch(fd, path, mask)
		return err
	})
	if err != nil {
		return -1, &os.PathError{Op: "watch", Path: path, Err: err}
	}
	return wd, nil
}

// Remove ends a watch. It ignores watches that the kernel has already ended.
func (w *Watcher) Remove(wd int) {
	_ = w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(wd))
		return err
	})
}

// control prevents the descriptor from being closed, and its number from being reused, during use.
func (w *Watcher) control(use func(fd int) error) error {
	conn, err := w.f.SyscallConn()
	if err != nil {
		return w.closedError(err)
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = use(int(fd)) }); err != nil {
		return w.closedError(err)
	}
	return inner
}

// closedError returns os.ErrClosed for a closed instance, since some calls return other errors.
func (w *Watcher) closedError(err error) error {
	if w.closed.Load() {
		return os.ErrClosed
	}
	return err
}

// Read waits for events until the deadline; zero means no deadline. It returns
// os.ErrDeadlineExceeded if there are none by then, and os.ErrClosed after Close. Only one
// goroutine may read at a time.
func (w *Watcher) Read(deadline time.Time) ([]Event, error) {
	// A read after the deadline would not return pending events.
	if soon := time.Now().Add(time.Millisecond); !deadline.IsZero() && deadline.Before(soon) {
		deadline = soon
	}
	w.mu.Lock()
	if w.woken {
		w.woken = false
		w.mu.Unlock()
		return nil, os.ErrDeadlineExceeded
	}
	err := w.f.SetReadDeadline(deadline)
	w.mu.Unlock()
	if err != nil {
		return nil, w.closedError(err)
	}
	n, err := w.f.Read(w.buf)
	if err != nil {
		return nil, w.closedError(err)
	}
	return parse(w.buf[:n]), nil
}

// Wake ends the current or the next Read as if its deadline were reached.
func (w *Watcher) Wake() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.woken = true
	_ = w.f.SetReadDeadline(time.Unix(1, 0)) // an error means that it is closed
}

// Pending reports whether there are events to read, without waiting.
func (w *Watcher) Pending() bool {
	n := 0
	err := w.control(func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return err == nil && n > 0
}

// parse splits the data of the kernel into events.
func parse(b []byte) []Event {
	var events []Event
	for len(b) >= unix.SizeofInotifyEvent {
		name := int(binary.NativeEndian.Uint32(b[12:]))
		if name < 0 || name > len(b)-unix.SizeofInotifyEvent {
			break
		}
		e := Event{
			WD:     int(int32(binary.NativeEndian.Uint32(b))),
			Mask:   binary.NativeEndian.Uint32(b[4:]),
			Cookie: binary.NativeEndian.Uint32(b[8:]),
		}
		b = b[unix.SizeofInotifyEvent:]
		e.Name = string(bytes.TrimRight(b[:name], "\x00"))
		b = b[name:]
		events = append(events, e)
	}
	return events
}

// Close ends the instance and a waiting Read. It is idempotent.
func (w *Watcher) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	return w.f.Close()
}
