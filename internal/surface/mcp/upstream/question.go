package upstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// maxRounds bounds the questions that a server asks with the results of one request.
	maxRounds = 10
	// parkLimit bounds the wait for the answer of a client without a session.
	parkLimit = 10 * time.Minute
	// maxParked bounds the requests that wait for answers.
	maxParked = 64
	// statePrefix marks the state of a parked request, as opposed to that of a server.
	statePrefix = "cove-"
)

// A server with sessions sends its questions as requests, while the call that caused them is in
// progress. A client without sessions receives them with the result of its request, and repeats
// the request with the answers. Such a call is parked in the meantime: it continues at the server,
// and the state that the client sends back identifies it.

// parked is a call of a client without sessions. It owns the goroutine that forwards it.
type parked struct {
	mount     *mount
	client    string // the only one that may continue it
	request   string // method and name, which must not change
	run       *run
	cancel    context.CancelFunc
	questions chan *question
	done      chan struct{} // closed when out and err are set
	out       any
	err       error

	mu       sync.Mutex
	attached bool        // a request of the client is waiting
	open     *question   // the client must answer it
	expiry   *time.Timer // set while no request is waiting
}

// question is a request of a server to a client.
type question struct {
	params mcp.InputRequest
	answer chan mcp.InputResponse
}

// parking contains the parked calls by their state.
type parking struct {
	mu      sync.Mutex
	byState map[string]*parked
}

func (p *parking) get(state string) *parked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byState[state]
}

func (p *parking) remove(state string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.byState, state)
}

// add returns the state of a call; false: too many calls are parked.
func (p *parking) add(call *parked) (state string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byState) >= maxParked {
		return "", false
	}
	state = statePrefix + rand.Text()
	p.byState[state] = call
	return state, true
}

// clear forgets all calls. Their servers are closed.
func (p *parking) clear() {
	p.mu.Lock()
	all := p.byState
	p.byState = map[string]*parked{}
	p.mu.Unlock()
	for _, call := range all {
		call.mu.Lock()
		if call.expiry != nil {
			call.expiry.Stop()
		}
		call.mu.Unlock()
	}
}

// ask asks the client of a call, and waits for the answer.
func (p *parked) ask(ctx context.Context, params mcp.InputRequest) (mcp.InputResponse, error) {
	q := &question{params, make(chan mcp.InputResponse, 1)}
	ended := errors.New("the call ended before the client answered")
	select {
	case p.questions <- q:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.done:
		return nil, ended
	}
	select {
	case a := <-q.answer:
		return a, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.done:
		return nil, ended
	}
}

// converse forwards a request of a client without sessions, or continues a parked one.
func converse[R mcp.Result](m *mount, ctx context.Context, c client, in round, send sender[R]) (out R, err error) {
	p := m.s.parking.get(in.state)
	switch {
	case p != nil:
		if err := p.resume(ctx, m, c, in); err != nil {
			return out, err
		}
	case strings.HasPrefix(in.state, statePrefix):
		return out, refusal("the call that waited for these answers has ended; call it again without requestState")
	default:
		p = park(m, ctx, c, in, send)
		in.state = ""
	}
	select {
	case <-p.done:
		m.s.parking.remove(in.state)
		if p.err != nil {
			return out, p.err
		}
		return p.out.(R), nil
	case q := <-p.questions:
		return leave[R](m, p, in.state, q)
	case <-ctx.Done():
		m.s.parking.remove(in.state)
		p.cancel()
		return out, ctx.Err()
	}
}

// park begins a call that may outlive its request.
func park[R mcp.Result](m *mount, ctx context.Context, c client, in round, send sender[R]) *parked {
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &parked{mount: m, client: c.id, request: in.request, cancel: cancel, attached: true,
		questions: make(chan *question), done: make(chan struct{})}
	p.run = newRun(ctx, c)
	p.run.parked = p
	m.s.work.Go(func() {
		defer cancel()
		defer context.AfterFunc(m.life, cancel)()
		out, err := exchange(m, life, c, p.run, in, send)
		p.out, p.err = out, err
		close(p.done)
	})
	return p
}

// leave returns a question to the client, and waits for the request with the answer.
func leave[R mcp.Result](m *mount, p *parked, state string, q *question) (out R, err error) {
	if state == "" {
		var ok bool
		if state, ok = m.s.parking.add(p); !ok {
			p.cancel()
			return out, refusal(fmt.Sprintf("limit of calls that wait for answers reached (%d); retry later", maxParked))
		}
	}
	if out, err = asking[R](mcp.InputRequestMap{questionID: q.params}, state); err != nil {
		m.s.parking.remove(state)
		p.cancel()
		return out, err
	}
	p.run.detach()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attached, p.open = false, q
	p.expiry = time.AfterFunc(parkLimit, func() {
		m.s.parking.remove(state)
		p.cancel()
	})
	return out, nil
}

// questionID names the question in a result. A result has one question.
const questionID = "question"

// resume continues a parked call with the client's answer.
func (p *parked) resume(ctx context.Context, m *mount, c client, in round) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.mount != m || p.client != c.id || p.request != in.request:
		return refusal("requestState belongs to another request; send it with the request that it was returned for")
	case p.attached:
		return refusal("another request already waits for the result of this call")
	}
	a := in.responses[questionID]
	if !answers(a, p.open.params) {
		return refusal(fmt.Sprintf("inputResponses has no answer to %q, or one of another kind", questionID))
	}
	if !p.expiry.Stop() {
		return refusal("the call expired before it was answered; call it again without requestState")
	}
	p.run.attach(ctx, c)
	p.attached = true
	p.open.answer <- a
	p.open = nil
	return nil
}

// answers reports whether a response is of the kind that a question requires.
func answers(a mcp.InputResponse, q mcp.InputRequest) (ok bool) {
	switch q.(type) {
	case *mcp.ElicitParams:
		_, ok = a.(*mcp.ElicitResult)
	case *mcp.CreateMessageWithToolsParams:
		_, ok = a.(*mcp.CreateMessageWithToolsResult)
	case *mcp.ListRootsParams:
		_, ok = a.(*mcp.ListRootsResult)
	}
	return ok
}

// asking returns a result that asks the client.
func asking[R mcp.Result](questions mcp.InputRequestMap, state string) (out R, err error) {
	switch p := any(&out).(type) {
	case **mcp.CallToolResult:
		*p = &mcp.CallToolResult{InputRequests: questions, RequestState: state}
	case **mcp.GetPromptResult:
		*p = &mcp.GetPromptResult{InputRequests: questions, RequestState: state}
	case **mcp.ReadResourceResult:
		*p = &mcp.ReadResourceResult{InputRequests: questions, RequestState: state}
	default:
		return out, refusal("the server asked a question, which this request does not support")
	}
	return out, nil
}

// asked returns the questions of a result.
func asked(result mcp.Result) (questions mcp.InputRequestMap, state string, ok bool) {
	switch r := result.(type) {
	case *mcp.CallToolResult:
		return r.InputRequests, r.RequestState, r.NeedsInput()
	case *mcp.GetPromptResult:
		return r.InputRequests, r.RequestState, r.NeedsInput()
	case *mcp.ReadResourceResult:
		return r.InputRequests, r.RequestState, r.NeedsInput()
	}
	return nil, "", false
}

// askSession asks a client with a session.
func askSession(ctx context.Context, s *mcp.ServerSession, q mcp.InputRequest) (mcp.InputResponse, error) {
	switch p := q.(type) {
	case *mcp.ElicitParams:
		return s.Elicit(ctx, p)
	case *mcp.CreateMessageWithToolsParams:
		return s.CreateMessageWithTools(ctx, p)
	case *mcp.ListRootsParams:
		return s.ListRoots(ctx, p)
	}
	return nil, refusal("unknown kind of question")
}

// answerRounds answers the questions in the results of a server without sessions for a client with
// one, by repeating the request with the answers.
func answerRounds[R mcp.Result](ctx context.Context, c client, in round, send func(round) (R, error)) (R, error) {
	for n := 0; ; n++ {
		out, err := send(in)
		if err != nil {
			return out, err
		}
		questions, state, ok := asked(out)
		if !ok {
			return out, nil
		}
		if n == maxRounds || len(questions) == 0 {
			return out, refusal("the server is busy, or asks too many questions; retry later")
		}
		in.state, in.responses = state, mcp.InputResponseMap{}
		for id, q := range questions {
			if in.responses[id], err = askSession(ctx, c.session, q); err != nil {
				if _, answered := errors.AsType[*jsonrpc.Error](err); !answered && ctx.Err() == nil {
					err = refusal(err.Error()) // not a failure of the server
				}
				return out, err
			}
		}
	}
}

func refusal(message string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: message}
}
