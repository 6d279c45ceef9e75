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
	for range maxTries {
		member, ok := p.take(env, fingerprint, b.Spec)
		if !ok {
			break
		}
		sb, kept, err := p.bind(ctx, member, b)
		if err == nil {
			p.release(sb.ID)
			// Whoever has just got one has the machine to itself for a moment.
			time.AfterFunc(refillDelay, p.Kick)
			return sb, true, nil
		}
		if kept {
			p.giveBack(env, member)
			if errors.Is(err, sandbox.ErrConflict) {
				return sandbox.Sandbox{}, false, err
			}
			break
		}
		p.discard(member, err)
		if ctx.Err() != nil {
			return sandbox.Sandbox{}, false, context.Cause(ctx)
		}
		if errors.Is(err, ErrRefused) {
			break
		}
	}
	return sandbox.Sandbox{}, false, nil
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
	want.Env, want.Workdir = member.Env, member.Workdir
	if want.Name == "" {
		want.Name = member.Name
	}
	return member.CheckUpdate(want) == nil && p.cfg.Live(member.Resources, want.Resources)
}

// giveBack returns an unchanged member to the pool.
func (p *Pool) giveBack(env string, sb sandbox.Sandbox) {
	p.mu.Lock()
	p.ready[env] = append([]sandbox.Sandbox{sb}, p.ready[env]...)
	p.mu.Unlock()
	p.release(sb.ID)
}

// discard deletes a member whose claim failed. The caller waits, since only then the
// name that it was given is free.
func (p *Pool) discard(sb sandbox.Sandbox, err error) {
	if errors.Is(err, errTaken) || errors.Is(err, sandbox.ErrNotFound) {
		p.release(sb.ID)
		return
	}
	// A bad request is not the environment's fault.
	if !errors.Is(err, ErrRefused) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		p.backOff(sb.Spec.Environment, err)
	}
	p.remove(sb, "its claim failed")
}

// bind turns a member into the sandbox of b. kept means that it failed without
// changing the member.
func (p *Pool) bind(ctx context.Context, member sandbox.Sandbox, b Binding) (_ sandbox.Sandbox, kept bool, err error) {
	next, init := boundSpec(member.Spec, b)
	sb, err := p.cfg.Provider.Update(ctx, member.ID, func(s *sandbox.Spec) error {
		if _, half := s.Annotations[noteBinding]; half || s.Owner != Owner {
			return errTaken
		}
		*s = next.Clone()
		s.Annotations[noteBinding] = "true"
		return nil
	})
	if err != nil {
		return sb, errors.Is(err, sandbox.ErrConflict) || errors.Is(err, sandbox.ErrInvalid), fmt.Errorf("bind the record: %w", err)
	}
	sb.Spec.Env = member.Spec.Env // with which its server runs
	if err := p.cfg.Bind(ctx, sb, init); err != nil {
		return sb, false, fmt.Errorf("bind the server inside: %w", err)
	}
	sb, err = p.cfg.Provider.Update(ctx, member.ID, func(s *sandbox.Spec) error {
		delete(s.Annotations, noteBinding)
		return nil
	})
	if err != nil {
		return sb, false, fmt.Errorf("end the binding: %w", err)
	}
	return sb, false, nil
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
