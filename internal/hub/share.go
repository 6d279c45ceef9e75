package hub

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/tenant"
)

// shareOp is the operation that links lead to first.
const shareOp = "share_open"

// shareOps lend a sandbox to others for a while.
func (h *Hub) shareOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "share_create", Route: "POST /api/v1/sandbox/{name}/share", Tag: "share", Verb: "share create",
			Doc: "Make a link by which whoever has it reaches a sandbox, or one port of it, for a while. It ends with its time, the key that made it, or the sandbox."}, h.Share),
		op.New(op.Spec{Name: "share_list", Route: "GET /api/v1/share", Tag: "share", Verb: "share list", ReadOnly: true,
			Columns: []string{"id", "sandbox", "port", "read_only", "expires"},
			Doc:     "List the links that can still be used, without their addresses."}, h.Shares),
		op.New(op.Spec{Name: "share_revoke", Route: "DELETE /api/v1/share/{id}", Tag: "share", Verb: "share revoke", Destructive: true,
			Doc: "End a link at once."}, h.RevokeShare),
		op.Handle(op.Spec{Name: shareOp, Route: "GET " + sharePath, Tag: "share", Access: op.AccessRead,
			Doc: "Where a link leads: its token becomes a session for that sandbox alone, and the caller is sent there."},
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				h.answer(w, r, http.StatusBadRequest, 0, "a link ends with ?token=…; open it as it was given")
			})),
	}
}

// ShareIn is a link to be.
type ShareIn struct {
	Name     string  `path:"name" doc:"Name of the sandbox"`
	Port     int     `json:"port" default:"0" minimum:"0" maximum:"65535" doc:"Only this port of it; 0: all of it"`
	ReadOnly bool    `json:"read_only" default:"false" doc:"Only to look: requests that can change something, and WebSockets, are refused"`
	Minutes  float64 `json:"minutes" default:"60" exclusiveMinimum:"0" maximum:"525600" doc:"How long it can be used"`
}

// ShareOut is a link.
type ShareOut struct {
	ID       string    `json:"id"`
	Sandbox  string    `json:"sandbox" doc:"ID of the sandbox"`
	Port     int       `json:"port" doc:"0: all of it"`
	ReadOnly bool      `json:"read_only"`
	Expires  time.Time `json:"expires"`
	User     string    `json:"user,omitempty"`
	URL      string    `json:"url,omitempty" doc:"The link; told only when it is made"`
	Token    string    `json:"token,omitempty" doc:"Its secret, which can also be sent as a bearer token"`
}

func shareOut(sh tenant.Share) ShareOut {
	return ShareOut{ID: sh.ID, Sandbox: sh.Sandbox, Port: sh.Port, ReadOnly: sh.ReadOnly, Expires: sh.Expires, User: sh.Tenant}
}

// Share makes a link.
func (h *Hub) Share(ctx context.Context, in ShareIn) (ShareOut, error) {
	s, err := h.store()
	if err != nil {
		return ShareOut{}, err
	}
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return ShareOut{}, err
	}
	call := op.CallOf(ctx)
	token, sh, err := s.Sign(tenant.Share{
		Sandbox: sb.ID, Tenant: sb.Spec.Owner, Port: in.Port, ReadOnly: in.ReadOnly, KeyID: call.KeyID,
		Expires: time.Now().Add(time.Duration(in.Minutes * float64(time.Minute))),
	})
	if err != nil {
		return ShareOut{}, tenantError(err)
	}
	out := shareOut(sh)
	out.Token, out.URL = token, call.URL("http", sharePath, url.Values{"token": {token}}.Encode())
	return out, nil
}

// Shares lists the caller's links; an admin's are all.
func (h *Hub) Shares(ctx context.Context, _ None) ([]ShareOut, error) {
	s, err := h.store()
	if err != nil {
		return nil, err
	}
	who := owner(ctx)
	of := &who
	if governs(op.CallOf(ctx)) {
		of = nil
	}
	out := []ShareOut{}
	for _, sh := range s.Shares(of) {
		out = append(out, shareOut(sh))
	}
	return out, nil
}

// RevokeShare ends a link. A foreign one is not there.
func (h *Hub) RevokeShare(ctx context.Context, in IDIn) (string, error) {
	s, err := h.store()
	if err != nil {
		return "", err
	}
	sh, ok := s.Standing(in.ID)
	if !ok || sh.Tenant != owner(ctx) && !governs(op.CallOf(ctx)) {
		return "", op.Errorf(op.NotFound, "there is no link %.40q; list them with GET /api/v1/share", in.ID)
	}
	op.CallOf(ctx).Target = sh.Sandbox
	if err := s.RevokeShare(in.ID); err != nil {
		return "", tenantError(err)
	}
	return "Link " + in.ID + " revoked", nil
}

// endShares ends the links to a sandbox that is gone; they lead nowhere already.
func (h *Hub) endShares(id string) {
	if h.cfg.Tenants == nil {
		return
	}
	if err := h.cfg.Tenants.EndSandbox(id); err != nil {
		h.cfg.Log.Warn("cannot forget the links to a sandbox that is gone", "sandbox", id, "error", err)
	}
}

// link exchanges a token for a session below the sandbox's own path.
func (h *Hub) link(token string) (auth.Link, bool) {
	sh, err := h.cfg.Tenants.Verify(token)
	if err != nil {
		return auth.Link{}, false
	}
	at := prefix(sh.Sandbox) + "/"
	l := auth.Link{Identity: shared(sh), Path: at, Scope: at, Expires: sh.Expires}
	if sh.Port != 0 {
		l.Path += "proxy/" + strconv.Itoa(sh.Port) + "/"
	}
	return l, true
}
