// Package xmlscan reads XML from untrusted sources, token by token.
//
// It owns the limits: on the size of a token, all of which the decoder holds in memory,
// and on the depth of elements.
package xmlscan

import (
	"bufio"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
)

const (
	maxToken = 4 << 20 // bytes of one name, tag or text
	maxDepth = 1000    // elements in elements
)

// ErrStop tells Scan that nothing more is wanted.
var ErrStop = errors.New("stop")

// Scan calls visit for every token. It returns nil at the end, and when visit returns ErrStop.
func Scan(ctx context.Context, r io.Reader, visit func(xml.Token) error) error {
	m := &meter{r: r, left: maxToken}
	d := xml.NewDecoder(bufio.NewReaderSize(m, 32<<10)) // a ByteReader, to which the decoder adds no buffer
	depth := 0
	for n := 1; ; n++ {
		t, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n%1024 == 0 && ctx.Err() != nil:
			return ctx.Err()
		}
		m.left = maxToken
		switch t.(type) {
		case xml.StartElement:
			if depth++; depth > maxDepth {
				return fmt.Errorf("elements are nested more than %d deep", maxDepth)
			}
		case xml.EndElement:
			depth--
		}
		if err := visit(t); err != nil {
			if errors.Is(err, ErrStop) {
				return nil
			}
			return err
		}
	}
}

// meter bounds what is read for one token.
type meter struct {
	r    io.Reader
	left int
}

func (m *meter) Read(b []byte) (int, error) {
	if m.left <= 0 {
		return 0, fmt.Errorf("a tag or text is larger than %d bytes", maxToken)
	}
	n, err := m.r.Read(b)
	m.left -= n
	return n, err
}

// Attr returns the value of an attribute; empty if there is none.
func Attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
