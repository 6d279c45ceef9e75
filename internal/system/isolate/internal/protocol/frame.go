package protocol

import (
	"encoding/binary"
	"errors"
	"io"
)

// frame is a message that is being written or read: a length and as many bytes. Both sides
// transfer the fields in the same order, so one function serves both. A general format
// would spend a tenth of init's few milliseconds on reflection.
type frame struct {
	buf     []byte
	reading bool
	err     error
}

var errFrame = errors.New("malformed message; install cove and cove-init from the same build")

// take returns the next n bytes of a frame that is being read.
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

// number transfers an integer.
func number[T ~int | ~int64 | ~uint32](f *frame, v *T) {
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

func (f *frame) boolean(v *bool) {
	n := 0
	if *v {
		n = 1
	}
	number(f, &n)
	*v = n == 1
}

func (f *frame) text(v *string) {
	n := len(*v)
	number(f, &n)
	if f.reading {
		*v = string(f.take(uint64(n)))
		return
	}
	f.buf = append(f.buf, *v...)
}

// list transfers a list; each transfers one element of it.
func list[T any](f *frame, v *[]T, each func(*frame, *T)) {
	n := len(*v)
	number(f, &n)
	if f.reading {
		// An element has at least one byte, so a wrong number cannot allocate much.
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

// message is the content of a frame.
type message interface{ transfer(*frame) }

// marshal returns a message, preceded by its length.
func marshal(m message) []byte {
	f := &frame{buf: make([]byte, 4, 4<<10)}
	m.transfer(f)
	binary.BigEndian.PutUint32(f.buf, uint32(len(f.buf)-4))
	return f.buf
}

// unmarshal reads a message without its length.
func unmarshal(body []byte, m message) error {
	f := &frame{buf: body, reading: true}
	m.transfer(f)
	if f.err == nil && len(f.buf) > 0 {
		f.err = errFrame
	}
	return f.err
}

// receive reads one message of at most limit bytes.
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
	return unmarshal(body, m)
}
