package egress

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"github.com/cove-sandbox/cove/internal/network/egress/internal/learn"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// target is a host and a port.
type target struct {
	host string
	port int
}

// Use is what a sandbox did with one host and port, and Learning is a recording of uses.
type (
	Use      = learn.Use
	Learning = learn.Learning
)

// note adds a connection to the recording. Rules do not apply to peers, so none is proposed for them.
func (p *policy) note(rec *Record) {
	if !p.Learner.Active() || rec.Private || rec.Port == 0 || !isTarget(rec.Host) {
		return
	}
	result := learn.Failed
	switch rec.Verdict {
	case Allowed:
		result = learn.Allowed
	case Refused:
		result = learn.Denied
	}
	p.Learner.Note(rec.Host, rec.Port, rec.Program, rec.Time, result)
}

// isTarget reports whether a host is a clean name or an address, as opposed to unchecked input. It excludes
// names that command lines read as a flag.
func isTarget(host string) bool {
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	clean, err := CleanName(host)
	return err == nil && clean == host && host[0] != '-'
}

// Names of what allows a connection that no rule matches.
const (
	ruleLearning = "learning mode"
	ruleApproved = "approved once"
)

// policy decides which connections are allowed: the rules decide first, then approvals and the learning mode.
type policy struct {
	rules     atomic.Pointer[Rules]
	Learner   learn.Learner
	Approvals Approvals
}

// decide returns what allows connections to a host, or why they are refused.
func (p *policy) decide(host string, port int) (rule string, err error) {
	rule, err = p.rules.Load().decide(host, port)
	switch {
	case !isUnmatched(err):
		return rule, err
	case p.Learner.Open():
		return ruleLearning, nil
	case p.rules.Load().mode == sandbox.NetworkAsk && p.Approvals.approved(host, port):
		return ruleApproved, nil
	}
	return "", err
}

// isUnmatched reports whether a connection was refused because no rule matches.
func isUnmatched(err error) bool {
	e, ok := errors.AsType[*deniedError](err)
	return ok && e.unmatched
}
