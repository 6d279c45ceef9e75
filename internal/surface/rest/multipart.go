package rest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/textproto"
	"path/filepath"
)

const (
	maxPartHead = 64 << 10
	partsBuffer = 64 << 10
)

// parts reads a multipart form as it arrives. Unlike mime/multipart it searches for the end of a
// part in the caller's buffer, so that the bytes of a large file are copied only once. That
// nearly doubles the speed of an upload.
type parts struct {
	src   io.Reader
	delim []byte // end of a part: line end, two dashes, boundary
	buf   []byte // read from src and not yet returned
	body  int    // number of bytes at the start of buf that belong to the part
	open  bool   // a part is being read
	done  bool   // the last delimiter has been seen
	err   error  // of src
}

// part is one field or file of a form.
type part struct {
	*parts
	header textproto.MIMEHeader
	params map[string]string
}

func newParts(src io.Reader, boundary string) *parts {
	// The first delimiter is not preceded by a line end.
	return &parts{src: src, delim: []byte("\r\n--" + boundary), buf: []byte("\r\n"), open: true}
}

// next skips the rest of the current part and returns the next one, io.EOF after the last.
func (m *parts) next() (*part, error) {
	if m.open {
		if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{m}, make([]byte, partsBuffer)); err != nil {
			return nil, err
		}
	}
	if m.done {
		return nil, io.EOF
	}
	line, err := m.line(len(m.delim))
	if err != nil {
		return nil, err
	}
	rest := bytes.TrimRight(line[len(m.delim):], " \t\r\n")
	if bytes.HasPrefix(rest, []byte("--")) {
		m.done = true
		return nil, io.EOF
	}
	if len(rest) > 0 {
		return nil, errors.New("text after a boundary")
	}
	m.take(len(line))
	header, err := m.head()
	if err != nil {
		return nil, err
	}
	m.open = true
	p := &part{parts: m, header: header}
	if kind, params, err := mime.ParseMediaType(header.Get("Content-Disposition")); err == nil && kind == "form-data" {
		p.params = params
	}
	return p, nil
}

func (p *part) name() string { return p.params["name"] }

// file returns the file name without directories, which cannot be trusted.
func (p *part) file() string {
	if p.params["filename"] == "" {
		return ""
	}
	return filepath.Base(p.params["filename"])
}

// head reads the header of a part.
func (m *parts) head() (textproto.MIMEHeader, error) {
	size := 0
	for {
		line, err := m.line(size)
		if err != nil {
			return nil, err
		}
		blank := len(bytes.TrimRight(line[size:], "\r\n")) == 0
		size = len(line)
		if !blank {
			continue
		}
		header, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(line))).ReadMIMEHeader()
		if err != nil {
			return nil, fmt.Errorf("read part header: %w", err)
		}
		m.take(size)
		// The delimiter of an empty body starts with the line end that also ends
		// the header.
		if bytes.HasSuffix(line, []byte("\r\n")) && m.more(len(m.delim)-1) == nil && bytes.HasPrefix(m.buf, m.delim[2:]) {
			m.buf = append([]byte("\r\n"), m.buf...)
		}
		return header, nil
	}
}

// line returns the buffer up to the end of the line that starts after skip bytes.
func (m *parts) line(skip int) ([]byte, error) {
	for at := skip; ; {
		if at < len(m.buf) {
			if i := bytes.IndexByte(m.buf[at:], '\n'); i >= 0 {
				return m.buf[:at+i+1], nil
			}
		}
		at = max(skip, len(m.buf))
		if len(m.buf) > maxPartHead {
			return nil, errors.New("part header is too long")
		}
		err := m.more(len(m.buf) + 1)
		if err == nil {
			continue
		}
		// The last delimiter need not end with a line end.
		if errors.Is(err, io.EOF) && bytes.HasSuffix(m.buf, []byte("--")) && skip == len(m.delim) {
			return m.buf, nil
		}
		return nil, unexpected(err)
	}
}

// more reads until n bytes are buffered.
func (m *parts) more(n int) error {
	for len(m.buf) < n {
		if m.err != nil {
			return m.err
		}
		if cap(m.buf)-len(m.buf) < partsBuffer/2 {
			m.buf = append(make([]byte, 0, len(m.buf)+partsBuffer), m.buf...)
		}
		var k int
		k, m.err = m.src.Read(m.buf[len(m.buf):cap(m.buf)])
		m.buf = m.buf[:len(m.buf)+k]
	}
	return nil
}

func (m *parts) take(n int) { m.buf = m.buf[n:] }

// Read reads the current part, directly into b if there is room.
func (m *parts) Read(b []byte) (int, error) {
	if !m.open {
		return 0, io.EOF
	}
	if len(b) == 0 {
		return 0, nil
	}
	for {
		if m.body == 0 {
			end, found := m.find(m.buf)
			if found && end == 0 {
				m.open = false
				return 0, io.EOF
			}
			m.body = end
		}
		if m.body > 0 {
			n := copy(b, m.buf[:m.body])
			m.take(n)
			m.body -= n
			return n, nil
		}
		if len(b) <= len(m.buf) {
			if err := m.more(len(m.buf) + 1); err != nil {
				return 0, unexpected(err)
			}
			continue
		}
		n, err := m.readDirect(b)
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// readDirect copies the buffer to b, reads more after it, and moves bytes that may not belong to
// the part back to the buffer.
func (m *parts) readDirect(b []byte) (int, error) {
	if m.err != nil {
		return 0, unexpected(m.err)
	}
	k := copy(b, m.buf)
	n, err := m.src.Read(b[k:])
	m.err = err
	end, _ := m.find(b[:k+n])
	m.buf = append(m.buf[:0:0], b[end:k+n]...)
	return end, nil
}

// find returns the number of bytes of b that certainly belong to the part, and whether its
// delimiter follows.
func (m *parts) find(b []byte) (int, bool) {
	for from := 0; ; {
		i := bytes.Index(b[from:], m.delim)
		if i < 0 {
			break
		}
		i += from
		after := i + len(m.delim)
		if after == len(b) {
			return i, false
		}
		// Any other character means a longer string that only starts like the delimiter.
		if bytes.IndexByte([]byte(" \t\r\n-"), b[after]) >= 0 {
			return i, true
		}
		from = i + 1
	}
	// The end of b may be the start of a delimiter.
	for n := min(len(m.delim)-1, len(b)); n > 0; n-- {
		if b[len(b)-n] == m.delim[0] && bytes.HasPrefix(m.delim, b[len(b)-n:]) {
			return len(b) - n, false
		}
	}
	return len(b), false
}

// unexpected replaces EOF within a part with io.ErrUnexpectedEOF.
func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
