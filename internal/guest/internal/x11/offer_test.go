package x11

import (
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestQuietIsLongerThanPausesBetweenRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const minimum = 100 * time.Millisecond
		for _, c := range []struct {
			pauses  []time.Duration // between requests
			latency time.Duration
			want    time.Duration // after the last request
		}{
			{nil, 0, minimum},
			{nil, 10 * time.Millisecond, quietFactor * 10 * time.Millisecond},
			{[]time.Duration{time.Millisecond}, 0, minimum},
			{[]time.Duration{30 * time.Millisecond, 5 * time.Millisecond}, 20 * time.Millisecond, quietFactor * 30 * time.Millisecond},
			{[]time.Duration{time.Hour}, 0, maxQuiet},
		} {
			o := &Offer{changed: make(chan struct{})}
			begin := time.Now()
			must(t, o.WaitQuiet(t.Context(), minimum, c.latency))
			if time.Since(begin) != 0 {
				t.Error("waited although no application sent a request")
			}
			o.noteRequest(time.Now())
			for _, p := range c.pauses {
				testenv.Advance(p)
				o.noteRequest(time.Now())
			}
			last := time.Now()
			must(t, o.WaitQuiet(t.Context(), minimum, c.latency))
			if took := time.Since(last); took != c.want {
				t.Errorf("after pauses of %v: quiet after %v, want %v", c.pauses, took, c.want)
			}
		}
	})
}

// TestViewersDoNotCountAsReaders: the server reads copied text for them immediately, which must not count as a paste.
func TestViewersDoNotCountAsReaders(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "rfb")
	s := startServer(t, "-rfbunixpath", socket)
	viewer, err := net.Dial("unix", socket)
	must(t, err)
	defer viewer.Close()
	must(t, viewer.SetDeadline(time.Now().Add(patience)))
	read := func(n int) []byte {
		b := make([]byte, n)
		_, err := io.ReadFull(viewer, b)
		must(t, err)
		return b
	}
	send := func(text string) {
		_, err := io.WriteString(viewer, text)
		must(t, err)
	}
	send(string(read(12)))
	read(int(read(1)[0]))
	send("\x01")
	read(4)
	send("\x01")
	read(int(binary.BigEndian.Uint32(read(24)[20:])))

	c, other := s.dial(t), s.dial(t)
	ctx := testContext(t)
	offer, err := c.SetSelection(ctx, Clipboard, Text("copied"))
	must(t, err)
	if kind := read(8)[0]; kind != 3 {
		t.Fatalf("the viewer received message %d, want the clipboard", kind)
	}
	if text := string(read(6)); text != "copied" || offer.Reads() != 0 {
		t.Errorf("the viewer got %q, which counts as %d reads, want \"copied\", Reads 0", text, offer.Reads())
	}
	_, err = other.SelectionText(ctx, Clipboard)
	must(t, err)
	must(t, offer.WaitRead(ctx, 0))
}
