package policy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// LearnIn starts a recording.
type LearnIn struct {
	Name     string  `path:"name" doc:"Name of the sandbox"`
	Minutes  float64 `json:"minutes" default:"30" minimum:"0.01" maximum:"1440" doc:"When the recording ends"`
	AllowAll bool    `json:"allow_all" default:"false" doc:"Meanwhile allow all public addresses for which there is no rule"`
}

// Learned is a recording of what a sandbox used, and the rules that allow it.
type Learned struct {
	Active   bool      `json:"active"`
	AllowAll bool      `json:"allow_all" doc:"Whether destinations without a rule are allowed during the recording"`
	Began    time.Time `json:"began"`
	Until    time.Time `json:"until" doc:"When the recording ends, or ended"`
	Names    []Used    `json:"names" doc:"Destinations by host and port"`
	Dropped  int       `json:"dropped" doc:"Connections to further destinations, which were not recorded"`
	Rules    []string  `json:"rules" doc:"Proposed rules: they allow the recorded destinations that were reached"`
}

// Used is a destination that a sandbox used or tried to use.
type Used struct {
	Host    string    `json:"host" doc:"Name in its ASCII form (xn-- for others), or address"`
	Port    int       `json:"port"`
	Count   int       `json:"count" doc:"Allowed connections, and plain HTTP requests"`
	Denied  int       `json:"denied"`
	Failed  int       `json:"failed"`
	Program string    `json:"program" doc:"Latest program, by the name that it sent; it can be false"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Learn starts a recording.
func (s *Service) Learn(ctx context.Context, in LearnIn) (Learned, error) {
	sb, p, err := s.proxy(ctx, in.Name)
	if err != nil {
		return Learned{}, err
	}
	d := time.Duration(in.Minutes * float64(time.Minute))
	p.Learner.Start(d, in.AllowAll, func() { s.Observer.Acted("egress_learn_ended", sb) })
	mode := "its rules stay in force"
	if in.AllowAll {
		mode = "destinations without a rule are allowed"
	}
	until := time.Now().Add(d).UTC().Format(time.DateTime)
	s.Observer.Announced("learning", sb, fmt.Sprintf("recording network use until %s UTC; %s", until, mode))
	return learned(p), nil
}

// NameIn names a sandbox.
type NameIn struct {
	Name string `path:"name" doc:"Name of the sandbox"`
}

// Learned shows the recording.
func (s *Service) Learned(ctx context.Context, in NameIn) (Learned, error) {
	_, p, err := s.proxy(ctx, in.Name)
	if err != nil {
		return Learned{}, err
	}
	if p.Learner.Read().Began.IsZero() {
		return Learned{}, noRecording(in.Name)
	}
	return learned(p), nil
}

func noRecording(name string) error {
	return op.Errorf(op.NotFound, "sandbox %q has no recording; start one with cove egress learn, and again after a restart of the hub", name)
}

// FinishIn ends a recording.
type FinishIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	Apply bool   `query:"apply" default:"false" doc:"Make the proposed rules its policy, after existing rules that deny"`
}

// Finish ends the recording.
func (s *Service) Finish(ctx context.Context, in FinishIn) (Learned, error) {
	sb, p, err := s.proxy(ctx, in.Name)
	if err != nil {
		return Learned{}, err
	}
	if p.Learner.Read().Began.IsZero() {
		return Learned{}, noRecording(in.Name)
	}
	if p.Learner.Stop() {
		s.Observer.Announced("learning", sb, "recording of network use ended")
	}
	out := learned(p)
	if !in.Apply {
		return out, nil
	}
	if len(out.Rules) == 0 {
		return out, op.Errorf(op.Conflict, "the recording proposes no rules, because no connection was allowed; set mode none instead")
	}
	_, err = s.change(ctx, in.Name, func(n *sandbox.Network) error {
		if n.Mode != sandbox.NetworkAsk {
			n.Mode = sandbox.NetworkAllow
		}
		n.Allow = denials(n.Allow)
		return addRules(n, out.Rules)
	})
	return out, err
}

// denials returns the rules that deny.
func denials(rules []string) (out []string) {
	for _, r := range rules {
		if strings.HasPrefix(r, "!") {
			out = append(out, r)
		}
	}
	return out
}

func learned(p *egress.Proxy) Learned {
	l := p.Learner.Read()
	out := Learned{Active: l.Active, AllowAll: l.Open, Began: l.Began.UTC(), Until: l.Until.UTC(), Names: []Used{}, Dropped: l.Dropped,
		Rules: propose(l.Uses)}
	for _, u := range l.Uses {
		out.Names = append(out.Names, Used{u.Host, u.Port, u.Allowed, u.Denied, u.Failed, u.Program, u.First.UTC(), u.Last.UTC()})
	}
	return out
}

// proxy returns a sandbox and its egress proxy.
func (s *Service) proxy(ctx context.Context, name string) (sandbox.Sandbox, *egress.Proxy, error) {
	sb, err := s.Fleet.Find(ctx, name)
	if err != nil {
		return sb, nil, err
	}
	if able := s.Provider.Abilities(); !able.Egress {
		return sb, nil, op.Errorf(op.Invalid, "provider %s has no egress proxy", able.Provider)
	}
	p := s.Fleet.Egress(sb)
	if p == nil {
		return sb, nil, op.Errorf(op.Conflict, "the egress proxy of sandbox %q is not open; start the sandbox first", name)
	}
	return sb, p, nil
}
