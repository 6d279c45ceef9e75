package kernel

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"time"
)

const (
	delimiter = "<IDS|MSG>"
	// protocol is the supported version of the Jupyter messaging protocol.
	protocol = "5.3"
	// maxFrame is the maximum size of a frame that is kept completely. Of a larger one the
	// first and last keepFrame bytes are kept, to limit the memory of a huge output.
	maxFrame  = 16 << 20
	keepFrame = 1 << 20
	// maxIdentities limits the number of frames before the delimiter.
	maxIdentities = 8
	// maxPreamble limits the size of each of them, of the signature, and of each header.
	maxPreamble = 64 << 10
)

// errDropped marks a message that was read completely and is invalid. The channel
// continues.
var errDropped = errors.New("message dropped")

// head has the used fields of a message's header.
type head struct {
	ID       string `json:"msg_id"`
	Type     string `json:"msg_type"`
	Session  string `json:"session"`
	Username string `json:"username"`
	Date     string `json:"date"`
	Version  string `json:"version"`
}

// message is a verified message from the kernel.
type message struct {
	head    head
	parent  string // msg_id of its request
	content []byte
	// cut is the last part of a content larger than maxFrame, and content its first part.
	// Otherwise it is nil.
	cut  []byte
	size int64 // of the content as sent
}

// encode builds the frames of a signed request.
func encode(key []byte, h head, content any) ([][]byte, error) {
	h.Username, h.Version = "cove", protocol
	h.Date = time.Now().UTC().Format(time.RFC3339Nano)
	header, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode header: %w", err)
	}
	body, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", h.Type, err)
	}
	empty := []byte("{}")
	mac := newMAC(key)
	for _, part := range [][]byte{header, empty, empty, body} {
		mac.Write(part)
	}
	return [][]byte{[]byte(delimiter), hexSum(mac), header, empty, empty, body}, nil
}

func newMAC(key []byte) hash.Hash { return hmac.New(sha256.New, key) }

func hexSum(mac hash.Hash) []byte { return hex.AppendEncode(nil, mac.Sum(nil)) }

// receive reads the next message. After errDropped the socket is at the start of the next
// message; after any other error it is unusable.
func (s *socket) receive(key []byte) (*message, error) {
	r := &messageReader{s: s, more: true, mac: newMAC(key)}
	m, err := r.read()
	if err != nil && !errors.Is(err, errDropped) {
		return nil, err
	}
	if skip := r.skip(); skip != nil {
		return nil, skip
	}
	return m, err
}

// messageReader reads the frames of one message in turn.
type messageReader struct {
	s    *socket
	more bool
	mac  hash.Hash
}

func (r *messageReader) read() (*message, error) {
	if err := r.identities(); err != nil {
		return nil, err
	}
	signature, err := r.readSmall(io.Discard)
	if err != nil {
		return nil, err
	}
	header, err := r.readSmall(r.mac)
	if err != nil {
		return nil, err
	}
	parent, err := r.readSmall(r.mac)
	if err != nil {
		return nil, err
	}
	if _, _, _, err := r.frame(r.mac); err != nil { // metadata
		return nil, err
	}
	m := &message{}
	if m.content, m.cut, m.size, err = r.frame(r.mac); err != nil {
		return nil, err
	}
	if !hmac.Equal(signature, hexSum(r.mac)) {
		return nil, fmt.Errorf("%w: wrong signature", errDropped)
	}
	var p head
	if json.Unmarshal(header, &m.head) != nil || json.Unmarshal(parent, &p) != nil {
		return nil, fmt.Errorf("%w: header is not JSON", errDropped)
	}
	m.parent = p.ID
	return m, nil
}

// identities reads up to the delimiter.
func (r *messageReader) identities() error {
	for range maxIdentities {
		id, err := r.readSmall(io.Discard)
		if err != nil {
			return err
		}
		if string(id) == delimiter {
			return nil
		}
	}
	return fmt.Errorf("%w: no delimiter", errDropped)
}

// readSmall reads a frame of at most maxPreamble bytes.
func (r *messageReader) readSmall(mac io.Writer) ([]byte, error) {
	b, cut, size, err := r.frame(mac)
	if err == nil && (cut != nil || size > maxPreamble) {
		return nil, fmt.Errorf("%w: header of %d bytes", errDropped, size)
	}
	return b, err
}

// frame reads the next frame of this message and feeds it to mac.
func (r *messageReader) frame(mac io.Writer) (first, last []byte, size int64, err error) {
	if !r.more {
		return nil, nil, 0, fmt.Errorf("%w: too few frames", errDropped)
	}
	f, err := r.s.next()
	if err != nil {
		return nil, nil, 0, err
	}
	body := io.TeeReader(f.body, mac)
	if f.size <= maxFrame {
		first, err = read(body, f.size)
	} else {
		first, last, err = headAndTail(body)
	}
	if err != nil {
		return nil, nil, 0, err
	}
	r.more = f.more
	return first, last, f.size, nil
}

// skip discards the rest of the message, which are binary buffers.
func (r *messageReader) skip() error {
	for r.more {
		f, err := r.s.next()
		if err != nil {
			return err
		}
		if _, err := io.Copy(io.Discard, f.body); err != nil {
			return err
		}
		r.more = f.more
	}
	return nil
}

// read reads a body of size bytes. It allocates memory only as bytes arrive.
func read(body io.Reader, size int64) ([]byte, error) {
	var b bytes.Buffer
	b.Grow(int(min(size, 64<<10)) + bytes.MinRead)
	_, err := b.ReadFrom(body)
	return b.Bytes(), err
}

// headAndTail reads a body larger than maxFrame and keeps its two ends.
func headAndTail(body io.Reader) (first, last []byte, err error) {
	first = make([]byte, keepFrame)
	if _, err := io.ReadFull(body, first); err != nil {
		return nil, nil, err
	}
	// Two buffers alternate: together they always hold the last keepFrame bytes.
	old, cur := make([]byte, 0, keepFrame), make([]byte, 0, keepFrame)
	for {
		n, err := body.Read(cur[len(cur):keepFrame])
		cur = cur[:len(cur)+n]
		if len(cur) == keepFrame {
			old, cur = cur, old[:0]
		}
		if err == io.EOF { // not errors.Is: a body that ends early is another error
			break
		}
		if err != nil {
			return nil, nil, err
		}
	}
	last = append(old[min(len(cur), len(old)):len(old):len(old)], cur...)
	return first, last, nil
}
