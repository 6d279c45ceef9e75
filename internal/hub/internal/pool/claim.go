package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Binding describes the claimed sandbox.
type Binding struct {
	// Spec is the complete Spec of a cold create.
	Spec sandbox.Spec
	// Env and Files are secrets, which only the server inside receives.
	Env   map[string]string
	Files []File
}

// File is written inside before anything runs.
type File struct {
	Path    string `json:"path"`
	Content []byte `json:"content"` // base64 on the wire
	Mode    string `json:"mode,omitempty"`
}

// Init is the request that initializes the server inside.
type Init struct {
	Env     map[string]string `json:"env,omitempty"`
	Unset   []string          `json:"unset,omitempty"`
	Files   []File            `json:"files,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
}

// ErrRefused is Bind's error if the server inside rejects the values, which other members would reject
// too.
var ErrRefused = errors.New("the server in the sandbox rejected its settings")

// ErrBound is Bind's error if the server inside already has an owner, because a claim was interrupted.
var ErrBound = errors.New("the sandbox is already bound to an owner")

// errTaken means that another pool has claimed the member.
var errTaken = errors.New("another pool has claimed the sandbox")

// refillDelay is the delay between a claim and the create of its replacement.
const refillDelay = 50 * time.Millisecond

// maxTries is the maximum number of members that one claim can delete.
const maxTries = 3

// Claim turns a ready member of the environment into the sandbox that b describes. False without an error
// means that no member fits; the caller then creates a cold sandbox. A member that fails is deleted, and
// Claim tries the next. Errors are those of a create, such as ErrConflict.
func (p *Pool) Claim(ctx context.Context, env, fingerprint string, b Binding) (sandbox.Sandbox, bool, error) {
	if err := p.checkName(ctx, b.Spec); err != nil {
		return sandbox.Sandbox{}, false, err
	}
	defer p.countClaim()()
	for tries := 0; tries < maxTries; {
		member, ok := p.take(env, fingerprint, b.Spec)
		if !ok {
			break
		}
		sb, err := p.bind(ctx, member, b)
		if err == nil {
			p.release(sb.ID)
			return sb, true, nil
		}
		p.discard(member, err)
		switch {
		case ctx.Err() != nil:
			return sandbox.Sandbox{}, false, context.Cause(ctx)
		case errors.Is(err, sandbox.ErrConflict):
			return sandbox.Sandbox{}, false, err
		case errors.Is(err, ErrRefused), errors.Is(err, sandbox.ErrInvalid):
			return sandbox.Sandbox{}, false, nil
		case !errors.Is(err, ErrBound):
			tries++
		}
	}
	return sandbox.Sandbox{}, false, nil
}

// countClaim pauses the refill during a claim and shortly afterwards, so that the refill does not slow down
// the claimed sandbox.
func (p *Pool) countClaim() (over func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.claims++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.claims--
		time.AfterFunc(refillDelay, p.Notify)
	}
}

// checkName returns ErrConflict if the name is in use, before a member is used up.
func (p *Pool) checkName(ctx context.Context, s sandbox.Spec) error {
	if s.Name == "" {
		return nil
	}
	same, err := p.cfg.Provider.List(ctx, sandbox.Filter{Owner: s.Owner, Name: s.Name})
	if err == nil && len(same) > 0 {
		err = fmt.Errorf("%w: %q", sandbox.ErrConflict, s.Name)
	}
	return err
}

// take holds the oldest member that fits the request.
func (p *Pool) take(env, print string, want sandbox.Spec) (sandbox.Sandbox, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := p.ready[env]
	i := slices.IndexFunc(list, func(sb sandbox.Sandbox) bool { return sb.Spec.Annotations[notePrint] == print })
	if i < 0 || p.closed || !p.fits(list[i].Spec, want) {
		return sandbox.Sandbox{}, false
	}
	sb := list[i]
	p.ready[env] = slices.Delete(slices.Clone(list), i, i+1)
	p.held[sb.ID] = true
	p.moves++
	return sb, true
}

// fits reports whether a member differs only in values that can be changed.
func (p *Pool) fits(member, want sandbox.Spec) bool {
	if apart, ok := p.cfg.Provider.(sandbox.Placer); ok && !apart.SamePlace(member.Owner, want.Owner) {
		return false
	}
	want.Env, want.Workdir = member.Env, member.Workdir
	if want.Name == "" {
		want.Name = member.Name
	}
	return member.CheckUpdate(want) == nil && p.cfg.Live(member.Resources, want.Resources)
}

// discard deletes a member whose claim failed. It does so in the background, because the member has no name
// that a caller could wait for.
func (p *Pool) discard(sb sandbox.Sandbox, err error) {
	if errors.Is(err, errTaken) || errors.Is(err, sandbox.ErrNotFound) {
		p.release(sb.ID)
		return
	}
	// Neither an invalid request nor an interrupted claim is a failure of the environment.
	ours := true
	for _, other := range []error{ErrRefused, ErrBound, sandbox.ErrConflict, sandbox.ErrInvalid, context.Canceled, context.DeadlineExceeded} {
		ours = ours && !errors.Is(err, other)
	}
	if ours {
		p.backOff(sb.Spec.Environment, err)
	}
	p.background(func(context.Context) { p.remove(sb, "its claim failed") })
}

// bind turns a member into the sandbox of b: first the server inside, then its Spec. A server can be bound
// only once, so if the update of the Spec fails, the member can never be claimed.
func (p *Pool) bind(ctx context.Context, member sandbox.Sandbox, b Binding) (sandbox.Sandbox, error) {
	next, init := boundSpec(member.Spec, b)
	if err := p.cfg.Bind(ctx, member, init); err != nil {
		return member, fmt.Errorf("bind server: %w", err)
	}
	sb, err := p.cfg.Provider.Update(ctx, member.ID, func(s *sandbox.Spec) error {
		if s.Owner != Owner {
			return errTaken
		}
		*s = next.Clone()
		return nil
	})
	if err != nil {
		return sb, fmt.Errorf("update spec: %w", err)
	}
	return sb, nil
}

// boundSpec returns the Spec of the claimed sandbox, and the request for its server.
func boundSpec(member sandbox.Spec, b Binding) (sandbox.Spec, Init) {
	next := b.Spec.Clone()
	if next.Name == "" {
		next.Name = member.Name
	}
	if next.Annotations == nil {
		next.Annotations = map[string]string{}
	}
	next.Annotations[noteClaimed] = time.Now().UTC().Format(time.RFC3339Nano)
	if next.Env == nil {
		next.Env = map[string]string{}
	}
	delete(next.Env, EnvInit)
	init := Init{Env: maps.Clone(next.Env), Files: b.Files}
	maps.Copy(init.Env, b.Env)
	if len(b.Env) > 0 {
		next.Env[EnvInit] = "true"
	}
	for k := range member.Env {
		if _, ok := init.Env[k]; !ok {
			init.Unset = append(init.Unset, k)
		}
	}
	slices.Sort(init.Unset)
	if next.Workdir != member.Workdir {
		init.Workdir = next.Workdir
	}
	// If the provider stores these for the next start, a claimed sandbox restarts like
	// a cold one. If not, its server waits again then.
	if member.CheckUpdate(next) != nil {
		next.Env, next.Workdir = member.Env, member.Workdir
	}
	return next, init
}
