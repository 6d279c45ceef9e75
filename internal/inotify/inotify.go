// Package inotify is the kernel's file notification, as it is: watches, events
// with cookies, and the overflow of the queue. It owns the descriptor; it
// refuses to interpret events or to watch trees, which is for its users.
package inotify

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
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
}

// Event is one notification.
type Event struct {
	WD     int    // the watch, -1 for an overflow of the queue
	Mask   uint32 // unix.IN_…
	Cookie uint32 // the same for both halves of a rename
	Name   string // in the watched folder; empty: the watched thing itself
}

// New makes an instance. It fails with EMFILE when the user has as many as
// fs.inotify.max_user_instances allows.
func New() (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open inotify: %w", err)
	}
	return &Watcher{f: os.NewFile(uintptr(fd), "inotify"), buf: make([]byte, 64<<10)}, nil
}

// Add watches a path. It fails with ENOSPC when the user has as many watches as
// fs.inotify.max_user_watches allows.
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

// Remove ends a watch. One that the kernel has ended already is no error.
func (w *Watcher) Remove(wd int) {
	_ = w.control(func(fd int) error {
		_, err := unix.InotifyRmWatch(fd, uint32(wd))
		return err
	})
}

// control keeps the descriptor from being closed, and its number from being
// taken by another file, while it is used.
func (w *Watcher) control(use func(fd int) error) error {
	conn, err := w.f.SyscallConn()
	if err != nil {
		return w.after(err)
	}
	var inner error
	if err := conn.Control(func(fd uintptr) { inner = use(int(fd)) }); err != nil {
		return w.after(err)
	}
	return inner
}

// after names the errors of a closed instance, which not every call does.
func (w *Watcher) after(err error) error {
	if w.closed.Load() {
		return os.ErrClosed
	}
	return err
}

// Read waits for events until the deadline; zero is no deadline. It returns
// os.ErrDeadlineExceeded when there are none by then, and os.ErrClosed after
// Close. One goroutine may read at a time.
func (w *Watcher) Read(deadline time.Time) ([]Event, error) {
	// After its deadline a file is not even looked at; events that are there must
	// be read all the same.
	if soon := time.Now().Add(time.Millisecond); !deadline.IsZero() && deadline.Before(soon) {
		deadline = soon
	}
	if err := w.f.SetReadDeadline(deadline); err != nil {
		return nil, w.after(err)
	}
	n, err := w.f.Read(w.buf)
	if err != nil {
		return nil, w.after(err)
	}
	return parse(w.buf[:n]), nil
}

// parse cuts what the kernel wrote into events.
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

// Close ends the instance and a Read that waits. It may be called more than once.
func (w *Watcher) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	return w.f.Close()
}
