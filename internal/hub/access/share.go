package access

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/page"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
)

// ShareOps lists the operations on links to sandboxes.
func (g *Gate) ShareOps() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "share_create", Tool: "shareSandbox", Route: "POST /api/v1/sandbox/{name}/share", Tag: "share", Verb: "share create",
			Doc: "Create a link that gives its holder access to a sandbox, or to one of its ports, for a " +
				"limited time. It also expires with the key that created it and with the sandbox."}, g.Share),
		op.New(op.Spec{Name: "share_list", Access: op.AccessRead, Tool: "listShares", Route: "GET /api/v1/share",
			Tag: "share", Verb: "share list", ReadOnly: true,
			Columns: []string{"id", "sandbox", "port", "read_only", "expires"},
			Doc:     "List the valid links, without their URLs."}, g.Shares),
		op.New(op.Spec{Name: "share_revoke", Tool: "revokeShare", Route: "DELETE /api/v1/share/{id}", Tag: "share",
			Verb: "share revoke", Destructive: true,
			Doc: "Revoke a link immediately."}, g.RevokeShare),
		op.Handle(op.Spec{Name: "share_open", Content: op.ContentPage, Route: "GET " + sharePath, Tag: "share", Access: op.AccessRead,
			Doc: "Open a link: exchange its token for a session that is limited to that sandbox, and redirect there."},
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				page.Write(w, r, http.StatusBadRequest, 0, "the link has no token; open the complete link, which ends with ?token=…")
			})),
	}
}

// ShareIn describes a new link.
type ShareIn struct {
	Name     string  `path:"name" doc:"Name of the sandbox"`
	Port     int     `json:"port" default:"0" minimum:"0" maximum:"65535" doc:"Port to limit the link to; 0: the whole sandbox"`
	ReadOnly bool    `json:"read_only" default:"false" doc:"Reject WebSockets and requests that can change something"`
	Minutes  float64 `json:"minutes" default:"60" exclusiveMinimum:"0" maximum:"525600" doc:"Minutes until it expires"`
}

// ShareOut is a link.
type ShareOut struct {
	ID       string    `json:"id"`
	Sandbox  string    `json:"sandbox" doc:"ID of the sandbox"`
	Port     int       `json:"port" doc:"0: the whole sandbox"`
	ReadOnly bool      `json:"read_only"`
	Expires  time.Time `json:"expires"`
	User     string    `json:"user,omitempty"`
	URL      string    `json:"url,omitempty" doc:"The link; shown only at creation"`
	Token    string    `json:"token,omitempty" doc:"Secret of the link, also valid as a bearer token"`
}

func shareOut(sh tenant.Share) ShareOut {
	return ShareOut{ID: sh.ID, Sandbox: sh.Sandbox, Port: sh.Port, ReadOnly: sh.ReadOnly, Expires: sh.Expires, User: sh.Tenant}
}

// Share creates a link.
func (g *Gate) Share(ctx context.Context, in ShareIn) (ShareOut, error) {
	s, err := g.store()
	if err != nil {
		return ShareOut{}, err
	}
	sb, err := g.Sandboxes.Find(ctx, in.Name)
	if err != nil {
		return ShareOut{}, err
	}
	call := op.CallOf(ctx)
	token, sh, err := s.Sign(tenant.Share{
		Sandbox: sb.ID, Tenant: sb.Spec.Owner, Port: in.Port, ReadOnly: in.ReadOnly, KeyID: call.KeyID,
		Expires: time.Now().Add(time.Duration(in.Minutes * float64(time.Minute))),
	})
	if err != nil {
		return ShareOut{}, opError(err)
	}
	out := shareOut(sh)
	out.Token, out.URL = token, call.URL("http", sharePath, url.Values{"token": {token}}.Encode())
	return out, nil
}

// Shares lists the caller's links; an admin sees all.
func (g *Gate) Shares(ctx context.Context, _ op.None) ([]ShareOut, error) {
	s, err := g.store()
	if err != nil {
		return nil, err
	}
	who := caller.Owner(ctx)
	of := &who
	if caller.IsAdmin(op.CallOf(ctx)) {
		of = nil
	}
	out := []ShareOut{}
	for _, sh := range s.Shares(of) {
		out = append(out, shareOut(sh))
	}
	return out, nil
}

// RevokeShare revokes a link. Links of other tenants are not visible to the caller.
func (g *Gate) RevokeShare(ctx context.Context, in IDIn) (string, error) {
	s, err := g.store()
	if err != nil {
		return "", err
	}
	sh, ok := s.ValidShare(in.ID)
	if !ok || sh.Tenant != caller.Owner(ctx) && !caller.IsAdmin(op.CallOf(ctx)) {
		return "", op.Errorf(op.NotFound, "no link %.40q; list links with GET /api/v1/share", in.ID)
	}
	op.CallOf(ctx).Target = sh.Sandbox
	if err := s.RevokeShare(in.ID); err != nil {
		return "", opError(err)
	}
	return "Link " + in.ID + " revoked", nil
}
