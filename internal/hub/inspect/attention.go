package inspect

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	maxAttention = 200             // items of a reply
	helpTime     = 2 * time.Second // for the answers of all sandboxes
	maxHelp      = 100             // sandboxes that are asked
	maxMessage   = 200             // characters of a request, which a sandbox chooses
)

func attentionOps(s *Service) []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "hub_attention", Route: "GET /api/v1/attention", Tag: "hub", Verb: "attention",
			ReadOnly: true, NoTool: true, Columns: []string{"kind", "name", "host", "port", "since", "until"},
			Doc: "List what waits for a person, oldest first: connections that wait for approval, and agents that wait until a " +
				"person has solved a captcha or taken over the display. Does not wake sandboxes or keep them awake."}, s.Attention),
	}
}

// Need is something that waits for a person.
type Need struct {
	Kind    string     `json:"kind" enum:"approval,captcha,takeover"`
	Sandbox string     `json:"sandbox" doc:"ID of the sandbox"`
	Name    string     `json:"name"`
	User    string     `json:"user,omitempty"`
	Since   time.Time  `json:"since"`
	Until   *time.Time `json:"until" doc:"When a connection is denied; null for others"`
	Host    string     `json:"host,omitempty" doc:"Destination of a connection; egress allow and deny accept it"`
	Port    int        `json:"port,omitempty"`
	Message string     `json:"message,omitempty" doc:"What an agent asks a person to do"`
	Program string     `json:"program,omitempty" doc:"First program, by the name that it sent; it can be false"`
}

// Attention lists what waits for a person.
func (s *Service) Attention(ctx context.Context, in UserIn) ([]Need, error) {
	list, err := s.Sandboxes.Select(ctx, lifecycle.ListIn{User: in.User, Status: []string{string(sandbox.Running)}})
	if err != nil {
		return nil, err
	}
	op.CallOf(ctx).Recorded = true // pages poll
	out := []Need{}
	var busy []sandbox.Sandbox
	for _, sb := range list {
		if sb.Spec.Network.Mode == sandbox.NetworkAsk {
			out = append(out, s.approvals(sb)...)
		}
		if fleet.IsNative(sb) && s.Fleet.OpenRequests(sb) > 0 && len(busy) < maxHelp { // the call of the agent is one
			busy = append(busy, sb)
		}
	}
	out = append(out, s.helps(ctx, busy)...)
	slices.SortStableFunc(out, func(a, b Need) int { return a.Since.Compare(b.Since) })
	return out[:min(len(out), maxAttention)], nil
}

// approvals returns the connections of a sandbox that wait for approval.
func (s *Service) approvals(sb sandbox.Sandbox) (out []Need) {
	p := s.Fleet.Egress(sb)
	if p == nil {
		return nil
	}
	for _, q := range p.Approvals.List() {
		out = append(out, Need{Kind: "approval", Sandbox: sb.ID, Name: sb.Spec.Name, User: sb.Spec.Owner,
			Since: q.Since.UTC(), Until: new(q.Until.UTC()), Host: q.Host, Port: q.Port, Program: q.Program})
	}
	return out
}

// clip truncates a message of a sandbox.
func clip(text string) string {
	if r := []rune(text); len(r) > maxMessage {
		return string(r[:maxMessage]) + "…"
	}
	return text
}

// helps asks sandboxes for calls that wait for a person, a few at a time.
func (s *Service) helps(ctx context.Context, list []sandbox.Sandbox) (out []Need) {
	ctx, cancel := context.WithTimeout(ctx, helpTime)
	defer cancel()
	var mu sync.Mutex
	var wait sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, sb := range list {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			text, err := fleet.Ask(ctx, s.Fleet, sb, http.MethodGet, "/v1/sandbox/activity?limit=0", nil)
			var reply struct {
				Help []struct {
					Kind    string    `json:"kind"`
					Message string    `json:"message"`
					Since   time.Time `json:"since"`
				} `json:"help"`
			}
			if err != nil || json.Unmarshal(text, &reply) != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, h := range reply.Help[:min(len(reply.Help), 20)] {
				if h.Kind == "captcha" || h.Kind == "takeover" {
					out = append(out, Need{Kind: h.Kind, Sandbox: sb.ID, Name: sb.Spec.Name, User: sb.Spec.Owner, Since: h.Since,
						Message: clip(h.Message)})
				}
			}
		})
	}
	wait.Wait()
	return out
}
