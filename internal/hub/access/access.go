// Package access authorizes the callers of a hub: tenants sign in with keys, other callers with links
// to one sandbox.
//
// It rejects unknown credentials and roles. Package fleet decides which sandboxes a caller may use
// when it looks them up.
package access

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// roleShare is the role of callers with a link.
	roleShare = "share"
	// shareKey is the prefix of the key ID of a caller with a link.
	shareKey = "share."
	// visitKey is the prefix of the key ID of a caller with a sandbox's own token.
	visitKey = "visit."
	// sharePath is the path of links.
	sharePath = "/share"
)

// Sandboxes finds sandboxes for callers.
type Sandboxes interface {
	Find(ctx context.Context, name string) (sandbox.Sandbox, error)
}

// Calls counts the in-flight calls of each owner.
type Calls interface {
	Call(owner string) (done func(), err error)
	// Guest is Call for callers with a link, which must not use up the limit of the owner.
	Guest(owner string) (done func(), err error)
}

// Config of a Gate.
type Config struct {
	Tenants   *tenant.Store // nil: there is one owner, and there are no keys or links
	Sandboxes Sandboxes
	Calls     Calls
	// Proxy is the operation that forwards into sandboxes, the only one that links allow.
	Proxy string
	// Tools is the operation that serves tools, the only one for keys that are limited to some tools.
	Tools string
	Log   *slog.Logger
}

// Gate authorizes callers.
type Gate struct{ Config }

// New returns a gate.
func New(cfg Config) *Gate { return &Gate{cfg} }

// SignIn makes the tenants' keys and links valid credentials.
func (g *Gate) SignIn(c *auth.Config) {
	if g.Tenants == nil {
		return
	}
	c.Identify, c.Recall = g.identify, g.recall
	c.Link, c.LinkPath = g.openLink, sharePath
}

func (g *Gate) identify(secret string) (auth.Identity, bool) {
	if strings.HasPrefix(secret, tenant.SharePrefix) {
		sh, err := g.Tenants.Verify(secret)
		return shareIdentity(sh), err == nil
	}
	id, ok := g.Tenants.Identify(secret)
	return keyIdentity(id), ok
}

// recall identifies a caller with an existing session.
func (g *Gate) recall(keyID string) (auth.Identity, bool) {
	if visit, ok := strings.CutPrefix(keyID, visitKey); ok {
		if _, key := parseVisit(visit); key != "" {
			id, ok := g.Tenants.Recall(key)
			return auth.Identity{}, ok && id.Role.May(tenant.Write)
		}
		return auth.Identity{}, true // valid as long as its sandbox exists
	}
	if id, ok := strings.CutPrefix(keyID, shareKey); ok {
		sh, ok := g.Tenants.ValidShare(id)
		return shareIdentity(sh), ok
	}
	id, ok := g.Tenants.Recall(keyID)
	return keyIdentity(id), ok
}

func keyIdentity(id tenant.Identity) auth.Identity {
	return auth.Identity{Subject: id.Tenant, Role: string(id.Role), KeyID: id.Key}
}

func shareIdentity(sh tenant.Share) auth.Identity {
	return auth.Identity{Subject: sh.Tenant, Role: roleShare, KeyID: shareKey + sh.ID}
}

// openLink exchanges a token for a session that is valid under the sandbox's path.
func (g *Gate) openLink(token string) (auth.Link, bool) {
	sh, err := g.Tenants.Verify(token)
	if err != nil {
		return auth.Link{}, false
	}
	at := naming.Path(sh.Sandbox) + "/"
	l := auth.Link{Identity: shareIdentity(sh), Path: at, Scope: at, Expires: sh.Expires}
	switch {
	case sh.Port != 0:
		l.Path += "proxy/" + strconv.Itoa(sh.Port) + "/"
	case sh.ReadOnly:
		l.Path += "watch"
	}
	return l, true
}

// Caller sets the identity of a call. An unauthenticated caller has no permissions.
func (g *Gate) Caller(ctx context.Context, call *op.Call) {
	id, ok := auth.FromContext(ctx)
	if !ok {
		return
	}
	call.Subject, call.KeyID = id.Subject, id.KeyID
	share, linked := strings.CutPrefix(id.KeyID, shareKey)
	visit, visits := strings.CutPrefix(id.KeyID, visitKey)
	switch {
	case visits:
		call.Role = roleShare
		call.Share, _ = parseVisit(visit)
	case linked:
		call.Role = roleShare
		call.Share = &op.Share{ID: share}
		if sh, ok := g.Tenants.ValidShare(share); ok {
			call.Share = &op.Share{ID: sh.ID, Sandbox: sh.Sandbox, Port: sh.Port, ReadOnly: sh.ReadOnly}
			call.Until = &sh.Expires
		}
	case id.KeyID != "":
		call.Role = id.Role
	case id.Operator:
		call.Role = string(tenant.RoleAdmin)
	default:
		// Another system authenticates this caller.
		call.Role = string(tenant.RoleUser)
	}
	call.Reader = !tenant.Role(call.Role).May(tenant.Write)
	if call.Share != nil {
		call.Reader = call.Share.ReadOnly
	}
}

// Visitor identifies a caller with a sandbox's own token, which is valid for the sandbox, or for one
// of its ports. The token expires with the key that it was issued to; empty: none.
func Visitor(sb sandbox.Sandbox, port int, key string) auth.Identity {
	return auth.Identity{Subject: sb.Spec.Owner, Role: roleShare,
		KeyID: visitKey + strings.Join([]string{sb.ID, strconv.Itoa(port), key}, ".")}
}

func parseVisit(text string) (share *op.Share, key string) {
	id, rest, _ := strings.Cut(text, ".")
	port, key, _ := strings.Cut(rest, ".")
	n, err := strconv.Atoi(port)
	if err != nil {
		return &op.Share{ReadOnly: true}, key // valid for no sandbox
	}
	return &op.Share{ID: visitKey + id, Sandbox: id, Port: n}, key
}

// Allow decides whether a caller may use an operation at all.
func (g *Gate) Allow(call *op.Call, name string, need op.Access) error {
	if call.Share != nil {
		switch {
		case name != g.Proxy:
			return op.Errorf(op.Denied, "this link is limited to one sandbox; sign in with a key")
		case need != op.AccessRead && call.Share.ReadOnly:
			return op.Errorf(op.Denied, "this link is read-only; ask its owner for write access")
		}
		return nil
	}
	if tenant.Role(call.Role).May(actions[need]) {
		return nil
	}
	switch need {
	case op.AccessAdmin:
		return op.Errorf(op.Denied, "this operation requires a key with the role admin")
	case op.AccessRead:
		return op.Errorf(op.Denied, "sign in with a key")
	}
	return op.Errorf(op.Denied, "this operation requires the role user; the role %s is read-only", call.Role)
}

var actions = map[op.Access]tenant.Action{op.AccessRead: tenant.Read, op.AccessWrite: tenant.Write, op.AccessAdmin: tenant.Admin}

// Admit authorizes a request before its body is read, and counts it until done is called.
func (g *Gate) Admit(r *http.Request, o op.Op) (done func(), err error) {
	if o.Public {
		return func() {}, nil
	}
	ctx := r.Context()
	if id, _ := auth.FromContext(ctx); id.Site != "" && o.Name != g.Proxy {
		return nil, op.Errorf(op.Denied, "this session is limited to a page of one sandbox; sign in at the hub")
	}
	if err := g.Allow(op.CallOf(ctx), o.Name, o.RequiredAccess(r)); err != nil {
		return nil, err
	}
	if tools, limited := g.LimitedTools(op.CallOf(ctx)); limited && o.Name != g.Tools {
		return nil, op.Errorf(op.Denied,
			"this key is limited to the MCP tools %s; call them at /mcp, or sign in with another key", strings.Join(tools, ", "))
	}
	if op.CallOf(ctx).Share != nil {
		return g.Calls.Guest(caller.Owner(ctx))
	}
	return g.Calls.Call(caller.Owner(ctx))
}

// LimitedTools returns the tools that the key of a caller is limited to. A deleted key has no tools.
func (g *Gate) LimitedTools(call *op.Call) (tools []string, limited bool) {
	if g.Tenants == nil || call.KeyID == "" || call.Share != nil {
		return nil, false
	}
	return g.Tenants.Tools(call.KeyID)
}

// recheck is how often the credentials behind an open stream are checked.
const recheck = 2 * time.Second

// WhileValid returns a context that ends when the key or link of its caller becomes invalid, so that
// streams and sockets end too. done releases it.
func (g *Gate) WhileValid(ctx context.Context) (_ context.Context, done func()) {
	id := op.CallOf(ctx).KeyID
	if g.Tenants == nil || id == "" {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var mu sync.Mutex // the timer can fire before its variable is set
	mu.Lock()
	defer mu.Unlock()
	var timer *time.Timer
	timer = time.AfterFunc(recheck, func() {
		if _, ok := g.recall(id); !ok {
			cancel()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			timer.Reset(recheck)
		}
	})
	return ctx, func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// Guard wraps a stream so that it ends when the credentials of its reader become invalid.
func (g *Gate) Guard(o op.Op) op.Op {
	stream := o.Stream
	if stream == nil {
		return o
	}
	o.Stream = func(ctx context.Context, in any, send func(op.Event) error) error {
		ctx, done := g.WhileValid(ctx)
		defer done()
		return stream(ctx, in, send)
	}
	return o
}

// Forget revokes the links to a deleted sandbox.
func (g *Gate) Forget(id string) {
	if g.Tenants == nil {
		return
	}
	if err := g.Tenants.EndSandbox(id); err != nil {
		g.Log.Warn("cannot revoke links to deleted sandbox", "sandbox", id, "error", err)
	}
}
