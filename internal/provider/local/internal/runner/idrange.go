package runner

import (
	"fmt"
	"math"
	"sync"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// idRanges assigns a range of user IDs to each sandbox. Without ID-mapped mounts all sandboxes share range 0, because
// they share layers of disks.
type idRanges struct {
	first  uint32
	size   uint32 // of a range
	shared bool

	mu   sync.Mutex
	used map[uint32]bool
}

func newIDRanges(first, size uint32) *idRanges {
	return &idRanges{first: first, size: size, used: map[uint32]bool{}}
}

// take returns an unused range.
func (r *idRanges) take() (uint32, error) {
	if r.shared {
		return 0, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := uint32(1)
	for r.used[n] {
		n++
	}
	if n >= r.count() {
		return 0, fmt.Errorf("%w: all ranges of user IDs are in use; delete sandboxes", sandbox.ErrExhausted)
	}
	r.used[n] = true
	return n, nil
}

// adopt marks the range of an existing sandbox as used. It fails if another sandbox has the range, or if the range is
// beyond the last one and could contain users of the host. Range 0 may be shared.
func (r *idRanges) adopt(n uint32) error {
	if n >= r.count() {
		return fmt.Errorf("its range of user IDs %d is beyond the last, %d", n, r.count()-1)
	}
	if r.shared {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if n != 0 && r.used[n] {
		return fmt.Errorf("its range of user IDs %d belongs to another sandbox", n)
	}
	r.used[n] = true
	return nil
}

// count returns the number of ranges.
func (r *idRanges) count() uint32 { return (math.MaxUint32 - r.first) / disk.IDRange }

func (r *idRanges) free(n uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.used, n)
}

// of returns the IDs in a range; without root there is none.
func (r *idRanges) of(n uint32) isolate.IDs {
	if rootless() {
		return isolate.IDs{}
	}
	return isolate.IDs{Base: r.first + n*disk.IDRange, Count: r.size}
}
