package proxy

import (
	"context"
	"sync"
	"time"
)

// Record is a request in the log.
type Record struct {
	Time     time.Time `json:"ts"`
	Protocol string    `json:"method" doc:"Method of the request, CONNECT for a tunnel, or socks5"`
	Host     string    `json:"host"`
	Port     int       `json:"port"`
	Route    string    `json:"route" doc:"mapping, upstream, bypass or direct; empty if the request was refused"`
	Rule     string    `json:"rule" doc:"Source of the mapping, upstream proxy, or pattern that excludes the host"`
	Status   int       `json:"status" doc:"Status of the response; 0 for a tunnel"`
	Error    string    `json:"error"`
	Duration float64   `json:"duration_ms" doc:"Time until the response, or until the tunnel was open"`
}

// ring holds the latest records.
type ring struct {
	max  int
	mu   sync.Mutex
	list []*record
}

// record is a record that may still change. Methods of a nil record do nothing.
type record struct {
	ring *ring
	Record
	ended bool
}

const maxName = 253

func (r *ring) begin(protocol, host string, port int) *record {
	if len(host) > maxName {
		host = host[:maxName]
	}
	rec := &record{ring: r, Record: Record{Time: time.Now(), Protocol: protocol, Host: host, Port: port}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, rec)
	if len(r.list) > r.max {
		r.list = append(make([]*record, 0, 2*r.max), r.list[len(r.list)-r.max:]...)
	}
	return rec
}

// change changes a record.
func (r *record) change(f func()) {
	if r == nil {
		return
	}
	r.ring.mu.Lock()
	defer r.ring.mu.Unlock()
	f()
}

func (r *record) route(route, rule string) { r.change(func() { r.Route, r.Rule = route, rule }) }

func (r *record) status(code int) {
	r.change(func() { r.Status, r.Duration, r.ended = code, sinceMS(r.Time), true })
}

// end completes a record.
func (r *record) end(err error) {
	r.change(func() {
		if err != nil {
			r.Error = err.Error()
		}
		if !r.ended {
			r.Duration, r.ended = sinceMS(r.Time), true
		}
	})
}

// drop removes a record.
func (r *record) drop() {
	r.change(func() {
		for i, have := range r.ring.list {
			if have == r {
				r.ring.list = append(r.ring.list[:i], r.ring.list[i+1:]...)
				return
			}
		}
	})
}

func sinceMS(t time.Time) float64 { return float64(time.Since(t).Microseconds()) / 1000 }

// LogIn is the input of Log.
type LogIn struct {
	Limit int `query:"limit" default:"100" minimum:"1" maximum:"512" doc:"Maximum number of records"`
}

// Log returns the newest records, oldest first.
func (s *Service) Log(_ context.Context, in LogIn) ([]Record, error) {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	out := []Record{}
	for _, rec := range s.log.list[max(0, len(s.log.list)-in.Limit):] {
		out = append(out, rec.Record)
	}
	return out, nil
}
