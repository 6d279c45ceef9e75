package hub

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/quota"
	"github.com/cove-sandbox/cove/internal/tenant"
)

const (
	// proxyOp is the operation that leads into sandboxes, the only one that a
	// link opens.
	proxyOp = "sandbox_proxy"
	// createOp and createTool make sandboxes.
	createOp   = "sandbox_create"
	createTool = "createSandbox"
	// toolsOp serves tools, of which each is a call of its own.
	toolsOp = "mcp"

	// roleShare is the role of callers who came with a link.
	roleShare = "share"
	// shareKey begins what stands for the key of a caller who came with a link.
	shareKey = "share."
	// sharePath is where links lead first.
	sharePath = "/share"
)

// SignIn lets the tenants' keys and links open the door.
func (h *Hub) SignIn(c *auth.Config) {
	if h.cfg.Tenants == nil {
		return
	}
	c.Identify, c.Recall = h.identify, h.recall
	c.Link, c.LinkPath = h.link, sharePath
}

func (h *Hub) identify(secret string) (auth.Identity, bool) {
	if strings.HasPrefix(secret, tenant.SharePrefix) {
		sh, err := h.cfg.Tenants.Verify(secret)
		return shared(sh), err == nil
	}
	id, ok := h.cfg.Tenants.Identify(secret)
	return auth.Identity{Subject: id.Tenant, Role: string(id.Role), KeyID: id.Key}, ok
}

func (h *Hub) recall(keyID string) (auth.Identity, bool) {
	if id, ok := strings.CutPrefix(keyID, shareKey); ok {
		sh, ok := h.cfg.Tenants.Standing(id)
		return shared(sh), ok
	}
	id, ok := h.cfg.Tenants.Recall(keyID)
	return auth.Identity{Subject: id.Tenant, Role: string(id.Role), KeyID: id.Key}, ok
}

func shared(sh tenant.Share) auth.Identity {
	return auth.Identity{Subject: sh.Tenant, Role: roleShare, KeyID: shareKey + sh.ID}
}

// Caller notes in a call who signed in. What is not known may do nothing.
func (h *Hub) Caller(ctx context.Context, call *op.Call) {
	id, ok := auth.FromContext(ctx)
	if !ok {
		return
	}
	call.Subject, call.KeyID = id.Subject, id.KeyID
	share, linked := strings.CutPrefix(id.KeyID, shareKey)
	switch {
	case linked:
		call.Role = roleShare
		call.Share = &op.Share{ID: share}
		if sh, ok := h.cfg.Tenants.Standing(share); ok {
			call.Share = &op.Share{ID: sh.ID, Sandbox: sh.Sandbox, Port: sh.Port, ReadOnly: sh.ReadOnly}
		}
	case id.KeyID != "":
		call.Role = id.Role
	case id.Operator:
		call.Role = string(tenant.RoleAdmin)
	default:
		// Somebody whom another system vouches for.
		call.Role = string(tenant.RoleUser)
	}
}

// allow decides whether a caller may use an operation at all; which sandboxes it
// may use it on is for find to say.
func allow(call *op.Call, name string, need op.Access) error {
	if call.Share != nil {
		switch {
		case name != proxyOp:
			return op.Errorf(op.Denied, "this link leads to one sandbox and opens nothing else; sign in with a key")
		case need != op.AccessRead && call.Share.ReadOnly:
			return op.Errorf(op.Denied, "this link is for looking only; ask for one that allows more")
		}
		return nil
	}
	action := map[op.Access]tenant.Action{op.AccessRead: tenant.Read, op.AccessWrite: tenant.Write, op.AccessAdmin: tenant.Admin}[need]
	if tenant.Role(call.Role).May(action) {
		return nil
	}
	switch need {
	case op.AccessAdmin:
		return op.Errorf(op.Denied, "this takes a key with the role admin")
	case op.AccessRead:
		return op.Errorf(op.Denied, "sign in with a key")
	}
	return op.Errorf(op.Denied, "a key with the role %s can only look; this takes one with the role user", call.Role)
}

// Admit decides before anything of a request is read, and counts it in.
func (h *Hub) Admit(r *http.Request, o op.Op) (done func(), err error) {
	if o.Public {
		return func() {}, nil
	}
	ctx := r.Context()
	if err := allow(op.CallOf(ctx), o.Name, o.Needs(r)); err != nil {
		return nil, err
	}
	done, err = h.quota.Call(owner(ctx))
	if err != nil {
		h.counts.refused(1, "calls")
		return nil, exceeded(err)
	}
	return done, nil
}

// recheck is how often it is asked whether who is inside may still be.
const recheck = 2 * time.Second

// whileValid returns a context that ends when the key or link that the caller
// came with does: a stream or socket must not outlive it. done frees it.
func (h *Hub) whileValid(ctx context.Context) (_ context.Context, done func()) {
	id := op.CallOf(ctx).KeyID
	if h.cfg.Tenants == nil || id == "" {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	var look func()
	var mu sync.Mutex // the timer may fire before it is known
	mu.Lock()
	var timer *time.Timer
	look = func() {
		if _, ok := h.recall(id); !ok {
			cancel()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			timer.Reset(recheck)
		}
	}
	timer = time.AfterFunc(recheck, look)
	mu.Unlock()
	return ctx, func() {
		cancel()
		mu.Lock()
		defer mu.Unlock()
		timer.Stop()
	}
}

// watched makes a stream end with what its reader came with.
func (h *Hub) watched(o op.Op) op.Op {
	pump := o.Pump
	if pump == nil {
		return o
	}
	o.Pump = func(ctx context.Context, in any, send func(op.Event) error) error {
		ctx, done := h.whileValid(ctx)
		defer done()
		return pump(ctx, in, send)
	}
	return o
}

// exceeded turns the refusal of a quota into one for the caller.
func exceeded(err error) error {
	if e, ok := errors.AsType[*quota.Exceeded](err); ok {
		return &op.Error{Code: op.Exhausted, Msg: e.Error(), Err: err, RetryAfter: e.RetryAfter}
	}
	return err
}

// governs tells whether the caller may see the sandboxes of all tenants.
func governs(call *op.Call) bool {
	return call.Share == nil && tenant.Role(call.Role).May(tenant.Admin)
}
