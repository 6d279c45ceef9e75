// Package office is what aio and aio-markdown share to read Office documents: a scanner of
// untrusted XML, and the JSON messages with which aio queries aio-markdown about workbooks.
//
// The scanner limits the size of tokens, which the decoder holds in memory, and the depth of
// elements. The library that reads workbooks is linked into aio-markdown only.
package office

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
	maxDepth = 1000    // nested elements
)

// ErrStop makes Scan stop without an error.
var ErrStop = errors.New("stop")

// Scan calls visit for every token. It returns nil at the end of r, and if visit returns ErrStop.
func Scan(ctx context.Context, r io.Reader, visit func(xml.Token) error) error {
	m := &meter{r: r, left: maxToken}
	d := xml.NewDecoder(bufio.NewReaderSize(m, 32<<10)) // the decoder does not buffer a ByteReader
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

// meter limits the bytes that are read for one token.
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

// Attr returns the value of an attribute, or an empty string.
func Attr(e xml.StartElement, name string) string {
	for _, a := range e.Attr {
		if a.Name.Local == name {
			return a.Value
		}
	}
	return ""
}
