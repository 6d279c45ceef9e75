package display

import (
	"bytes"
	"context"
	"hash/maphash"
	"sync"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// glance is the latest picture. It is reused while the display does not change.
type glance struct {
	mu      sync.Mutex
	seed    maphash.Seed
	sum     uint64
	width   int
	picture []byte
}

// Glance returns a small JPEG picture of the display, or nil if no display runs. It neither starts the display nor keeps it
// running.
func (s *Service) Glance(ctx context.Context, width int) ([]byte, error) {
	s.mu.Lock()
	d := s.last
	s.mu.Unlock()
	if d == nil || d.Ended() {
		return nil, nil
	}
	img, err := d.conn.Thumbnail(ctx, width)
	if err != nil {
		return nil, err
	}
	g := &s.glance
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.picture == nil {
		g.seed = maphash.MakeSeed()
	}
	sum := maphash.Bytes(g.seed, img.Pix)
	if g.picture != nil && g.sum == sum && g.width == width {
		return g.picture, nil
	}
	var b bytes.Buffer
	if err := x11.EncodeJPEG(&b, img, 50); err != nil {
		return nil, err
	}
	g.sum, g.width, g.picture = sum, width, b.Bytes()
	return g.picture, nil
}
