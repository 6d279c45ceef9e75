package egress

// Stats are the counters of a proxy.
type Stats struct {
	Sent     int64 // bytes on outgoing connections
	Received int64
	Allowed  int64 // connections, or requests over plain HTTP
	Denied   int64
	Failed   int64
	Brokered int64 // requests with credentials
	Open     int   // current connections of the sandbox to the proxy
}

// Stats returns the counters, which never decrease.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent, received := p.sent.Load(), p.received.Load()
	for l := range p.links {
		if l.raw {
			// The kernel copies these, so only it knows the numbers.
			up, down := progress(l.Conn)
			sent, received = sent+up, received+down
		}
	}
	p.seen.Sent, p.seen.Received = max(p.seen.Sent, sent), max(p.seen.Received, received)
	s := p.seen
	s.Allowed, s.Denied, s.Failed = p.verdicts[0].Load(), p.verdicts[1].Load(), p.verdicts[2].Load()
	s.Brokered = p.brokered.Load()
	s.Open = len(p.conns)
	return s
}
