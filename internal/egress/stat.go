package egress

// Stats is what a sandbox has exchanged with the outside so far.
type Stats struct {
	Sent     int64 // bytes, on the connections to the outside
	Received int64
	Allowed  int64 // connections, or requests over plain HTTP
	Denied   int64
	Failed   int64
	Brokered int64 // requests that carried credentials
	Open     int   // connections of the sandbox to the proxy now
}

// Stats returns the counts. They never go back.
func (p *Proxy) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	sent, received := p.sent.Load(), p.received.Load()
	for l := range p.links {
		if l.raw {
			// The kernel copies these; only it knows how far it is.
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
