package tunnel_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
)

// TestCopies: a copy arrives completely, or with an error that contains the reason.
func TestCopies(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	inside := make(chan error, 10)
	var got bytes.Buffer
	var save func(io.Writer) error
	r := newRigWith(t, func(c *tunnel.ServerConfig) {
		c.Save = func(w io.Writer) error { err := save(w); inside <- err; return err }
		c.Fill = func(r io.Reader) error {
			got.Reset()
			_, err := got.ReadFrom(r)
			if err == nil && bytes.HasPrefix(got.Bytes(), []byte("bad")) {
				err = errors.New("a bad copy")
			}
			inside <- err
			return err
		}
	})
	c := r.client(r.hub, r.sandbox.pin)
	for _, data := range [][]byte{nil, []byte("x"), large} {
		save = func(w io.Writer) error { _, err := w.Write(data); return err }
		var out bytes.Buffer
		if err := c.Save(t.Context(), &out); err != nil || !bytes.Equal(out.Bytes(), data) || <-inside != nil {
			t.Errorf("save: got %d bytes, %v, want %d", out.Len(), err, len(data))
		}
		if err := c.Fill(t.Context(), bytes.NewReader(data)); err != nil || <-inside != nil || !bytes.Equal(got.Bytes(), data) {
			t.Errorf("fill: got %d bytes, %v, want %d", got.Len(), err, len(data))
		}
	}
	save = func(w io.Writer) error { w.Write(large); return errors.New("the disk broke") }
	if err := c.Save(t.Context(), io.Discard); !errors.Is(err, tunnel.ErrRefused) ||
		!strings.Contains(err.Error(), "the disk broke") || <-inside == nil {
		t.Errorf("got %v, want what went wrong inside", err)
	}
	if err := c.Fill(t.Context(), strings.NewReader("bad copy")); !errors.Is(err, tunnel.ErrRefused) ||
		!strings.Contains(err.Error(), "a bad copy") || <-inside == nil {
		t.Errorf("got %v, want what went wrong inside", err)
	}
	// The sandbox detects a lost hub or store: a copy without an end marker is incomplete.
	ctx, cancel := context.WithCancel(t.Context())
	save = func(w io.Writer) error {
		cancel()
		for {
			if _, err := w.Write(large); err != nil {
				return err
			}
		}
	}
	if err := c.Save(ctx, io.Discard); !errors.Is(err, context.Canceled) || <-inside == nil {
		t.Errorf("got %v, want that it was canceled", err)
	}
	full := errors.New("the store is full")
	save = func(w io.Writer) error {
		for {
			if _, err := w.Write(large); err != nil {
				return err
			}
		}
	}
	if err := c.Save(t.Context(), failing{full}); !errors.Is(err, full) || <-inside == nil {
		t.Errorf("got %v, want %v", err, full)
	}
	if err := c.Fill(t.Context(), io.MultiReader(bytes.NewReader(large), failing{full})); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	if err := <-inside; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("inside: got %v, want that the copy has no end", err)
	}
	other := newRig(t)
	plain := other.client(other.hub, other.sandbox.pin)
	for _, err := range []error{plain.Save(t.Context(), io.Discard), plain.Fill(t.Context(), strings.NewReader(""))} {
		if !errors.Is(err, tunnel.ErrRefused) {
			t.Errorf("got %v, want a refusal", err)
		}
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error)  { return 0, f.err }
func (f failing) Write([]byte) (int, error) { return 0, f.err }

// TestHostileCopy: the hub detects invalid copies of a hostile sandbox.
func TestHostileCopy(t *testing.T) {
	t.Parallel()
	hub, sandbox := newIdentity(t), newIdentity(t)
	settings, err := tunnel.Configure(sandbox.cert, sandbox.key, hub.pin)
	if err != nil {
		t.Fatal(err)
	}
	for what, says := range map[string][]byte{
		"cut at once":     {0},
		"cut in a frame":  append(binary.BigEndian.AppendUint32([]byte{0}, 100), "few"...),
		"a huge frame":    binary.BigEndian.AppendUint32([]byte{0}, 1<<31),
		"no last word":    binary.BigEndian.AppendUint32([]byte{0}, 0),
		"a last word":     append(binary.BigEndian.AppendUint32([]byte{0}, 0), 1, 'n', 'o'),
		"an unknown word": append(binary.BigEndian.AppendUint32([]byte{0}, 0), 7),
	} {
		c, err := tunnel.NewClient(hub.cert, hub.key, sandbox.pin, func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go respond(far, settings, says)
			return near, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Save(t.Context(), io.Discard); err == nil {
			t.Errorf("%s: got no error", what)
		}
	}
}

func respond(c net.Conn, settings *tls.Config, says []byte) {
	s := tls.Server(c, settings)
	defer s.Close()
	if _, err := io.ReadFull(s, make([]byte, 3)); err == nil {
		s.Write(says)
	}
}
