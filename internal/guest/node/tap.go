package node

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unicode/utf8"
)

// tap reads stdout or stderr of a process, which programs started by the code share. It can
// be drained at any time, so that earlier output precedes later events.
type tap struct {
	f    *os.File
	conn syscall.RawConn
	emit func([]byte)

	mu  sync.Mutex
	buf [64 << 10]byte
}

func newTap(f *os.File, emit func([]byte)) (*tap, error) {
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	return &tap{f: f, conn: conn, emit: emit}, nil
}

// listen reads until the stream ends or is closed.
func (t *tap) listen() { _ = t.conn.Read(func(fd uintptr) bool { return t.take(int(fd)) }) }

// drain reads what is available.
func (t *tap) drain() { _ = t.conn.Control(func(fd uintptr) { t.take(int(fd)) }) }

// take reads what is available and reports whether the stream has ended. The descriptor
// does not block.
func (t *tap) take(fd int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		switch n, err := syscall.Read(fd, t.buf[:]); {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN:
			return false
		case err != nil || n <= 0:
			return true
		default:
			t.emit(t.buf[:n])
		}
	}
}

// with runs f while nothing is read.
func (t *tap) with(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f()
}

// pipes are the pipe ends of the process and of the service.
type pipes struct{ child, own []*os.File }

func (l *pipes) pipe(childWrites bool) (child, own *os.File, err error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	child, own = read, write
	if childWrites {
		child, own = write, read
	}
	l.child, l.own = append(l.child, child), append(l.own, own)
	return child, own, nil
}

// reopen opens the end of a pipe a second time. A change to one, such as making it
// non-blocking, does not affect the other.
func (l *pipes) reopen(f *os.File) (*os.File, error) {
	other, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	l.child = append(l.child, other)
	return other, nil
}

// decoder converts bytes that arrive in pieces to text.
type decoder struct{ rest []byte }

// text returns the complete characters. Invalid UTF-8 becomes U+FFFD.
func (d *decoder) text(b []byte) string {
	if len(d.rest) > 0 {
		b = append(d.rest, b...)
		d.rest = nil
	}
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				d.rest = append([]byte(nil), b[len(b)-i:]...)
				b = b[:len(b)-i]
			}
			break
		}
	}
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}

// end returns the replacement of an incomplete character.
func (d *decoder) end() string {
	if len(d.rest) == 0 {
		return ""
	}
	d.rest = nil
	return "\ufffd"
}
