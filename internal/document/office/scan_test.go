package office

import (
	"context"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestScan(t *testing.T) {
	var names []string
	err := Scan(t.Context(), strings.NewReader(`<a x="1"><b/>text<c/></a>`), func(tok xml.Token) error {
		if e, ok := tok.(xml.StartElement); ok {
			names = append(names, e.Name.Local+Attr(e, "x"))
			if e.Name.Local == "b" {
				return ErrStop
			}
		}
		return nil
	})
	if got := strings.Join(names, " "); err != nil || got != "a1 b" {
		t.Errorf("got %q, %v, want %q", got, err, "a1 b")
	}
}

func TestLimits(t *testing.T) {
	for name, c := range map[string]struct{ xml, want string }{
		"text":       {"<a>" + strings.Repeat(" ", maxToken+64<<10), "larger than"},
		"attributes": {"<a " + strings.Repeat(`a="`+strings.Repeat("b", 1000)+`" `, maxToken/900), "larger than"},
		"depth":      {strings.Repeat("<a>", maxDepth+1), "nested"},
		"entities":   {`<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]><a>&a;</a>`, "entity"},
		"truncated":  {"<a><b>", "EOF"},
	} {
		if err := Scan(t.Context(), strings.NewReader(c.xml), func(xml.Token) error { return nil }); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Scan(ctx, strings.NewReader("<a>"+strings.Repeat("<b/>", 2000)),
		func(xml.Token) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	broken := io.MultiReader(strings.NewReader("<a>"), &failing{})
	if err := Scan(t.Context(), broken, func(xml.Token) error { return nil }); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v, want %v", err, io.ErrClosedPipe)
	}
}

type failing struct{}

func (*failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }
