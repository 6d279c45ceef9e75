package isolate

import (
	"encoding/binary"
	"errors"
	"io"
)

// What the hub and init say to each other goes in frames: a length and as many
// bytes. Init lives for a few milliseconds when a sandbox is made, of which a
// general format would take a tenth to find out how our types look.

// frame is one message on its way: what it writes in one process it reads in the
// other, in the same order, so that one function tells both ways.
type frame struct {
	buf     []byte
	reading bool
	err     error
}

var errFrame = errors.New("it cannot be read; install cove and cove-init of one build")

// take returns the next n bytes of a frame that is read.
func (f *frame) take(n uint64) []byte {
	if n > uint64(len(f.buf)) {
		f.err = errFrame
	}
	if f.err != nil {
		return nil
	}
	b := f.buf[:n]
	f.buf = f.buf[n:]
	return b
}

// whole is a number.
func whole[T ~int | ~int64 | ~uint32](f *frame, v *T) {
	if !f.reading {
		f.buf = binary.AppendVarint(f.buf, int64(*v))
		return
	}
	x, n := binary.Varint(f.buf)
	if n <= 0 {
		f.err = errFrame
	}
	if f.take(uint64(max(n, 0))) != nil {
		*v = T(x)
	}
}

func (f *frame) flag(v *bool) {
	n := 0
	if *v {
		n = 1
	}
	whole(f, &n)
	*v = n == 1
}

func (f *frame) text(v *string) {
	n := len(*v)
	whole(f, &n)
	if f.reading {
		*v = string(f.take(uint64(n)))
		return
	}
	f.buf = append(f.buf, *v...)
}

// list is any number of what each tells one of.
func list[T any](f *frame, v *[]T, each func(*frame, *T)) {
	n := len(*v)
	whole(f, &n)
	if f.reading {
		// An element takes a byte at least: a wrong number cannot ask for much.
		if n < 0 || n > len(f.buf) {
			f.err = errFrame
		}
		if f.err != nil {
			return
		}
		*v = make([]T, n)
	}
	for i := range *v {
		each(f, &(*v)[i])
	}
}

func (f *frame) texts(v *[]string) { list(f, v, (*frame).text) }

// message is something that can be said.
type message interface{ tell(*frame) }

// pack returns a message with its length before it.
func pack(m message) []byte {
	f := &frame{buf: make([]byte, 4, 4<<10)}
	m.tell(f)
	binary.BigEndian.PutUint32(f.buf, uint32(len(f.buf)-4))
	return f.buf
}

// unpack reads what pack made.
func unpack(body []byte, m message) error {
	f := &frame{buf: body, reading: true}
	m.tell(f)
	if f.err == nil && len(f.buf) > 0 {
		f.err = errFrame
	}
	return f.err
}

// receive reads one message of at most so many bytes.
func receive(r io.Reader, m message, limit uint32) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size > limit {
		return errFrame
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	return unpack(body, m)
}
