package lifecycle

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ListIn selects sandboxes.
type ListIn struct {
	Status      []string `query:"status,omitempty" enum:"creating,running,paused,stopped,failed,deleting" doc:"Filter by state"`
	Environment string   `query:"environment" default:"" doc:"Only sandboxes of this environment"`
	Label       []string `query:"label,omitempty" short:"l" doc:"Only sandboxes with all these labels: key=value, or key for any value"`
	User        string   `query:"user" default:"" doc:"Tenant, or * for all; admins only. Address other tenants' sandboxes by id"`
	Limit       int      `query:"limit" default:"0" minimum:"0" maximum:"1000" doc:"Page size; 0: no paging"`
	After       string   `query:"after" default:"" doc:"Cursor: the next value of the previous page"`
}

// ListOut is all sandboxes, or a page of them.
type ListOut struct {
	items []Object
	page  bool
	next  string
}

// Items are the sandboxes.
func (o ListOut) Items() []Object { return o.items }

// Page is one page of a list.
type Page struct {
	Items []Object `json:"items"`
	Next  string   `json:"next" doc:"Cursor of the next page; empty on the last page"`
}

// ChoiceOp returns an array, or a page if the request has a limit.
func (o ListOut) ChoiceOp() any {
	if o.page {
		return Page{o.items, o.next}
	}
	return o.items
}

// SchemaOp describes both.
func (ListOut) SchemaOp() *jsonschema.Schema {
	object := func() *jsonschema.Schema { return &jsonschema.Schema{Type: "object"} }
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{
		{Type: "array", Items: object(), Description: "The sandboxes, as GET shows them"},
		{Type: "object", Description: "With limit: a page", Properties: map[string]*jsonschema.Schema{
			"items": {Type: "array", Items: object()}, "next": {Type: "string"},
		}},
	}}
}

// List lists the caller's sandboxes.
func (s *Service) List(ctx context.Context, in ListIn) (ListOut, error) {
	list, err := s.Select(ctx, in)
	if err != nil {
		return ListOut{}, err
	}
	out := ListOut{page: in.Limit > 0 || in.After != ""}
	if in.After != "" {
		after, err := decodeCursor(in.After)
		if err != nil {
			return ListOut{}, err
		}
		i, _ := slices.BinarySearchFunc(list, after, func(sb sandbox.Sandbox, c cursor) int { return cursorOf(sb).compare(c) })
		if i < len(list) && cursorOf(list[i]).compare(after) == 0 {
			i++
		}
		list = list[i:]
	}
	if in.Limit > 0 && len(list) > in.Limit {
		list = list[:in.Limit]
		out.next = cursorOf(list[in.Limit-1]).encode()
	}
	out.items = make([]Object, 0, len(list))
	for _, sb := range list {
		out.items = append(out.items, s.Show(ctx, sb))
	}
	return out, nil
}

// Select filters the caller's sandboxes, oldest first.
func (s *Service) Select(ctx context.Context, in ListIn) ([]sandbox.Sandbox, error) {
	who, all := caller.Owner(ctx), false
	if in.User != "" && in.User != who {
		if !caller.IsAdmin(op.CallOf(ctx)) {
			return nil, nil // other users are not visible to this caller
		}
		who, all = in.User, in.User == "*"
	}
	if all {
		who = ""
	}
	f := sandbox.Filter{Owner: who, Environment: in.Environment, Labels: map[string]string{}}
	for _, state := range in.Status {
		f.States = append(f.States, sandbox.State(state))
	}
	var any []string
	for _, l := range in.Label {
		if k, v, ok := strings.Cut(l, "="); ok {
			f.Labels[k] = v
		} else {
			any = append(any, l)
		}
	}
	list, err := s.Provider.List(ctx, f)
	if err != nil {
		return nil, fault.FromProvider("", err)
	}
	list = slices.DeleteFunc(list, func(sb sandbox.Sandbox) bool {
		if sb.Spec.Owner != who && !all {
			return true
		}
		return slices.ContainsFunc(any, func(k string) bool { _, ok := sb.Spec.Labels[k]; return !ok })
	})
	slices.SortFunc(list, func(a, b sandbox.Sandbox) int { return cursorOf(a).compare(cursorOf(b)) })
	return list, nil
}

// cursor is a position in the list that stays valid when sandboxes are created and deleted.
type cursor struct {
	created int64
	id      string
}

func cursorOf(sb sandbox.Sandbox) cursor { return cursor{sb.Created.UnixNano(), sb.ID} }

func (c cursor) compare(d cursor) int {
	return cmp.Or(cmp.Compare(c.created, d.created), cmp.Compare(c.id, d.id))
}

func (c cursor) encode() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(c.created, 10) + " " + c.id))
}

func decodeCursor(s string) (cursor, error) {
	b, err := base64.RawURLEncoding.DecodeString(s)
	first, id, ok := strings.Cut(string(b), " ")
	n, err2 := strconv.ParseInt(first, 10, 64)
	if err != nil || err2 != nil || !ok {
		return cursor{}, op.Errorf(op.Invalid, "after: pass the next value of the previous page, or omit it")
	}
	return cursor{n, id}, nil
}
