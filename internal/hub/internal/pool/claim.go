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

// Binding is what a claimed sandbox becomes.
type Binding struct {
	// Spec is what a cold create would have been given, whole.
	Spec sandbox.Spec
	// Env and Files are given to the server inside and kept nowhere else: secrets.
	Env   map[string]string
	Files []File
}

// File is written inside before anything runs.
type File struct {
	Path    string `json:"path"`
	Content []byte `json:"content"` // base64 on the wire
	Mode    string `json:"mode,omitempty"`
}

// Init is what the server inside is told.
type Init struct {
	Env     map[string]string `json:"env,omitempty"`
	Unset   []string          `json:"unset,omitempty"`
	Files   []File            `json:"files,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
}

// ErrRefused is Bind's error when the server inside cannot become what it is told,
// and no other member could.
var ErrRefused = errors.New("a warm sandbox cannot be changed like this")

// ErrBound is Bind's error when the server inside has been told before: a claim of it was cut short.
var ErrBound = errors.New("the sandbox has been told already whose it is")

// errTaken means that another pool was quicker.
var errTaken = errors.New("the sandbox is no longer a member")

// refillDelay is how long after a claim the next member is created.
const refillDelay = 50 * time.Millisecond

// maxTries bounds how many members one claim can use up.
const maxTries = 3

// Claim turns a ready member of the environment into the sandbox that b describes.
// False without an error means that no member can become it, and the caller creates a
// cold one. A member that fails is deleted, and the next is tried. Errors are those
// that a create would return as well, such as ErrConflict.
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

// countClaim makes the refill wait until the claim is over, and a moment longer: whoever has just got one has the machine
// to itself.
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

// checkName returns ErrConflict if the name is taken, which then costs no member.
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

// take holds the oldest member that can become what is asked for.
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

// fits reports whether only such things differ that can still be changed.
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

// discard deletes a member whose claim failed, in the background: it has got no name yet that somebody
// could wait for.
func (p *Pool) discard(sb sandbox.Sandbox, err error) {
	if errors.Is(err, errTaken) || errors.Is(err, sandbox.ErrNotFound) {
		p.release(sb.ID)
		return
	}
	// A bad request is not the environment's fault, nor what an earlier hub has left.
	ours := true
	for _, other := range []error{ErrRefused, ErrBound, sandbox.ErrConflict, sandbox.ErrInvalid, context.Canceled, context.DeadlineExceeded} {
		ours = ours && !errors.Is(err, other)
	}
	if ours {
		p.backOff(sb.Spec.Environment, err)
	}
	p.background(func(context.Context) { p.remove(sb, "its claim failed") })
}

// bind turns a member into the sandbox of b: first inside, then in its record. A member that is told
// whose it is cannot be told again, so one whose record was not reached is nobody's for ever.
func (p *Pool) bind(ctx context.Context, member sandbox.Sandbox, b Binding) (sandbox.Sandbox, error) {
	next, init := boundSpec(member.Spec, b)
	if err := p.cfg.Bind(ctx, member, init); err != nil {
		return member, fmt.Errorf("bind the server inside: %w", err)
	}
	sb, err := p.cfg.Provider.Update(ctx, member.ID, func(s *sandbox.Spec) error {
		if s.Owner != Owner {
			return errTaken
		}
		*s = next.Clone()
		return nil
	})
	if err != nil {
		return sb, fmt.Errorf("bind the record: %w", err)
	}
	return sb, nil
}

// boundSpec returns the Spec of the claimed sandbox, and what its server must be told.
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
	// If the provider keeps these for the next start, a claimed sandbox restarts like
	// a cold one. If not, its server waits again then.
	if member.CheckUpdate(next) != nil {
		next.Env, next.Workdir = member.Env, member.Workdir
	}
	return next, init
}
