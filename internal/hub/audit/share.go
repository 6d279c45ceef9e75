package audit

import (
	"fmt"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
)

// Rate limits of a tenant's lines in a log, so that one tenant cannot push the lines of others out. At
// these rates a tenant needs days to fill the log of requests, and weeks to fill the log of changes.
const (
	requestRate  = 50
	requestBurst = 5000
	changeRate   = 5
	changeBurst  = 2000
	// maxShares is the maximum number of tenants that are counted separately.
	maxShares = 10000
)

// shares limits the lines of tenants. The operator has no limit.
type shares struct {
	rate, burst float64
	now         func() time.Time

	mu     sync.Mutex
	tenant map[string]*share
}

type share struct {
	left    float64
	at      time.Time
	skipped int // lines not written since the last one
}

// take takes one line from a tenant's share. It returns the number of lines that were skipped before.
func (s *shares) take(tenant string) (skipped int, ok bool) {
	if tenant == "" {
		return 0, true
	}
	now := s.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenant[tenant]
	if t == nil {
		if len(s.tenant) >= maxShares {
			s.forget(now)
		}
		t = &share{left: s.burst, at: now}
		if s.tenant == nil {
			s.tenant = map[string]*share{}
		}
		s.tenant[tenant] = t
	}
	t.left = min(s.burst, t.left+max(0, now.Sub(t.at).Seconds())*s.rate)
	t.at = now
	if t.left < 1 {
		t.skipped++
		return 0, false
	}
	t.left--
	skipped, t.skipped = t.skipped, 0
	return skipped, true
}

// forget removes shares that are unused again.
func (s *shares) forget(now time.Time) {
	for name, t := range s.tenant {
		if t.skipped == 0 && t.left+now.Sub(t.at).Seconds()*s.rate >= s.burst {
			delete(s.tenant, name)
		}
	}
}

// noteShare records an entry within its tenant's share. Skipped entries are counted, and the next line
// of the tenant contains their number.
func (r *Recorder) noteShare(e auditlog.Entry) {
	log := r.Requests
	if log == nil {
		log = r.Log
	}
	skipped, ok := r.requests.take(e.Tenant)
	if !ok {
		r.skipped(1)
		return
	}
	if skipped > 0 {
		log.Note(auditlog.Entry{Tenant: e.Tenant, Role: "hub", Op: "audit_skipped", Name: fmt.Sprintf("%d requests were not recorded", skipped)})
	}
	log.Note(e)
}

// MayChange rejects a change that exceeds the tenant's share of the log.
func (r *Recorder) MayChange(tenant string) error {
	if r.Log == nil {
		return nil
	}
	if _, ok := r.changes.take(tenant); !ok {
		return &op.Error{Code: op.Exhausted, RetryAfter: fault.RetrySoon,
			Msg: fmt.Sprintf("too many changes: a tenant can make %d per second on average; retry in a moment", changeRate)}
	}
	return nil
}
