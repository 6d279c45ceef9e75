// Package pool owns the warm pool: ready sandboxes of environments, which it assigns to owners in
// milliseconds.
//
// A member is a sandbox with the environment's Spec whose server waits for its owner (package guest/bind).
// Members belong to Owner, whose name no tenant can have, and have no timeout. Claim takes a member, sends
// environment, files and folder to its server (Bind), and sets the name, owner, labels, lifetime, network
// and resources of a cold create in one Update. If the hub crashes in between, the server of the member
// rejects the next claim, which deletes it and takes another member.
//
// The pool owns its members, the refill and its limits, but not claimed sandboxes. The provider has all of
// its state. It never assigns a sandbox that differs from the request; the caller then creates a cold one.
//
// A hub must follow these rules:
//   - Hidden sandboxes are in no list or count, have no timeout, and are not found by name.
//   - Created is the time at which a sandbox got its owner; Sandbox.Created of a claimed sandbox is when the
//     pool created it.
//   - After Start of a sandbox that Waits, call Bind again.
//   - Call Notify after a change of an environment's definition or size.
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

// Owner is the owner of members. No tenant's name has this prefix, and subjects with it are replaced by a
// digest.
const Owner = "sub-pool"

// Annotations of the pool.
const (
	noteOf      = "cove/pool"       // environment, while it is a member
	notePrint   = "cove/pool-print" // fingerprint of its definition
	noteClaimed = "cove/claimed"    // time of the claim, RFC 3339
)

// EnvInit is the variable of a Spec that makes the server inside wait for its owner at each start.
const EnvInit = "AIO_INIT"

// Waits reports whether the server of a sandbox waits for Bind after each Create and Start. A claimed
// sandbox still waits only if its claim had an Env, which only the caller knows at the next start.
func Waits(s sandbox.Spec) bool { return s.Env[EnvInit] == "true" }

// Want is the desired pool of an environment.
type Want struct {
	Size int
	// Spec is a sandbox with the values of the environment.
	Spec sandbox.Spec
	// Fingerprint identifies the definition of the environment; members with another one are deleted.
	// Empty: Fingerprint(Spec).
	Fingerprint string
}

// Config of a pool.
type Config struct {
	Provider sandbox.Provider
	// Size returns the wanted pools by environment. It is called often and must not block.
	Size func() map[string]Want
	// Bind initializes the server of a sandbox for its owner; see BindHTTP.
	Bind func(context.Context, sandbox.Sandbox, Init) error
	// Busy pauses the refill while it returns true, so that creates of callers have priority.
	Busy func() bool
	// Live reports whether resources can change in a running sandbox. Nil: all except disk and open
	// files.
	Live func(from, to sandbox.Resources) bool

	Max      int           // maximum number of members of all environments; default 64
	Parallel int           // concurrent creates; default 2
	Age      time.Duration // maximum age of a member; default an hour
	Every    time.Duration // interval of inspections; default 5 seconds
	Log      *slog.Logger
}

// Pool is the warm pool.
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
	moves   int // incremented when a member is added, removed or released
	claims  int // in progress
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

// Begin adopts existing members and starts the refill.
func (p *Pool) Begin(ctx context.Context) {
	p.inspect(ctx)
	p.background(p.loop)
}

// Close ends the refill. The members keep running for the next pool.
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

// Notify triggers an inspection.
func (p *Pool) Notify() {
	select {
	case p.changed <- struct{}{}:
	default: // already notified
	}
}

// Ready returns the number of ready members of each environment.
func (p *Pool) Ready() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[string]int{}
	for env, list := range p.ready {
		out[env] = len(list)
	}
	return out
}

// Hidden reports whether a sandbox is a member of the pool.
func Hidden(sb sandbox.Sandbox) bool { return sb.Spec.Owner == Owner }

// Created is the time at which a sandbox got its owner.
func Created(sb sandbox.Sandbox) time.Time {
	if t, err := time.Parse(time.RFC3339Nano, sb.Spec.Annotations[noteClaimed]); err == nil {
		return t
	}
	return sb.Created
}

// Fingerprint is equal for specs that are interchangeable.
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
