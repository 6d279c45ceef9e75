package proc

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// drainIdle is the time for which a writer may block before the process stops waiting for
// it.
const drainIdle = 2 * time.Second

// plumbing is the streams of a child before and right after the fork.
type plumbing struct {
	files []uintptr // descriptors of the child, in order
	own   []*os.File
	child []int // ends of pipes that only the child needs
	null  *os.File
	in    *input
	outs  []*output
}

// openStreams opens the files and pipes of the command's streams.
func (r *Runner) openStreams(c Command) (*plumbing, error) {
	pl := &plumbing{}
	if err := r.connect(pl, c); err != nil {
		pl.release()
		pl.abandon()
		return nil, err
	}
	return pl, nil
}

func (r *Runner) connect(pl *plumbing, c Command) error {
	if c.TTY != nil {
		if c.Stdin != nil || c.Stdout != nil || c.Stderr != nil {
			return errors.New("a TTY replaces all three streams; leave them nil")
		}
		for range 3 {
			if err := pl.addFile("tty", c.TTY); err != nil {
				return err
			}
		}
	} else if err := r.connectStreams(pl, c); err != nil {
		return err
	}
	for i, f := range c.ExtraFiles {
		if err := pl.addFile(fmt.Sprintf("extra file %d", i), f); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) connectStreams(pl *plumbing, c Command) error {
	var err error
	switch in := c.Stdin.(type) {
	case nil:
		err = pl.addNull()
	case *os.File:
		err = pl.addFile("stdin", in)
	default:
		var f *os.File
		if f, err = pl.pipe(false); err == nil {
			pl.in = &input{f: f, r: in}
		}
	}
	if err != nil {
		return err
	}
	if err := r.connectOutput(pl, "stdout", c.Stdout); err != nil {
		return err
	}
	if same(c.Stdout, c.Stderr) { // one pipe keeps the order of what is written to both
		pl.files = append(pl.files, pl.files[1])
		return nil
	}
	return r.connectOutput(pl, "stderr", c.Stderr)
}

func (r *Runner) connectOutput(pl *plumbing, name string, w io.Writer) error {
	switch w := w.(type) {
	case nil:
		return pl.addNull()
	case *os.File:
		return pl.addFile(name, w)
	}
	f, err := pl.pipe(true)
	if err != nil {
		return err
	}
	pl.outs = append(pl.outs, &output{
		f: f, w: w, log: r.log, bufs: &r.bufs,
		drained: make(chan struct{}), ended: make(chan struct{}),
	})
	return nil
}

// same reports whether both are the same writer. Incomparable types never are the same.
func same(a, b io.Writer) (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false
		}
	}()
	return a != nil && a == b
}

func (pl *plumbing) addFile(name string, f *os.File) error {
	fd := f.Fd() // sets it to blocking, as programs expect their descriptors
	if fd == ^uintptr(0) {
		return fmt.Errorf("pass %s to the child: %w", name, os.ErrClosed)
	}
	pl.files = append(pl.files, fd)
	return nil
}

func (pl *plumbing) addNull() error {
	if pl.null == nil {
		f, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		pl.null = f
	}
	return pl.addFile("null", pl.null)
}

// pipe gives the child one end and returns the other, whose reads and writes can
// be interrupted.
func (pl *plumbing) pipe(childWrites bool) (*os.File, error) {
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC); err != nil {
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	child, own := fds[0], fds[1]
	if childWrites {
		child, own = own, child
	}
	pl.child = append(pl.child, child)
	pl.files = append(pl.files, uintptr(child))
	if err := syscall.SetNonblock(own, true); err != nil {
		syscall.Close(own)
		return nil, fmt.Errorf("open pipe: %w", err)
	}
	f := os.NewFile(uintptr(own), "pipe")
	pl.own = append(pl.own, f)
	return f, nil
}

// release closes the descriptors that only the child needs.
func (pl *plumbing) release() {
	for _, fd := range pl.child {
		syscall.Close(fd)
	}
	if pl.null != nil {
		pl.null.Close()
	}
}

// abandon closes this process's ends when no child was started.
func (pl *plumbing) abandon() {
	for _, f := range pl.own {
		f.Close()
	}
}

// input copies a reader to the child's standard input.
type input struct {
	f *os.File
	r io.Reader
}

// copy ends with the reader, or when a write fails because the child has closed
// its end or has ended. Neither is an error.
func (in *input) copy() {
	_, _ = io.Copy(in.f, in.r)
	in.close()
}

func (in *input) close() { in.f.Close() }

// output copies one pipe to a writer.
//
// A read deadline in the past wakes the copying goroutine. It then copies what is
// in the pipe at that moment, and so everything that the child wrote before its
// end, without waiting for a pipe that a background process keeps open.
type output struct {
	f       *os.File
	w       io.Writer
	log     *slog.Logger
	bufs    *sync.Pool
	copied  atomic.Int64  // writes that returned
	last    atomic.Bool   // end once drained
	stuck   atomic.Bool   // a write has not returned for drainIdle
	cut     atomic.Bool   // stopped without having drained
	drained chan struct{} // closed when everything in the pipe at the first wake was copied
	ended   chan struct{} // closed with the goroutine
}

func (o *output) copy() {
	defer close(o.ended)
	defer o.f.Close()
	buf := o.bufs.Get().(*[32 << 10]byte)
	defer o.bufs.Put(buf)
	first := true
	caughtUp := func() {
		if first {
			close(o.drained)
			first = false
		}
	}
	defer caughtUp()
	left := -1 // bytes to copy until caught up; -1: no caller waits
	for {
		n, err := o.f.Read(buf[:])
		if n > 0 {
			o.write(buf[:n])
		}
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			// Clear the deadline before last is read: finish does it in the opposite
			// order, so its call is never lost.
			if o.f.SetReadDeadline(time.Time{}) != nil {
				return
			}
			left = o.pending()
		case err != nil:
			return
		case left > 0:
			left = max(left-n, 0)
		}
		if left == 0 {
			caughtUp()
			if o.last.Load() {
				return
			}
			left = -1
		}
	}
}

// write writes b. After an error it discards all output, so that the child can
// continue to write.
func (o *output) write(b []byte) {
	n, err := o.w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		o.log.Debug("cannot write process output, discarding it", "error", err)
		o.w = io.Discard
	}
	o.copied.Add(1)
	o.stuck.Store(false)
}

// pending returns the number of bytes in the pipe.
func (o *output) pending() (n int) {
	conn, err := o.f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if err != nil {
		return 0
	}
	return n
}

func (o *output) wake() { _ = o.f.SetReadDeadline(time.Unix(1, 0)) }

// hasEnded reports whether copying has ended.
func (o *output) hasEnded() bool {
	select {
	case <-o.ended:
		return true
	default:
		return o.cut.Load()
	}
}

// drain returns when the content of the pipes at the call is copied, or when all
// writers block.
func drain(outs []*output) {
	for _, o := range outs {
		o.wake()
	}
	for _, o := range outs {
		o.awaitProgress(o.drained)
	}
}

// finish ends the copying: after the current content of the pipes, or, if a writer
// blocks, without it.
func finish(outs []*output) {
	for _, o := range outs {
		o.last.Store(true)
		o.wake()
	}
	for _, o := range outs {
		if !o.awaitProgress(o.ended) {
			o.cut.Store(true)
			o.f.Close() // a process that holds the other end must not block forever
		}
	}
}

// awaitProgress waits for an event as long as the writer makes progress.
func (o *output) awaitProgress(event <-chan struct{}) bool {
	idle := drainIdle
	if o.stuck.Load() {
		idle = 0 // an earlier call has waited
	}
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for seen := o.copied.Load(); ; {
		select {
		case <-event:
			return true
		case <-timer.C:
			now := o.copied.Load()
			if now == seen {
				o.stuck.Store(true)
				return false
			}
			seen = now
			timer.Reset(drainIdle)
		}
	}
}
