// Package pool keeps warm sandboxes for environments, and gives one to an owner in
// milliseconds.
//
// A member is a sandbox of the environment's Spec whose server waits to be told
// whose it is (package guest/bind). Members belong to Owner, whose name no
// tenant can have, and have no timeout. Claim takes one, tells the server inside its
// environment, files and folder (Bind), and gives it the name, owner, labels, lifetime,
// network and resources that a cold create would have had (one Update, which is all that
// is written). A crash in between leaves a member that was told already: its server refuses
// the next claim, which deletes it and takes another.
//
// The pool owns its members, the refill and its limits; it forgets claimed
// sandboxes. It keeps no record but the provider's. It refuses to hand out a
// sandbox that differs in anything from what was asked for: then the caller
// creates a cold one.
//
// What a hub does with it:
//   - Hidden sandboxes are in nobody's list, count or clock, and not found by name.
//   - Created is when a sandbox got its owner; Sandbox.Created of a claimed one is
//     when the pool created it.
//   - After Start of a sandbox that Waits it calls Bind again.
//   - It calls Notify when an environment's definition or size has changed.
package pool

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Owner owns the members. No tenant's name begins like this, and subjects that do
// are replaced by a digest.
const Owner = "sub-pool"

// The pool's records on a sandbox.
const (
	noteOf      = "cove/pool"       // the environment, while it is a member
	notePrint   = "cove/pool-print" // the definition that it was made from
	noteClaimed = "cove/claimed"    // when it was: RFC 3339
)

// EnvInit is the variable of a Spec that makes the server inside wait, at every
// start, to be told whose it is.
const EnvInit = "AIO_INIT"

// Waits reports whether the server of such a sandbox does nothing after each Create
// and Start until it is told whose it is (Bind). A claim leaves that so only if it
// came with an Env: nobody but its caller knows it at the next start.
func Waits(s sandbox.Spec) bool { return s.Env[EnvInit] == "true" }

// Want is the desired pool of an environment.
type Want struct {
	Size int
	// Spec is a sandbox of the environment that no request has changed.
	Spec sandbox.Spec
	// Fingerprint identifies the definition of the environment; members of an earlier
	// one are deleted. Empty: Fingerprint(Spec).
	Fingerprint string
}

// Config of a pool.
type Config struct {
	Provider sandbox.Provider
	// Size returns what is wanted, by environment. It is called often and must not block.
	Size func() map[string]Want
	// Bind tells the server of a sandbox whose it is; see BindHTTP.
	Bind func(context.Context, sandbox.Sandbox, Init) error
	// Busy pauses the refill while it returns true: creates of callers go first.
	Busy func() bool
	// Live reports whether resources can change in a running sandbox. Nil: all but
	// disk and open files.
	Live func(from, to sandbox.Resources) bool

	Max      int           // members of all environments together; default 64
	Parallel int           // created at once; default 2
	Age      time.Duration // maximum age of a member; default an hour
	Every    time.Duration // between two inspections; default 5 seconds
	Log      *slog.Logger
}

// Pool keeps members ready.
type Pool struct {
	cfg     Config
	life    context.Context // ends with Close
	end     context.CancelFunc
	changed chan struct{}

	mu      sync.Mutex
	closed  bool
	work    sync.WaitGroup // grows only while not closed
	ready   map[string][]sandbox.Sandbox
	held    map[string]bool // by ID: being claimed or deleted
	pending map[string]int  // being created
	failing map[string]failure
	moves   int // grows whenever a member comes, goes or is released
	claims  int // under way
}

// failure counts the failed creates of an environment.
type failure struct {
	times int
	until time.Time // no create before this time
}

// New returns a pool. It starts nothing.
func New(cfg Config) *Pool {
	if cfg.Max <= 0 {
		cfg.Max = 64
	}
	if cfg.Parallel <= 0 {
		cfg.Parallel = 2
	}
	if cfg.Age <= 0 {
		cfg.Age = time.Hour
	}
	if cfg.Every <= 0 {
		cfg.Every = 5 * time.Second
	}
	if cfg.Busy == nil {
		cfg.Busy = func() bool { return false }
	}
	if cfg.Live == nil {
		cfg.Live = func(from, to sandbox.Resources) bool { return from.Disk == to.Disk && from.Files == to.Files }
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	p := &Pool{cfg: cfg, changed: make(chan struct{}, 1), ready: map[string][]sandbox.Sandbox{}, held: map[string]bool{},
		pending: map[string]int{}, failing: map[string]failure{}}
	p.life, p.end = context.WithCancel(context.Background())
	return p
}

// Begin takes up the existing members and starts the refill.
func (p *Pool) Begin(ctx context.Context) {
	p.inspect(ctx)
	p.background(p.loop)
}

// Close ends the refill. The members live on, for the next pool.
func (p *Pool) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	p.work.Wait()
	return nil
}

// background runs f until Close, which waits for it.
func (p *Pool) background(f func(ctx context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.work.Go(func() { f(p.life) })
	return true
}

// Notify makes the pool inspect itself now.
func (p *Pool) Notify() {
	select {
	case p.changed <- struct{}{}:
	default: // it will anyway
	}
}

// Ready returns how many members each environment has to hand out.
func (p *Pool) Ready() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for env, list := range p.ready {
		out[env] = len(list)
	}
	return out
}

// Hidden reports whether a sandbox belongs to no tenant.
func Hidden(sb sandbox.Sandbox) bool { return sb.Spec.Owner == Owner }

// Created is when the sandbox got its owner.
func Created(sb sandbox.Sandbox) time.Time {
	if t, err := time.Parse(time.RFC3339Nano, sb.Spec.Annotations[noteClaimed]); err == nil {
		return t
	}
	return sb.Created
}

// Fingerprint is the same for two specs that can stand in for each other.
func Fingerprint(s sandbox.Spec) string {
	b, _ := json.Marshal(s) // plain data, in a fixed order
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:12])
}

// member is the spec of a sandbox that waits for its owner.
func (w Want) member(env string) sandbox.Spec {
	s := w.Spec.Clone()
	s.Name, s.Owner, s.Environment = "", Owner, env
	s.Labels = nil
	s.Lifetime = sandbox.Lifetime{Timeout: sandbox.Never, IdleTimeout: sandbox.Never}
	s.Annotations = map[string]string{noteOf: env, notePrint: w.print()}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env[EnvInit] = "true"
	return s
}

func (w Want) print() string {
	if w.Fingerprint != "" {
		return w.Fingerprint
	}
	return Fingerprint(w.Spec)
}
