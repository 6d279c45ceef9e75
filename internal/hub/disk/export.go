package disk

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// maxExports is the maximum number of concurrent exports, which compress whole disks. maxOwnExports
	// is the limit for one owner.
	maxExports    = 4
	maxOwnExports = 2
	// maxStall is how long the client of an export may pause.
	maxStall = time.Minute
)

// exports counts the concurrent exports.
type exports struct {
	mu    sync.Mutex
	all   int
	owned map[string]int
}

// begin counts an export until done is called.
func (e *exports) begin(owner string) (done func(), err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.owned[owner] >= maxOwnExports:
		return nil, &op.Error{Code: op.Exhausted, RetryAfter: fault.RetryExhausted,
			Msg: "export limit reached (2); retry when one of your exports has ended"}
	case e.all >= maxExports:
		return nil, &op.Error{Code: op.Unavailable, RetryAfter: fault.RetryExhausted,
			Msg: "export limit of the hub reached; retry in a moment"}
	}
	if e.owned == nil {
		e.owned = map[string]int{}
	}
	e.all++
	e.owned[owner]++
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all--
		if e.owned[owner]--; e.owned[owner] == 0 {
			delete(e.owned, owner)
		}
	}, nil
}

// Export writes a disk as an image.
func (s *Service) Export(ctx context.Context, in lifecycle.NameIn) (*op.Blob, error) {
	p, err := ability[sandbox.Exporter](s.Provider, func(a sandbox.Abilities) bool { return a.Export }, "export sandboxes")
	if err != nil {
		return nil, err
	}
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	done, err := s.exports.begin(sb.Spec.Owner)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	if !s.Tasks.Go(func(life context.Context) {
		defer done()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(life, cancel)()
		err := p.Export(ctx, sb.ID, w)
		if err != nil && life.Err() != nil {
			err = errors.Join(sandbox.ErrClosed, err)
		}
		w.CloseWithError(err)
	}) {
		done()
		return nil, fault.FromProvider(in.Name, sandbox.ErrClosed)
	}
	// Read the first bytes while an error can still be returned.
	first := make([]byte, 512)
	n, err := io.ReadAtLeast(r, first, 1)
	if err != nil {
		r.Close()
		return nil, fault.FromProvider(in.Name, err)
	}
	return &op.Blob{Type: "application/x-tar", Name: sb.Spec.Name + ".tar", Size: -1, Body: newUnread(first[:n], r)}, nil
}

// unread is a pipe whose first bytes were already read. It fails if the client pauses for too long,
// because the export would never end.
type unread struct {
	first []byte
	*io.PipeReader
	stall *time.Timer
}

func newUnread(first []byte, r *io.PipeReader) *unread {
	return &unread{first, r, time.AfterFunc(maxStall, func() { r.CloseWithError(errors.New("the client stopped reading the export")) })}
}

func (u *unread) Read(b []byte) (int, error) {
	u.stall.Stop()
	defer u.stall.Reset(maxStall)
	if len(u.first) > 0 {
		n := copy(b, u.first)
		u.first = u.first[n:]
		return n, nil
	}
	return u.PipeReader.Read(b)
}

func (u *unread) Close() error {
	u.stall.Stop()
	return u.PipeReader.Close()
}
