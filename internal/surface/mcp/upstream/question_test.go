package upstream

import (
	"context"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// asker is a server with sessions. Its tool asks for a name, and reports how the question ended.
func asker(t *testing.T) (server Server, ended chan error) {
	t.Helper()
	remote, server := newServer(t, "asker")
	ended = make(chan error, 2*maxParked)
	remote.AddTool(&mcp.Tool{Name: "ask", InputSchema: map[string]any{"type": "object"}},
		func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			a, err := r.Session.Elicit(ctx, &mcp.ElicitParams{Message: "name?", RequestedSchema: map[string]any{"type": "object"}})
			ended <- err
			if err != nil {
				return nil, err
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: a.Action}}}, nil
		})
	return server, ended
}

// call calls the tool, or continues a call with answers.
type call func(ctx context.Context, state string, answers mcp.InputResponseMap) (*mcp.CallToolResult, error)

// statelessCaller returns a client without sessions.
func statelessCaller(t *testing.T, r *rig, name string, caps any) call {
	t.Helper()
	m := mcp.Meta{mcp.MetaKeyProtocolVersion: Stateless, mcp.MetaKeyClientInfo: map[string]any{"name": name},
		mcp.MetaKeyClientCapabilities: caps}
	r.mu.Lock()
	handle := r.mounts["asker"].callTool("ask")
	local := r.local
	r.mu.Unlock()
	return func(ctx context.Context, state string, responses mcp.InputResponseMap) (*mcp.CallToolResult, error) {
		var session *mcp.ServerSession
		for s := range local.Sessions() {
			session = s
		}
		return handle(ctx, &mcp.CallToolRequest{Session: session,
			Params: &mcp.CallToolParamsRaw{Meta: m, Name: "ask", RequestState: state, InputResponses: responses}})
	}
}

var canElicit = map[string]any{"elicitation": map[string]any{}}

// TestParkedCall: only the client that a question was sent to can answer it, once, and with the
// right kind of answer.
func TestParkedCall(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server, ended := asker(t)
	r.Mount(server)
	r.Await(t.Context())
	same, other := statelessCaller(t, r, "a", canElicit), statelessCaller(t, r, "b", canElicit)
	asking, err := same(t.Context(), "", nil)
	if err != nil || len(asking.InputRequests) != 1 || asking.InputRequests[questionID].(*mcp.ElicitParams).Message != "name?" {
		t.Fatalf("got %+v, %v, want the question", asking, err)
	}
	state := asking.RequestState
	yes := mcp.InputResponseMap{questionID: &mcp.ElicitResult{Action: "accept"}}
	for name, x := range map[string]struct {
		call  call
		state string
		a     mcp.InputResponseMap
		want  string
	}{
		"another client": {other, state, yes, "belongs to another request"},
		"unknown state":  {same, statePrefix + "x", yes, "has ended"},
		"no answer":      {same, state, nil, "no answer"},
		"another kind":   {same, state, mcp.InputResponseMap{questionID: &mcp.ListRootsResult{}}, "another kind"},
	} {
		if got, err := x.call(t.Context(), x.state, x.a); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: got %+v, %v, want %q", name, got, err, x.want)
		}
	}
	got, err := same(t.Context(), state, yes)
	if err != nil || got.Content[0].(*mcp.TextContent).Text != "accept" || <-ended != nil {
		t.Errorf("got %+v, %v, want the result", got, err)
	}
	if got, err := same(t.Context(), state, yes); err == nil || !strings.Contains(err.Error(), "has ended") {
		t.Errorf("got %+v, %v, want that the call has ended", got, err)
	}
}

// TestClientCannotAnswer: a server gets an error if the client does not support its question.
func TestClientCannotAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server, ended := asker(t)
	r.Mount(server)
	r.Await(t.Context())
	if got, err := statelessCaller(t, r, "a", map[string]any{})(t.Context(), "", nil); err == nil {
		t.Errorf("got %+v, want an error", got)
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "elicitation") {
		t.Errorf("got %v, want that elicitation is not supported", err)
	}
}

// TestParkedCallsEnd: calls that are never answered are limited, and end with their server.
func TestParkedCallsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server, _ := asker(t)
	r.Mount(server)
	r.Await(t.Context())
	ask := statelessCaller(t, r, "a", canElicit)
	for range maxParked {
		if got, err := ask(t.Context(), "", nil); err != nil || got.RequestState == "" {
			t.Fatalf("got %+v, %v, want a question", got, err)
		}
	}
	if got, err := ask(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), "limit of calls") {
		t.Errorf("got %+v, %v, want that too many calls wait", got, err)
	}
	r.parking.mu.Lock()
	var all []*parked
	for _, p := range r.parking.byState {
		all = append(all, p)
	}
	r.parking.mu.Unlock()
	r.Unmount("asker")
	testenv.Poll(t, "the end of all calls", func() bool {
		for _, p := range all {
			select {
			case <-p.done:
			default:
				return false
			}
		}
		return true
	})
}
