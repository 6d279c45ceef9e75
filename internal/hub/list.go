package hub

import (
	"cmp"
	"context"
	"encoding/base64"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ListIn selects sandboxes.
type ListIn struct {
	Status      []string `query:"status,omitempty" enum:"creating,running,paused,stopped,failed,deleting" doc:"Only those in one of these states"`
	Environment string   `query:"environment" default:"" doc:"Only those of this environment"`
	Label       []string `query:"label,omitempty" doc:"Only those with all these labels: key=value, or key for any value"`
	User        string   `query:"user" default:"" doc:"For admins: the sandboxes of this tenant, * for all; those of others are addressed by their id"`
	Limit       int      `query:"limit" default:"0" minimum:"0" maximum:"1000" doc:"Size of a page; 0: all at once"`
	After       string   `query:"after" default:"" doc:"Where the page begins: next of the page before"`
}

// ListOut is all sandboxes, or a page of them.
type ListOut struct {
	items []Object
	page  bool
	next  string
}

// Page is a part of a list.
type Page struct {
	Items []Object `json:"items"`
	Next  string   `json:"next" doc:"Where the next page begins; empty: this was the last"`
}

// ChoiceOp is an array, or a page when one was asked for.
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

// List shows the caller's sandboxes.
func (h *Hub) List(ctx context.Context, in ListIn) (ListOut, error) {
	list, err := h.list(ctx, in)
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
		out.items = append(out.items, h.object(ctx, sb))
	}
	return out, nil
}

// list selects from the caller's sandboxes, oldest first.
func (h *Hub) list(ctx context.Context, in ListIn) ([]sandbox.Sandbox, error) {
	who, all := owner(ctx), false
	if in.User != "" && in.User != who {
		if !governs(op.CallOf(ctx)) {
			return nil, nil // there are none that they could see
		}
		who, all = in.User, in.User == "*"
	}
	if all {
		who = ""
	}
	f := sandbox.Filter{Owner: who, Environment: in.Environment, Labels: map[string]string{}}
	for _, s := range in.Status {
		f.States = append(f.States, sandbox.State(s))
	}
	var any []string
	for _, l := range in.Label {
		if k, v, ok := strings.Cut(l, "="); ok {
			f.Labels[k] = v
		} else {
			any = append(any, l)
		}
	}
	list, err := h.cfg.Provider.List(ctx, f)
	if err != nil {
		return nil, h.wire("", err)
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

// cursor is a place in the list that stays right when sandboxes come and go.
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
		return cursor{}, op.Errorf(op.Invalid, "after: send what next of the page before said, or nothing")
	}
	return cursor{n, id}, nil
}

// NameIn names a sandbox.
type NameIn struct {
	Name string `path:"name" doc:"Name of the sandbox"`
}

// Get shows one.
func (h *Hub) Get(ctx context.Context, in NameIn) (Object, error) {
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	return h.object(ctx, sb), nil
}

// Delete removes one.
func (h *Hub) Delete(ctx context.Context, in NameIn) (string, error) {
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return "", err
	}
	if err := h.cfg.Provider.Delete(ctx, sb.ID); err != nil {
		return "", h.wire(in.Name, err)
	}
	h.drop(sb.ID)
	return "Sandbox " + in.Name + " deleted successfully", nil
}

// ExtendIn is more time.
type ExtendIn struct {
	Name        string   `path:"name" doc:"Name of the sandbox"`
	Timeout     *float64 `json:"timeout" doc:"Minutes from now to its end; -1: for ever. Without this and idle_timeout, as long as a new one"`
	IdleTimeout *float64 `json:"idle_timeout" doc:"Minutes it may be unused; -1: for ever"`
	IdlePolicy  string   `json:"idle_policy" default:"" nullable:"true" doc:"What happens then: delete, stop (also called scaledown) or pause"`
}

// Extend gives a sandbox more time.
func (h *Hub) Extend(ctx context.Context, in ExtendIn) (Object, error) {
	if in.Timeout == nil && in.IdleTimeout == nil && in.IdlePolicy == "" {
		in.Timeout = new(minutes(h.cfg.Defaults.Timeout))
	}
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	sb, err = h.cfg.Provider.Update(ctx, sb.ID, func(s *sandbox.Spec) error {
		next := s.Clone()
		next.Lifetime.Timeout = h.cfg.Defaults.Timeout
		if err := (lease{in.Timeout, in.IdleTimeout, in.IdlePolicy}).apply(&next); err != nil {
			return op.Errorf(op.Invalid, "%w", err)
		}
		if err := h.limits(next.Lifetime); err != nil {
			return err
		}
		if err := h.possible(next, false); err != nil {
			return err
		}
		switch {
		case in.Timeout == nil:
			next.Lifetime.Timeout = s.Lifetime.Timeout
		case next.Lifetime.Timeout > 0:
			next.Lifetime.Timeout += time.Since(sb.Created)
		}
		*s = next
		return nil
	})
	if err != nil {
		return Object{}, h.wire(in.Name, err)
	}
	h.touch(sb.ID)
	h.see(sb)
	return h.object(ctx, sb), nil
}

// Pause pauses one.
func (h *Hub) Pause(ctx context.Context, in NameIn) (Object, error) {
	return h.turn(ctx, in.Name, h.cfg.Provider.Pause)
}

// Resume resumes one.
func (h *Hub) Resume(ctx context.Context, in NameIn) (Object, error) {
	return h.turn(ctx, in.Name, h.cfg.Provider.Resume)
}

// Stop stops one.
func (h *Hub) Stop(ctx context.Context, in NameIn) (Object, error) {
	return h.turn(ctx, in.Name, h.cfg.Provider.Stop)
}

// Start starts one.
func (h *Hub) Start(ctx context.Context, in NameIn) (Object, error) {
	return h.turn(ctx, in.Name, func(ctx context.Context, id string) error { return h.start(ctx, id, h.cfg.Provider.Start) })
}

// turn leads a sandbox to another state and shows it.
func (h *Hub) turn(ctx context.Context, name string, do func(context.Context, string) error) (Object, error) {
	sb, err := h.find(ctx, name)
	if err != nil {
		return Object{}, err
	}
	// Whoever turns it means to use it: its idle time begins anew.
	h.touch(sb.ID)
	if err := do(ctx, sb.ID); err != nil {
		return Object{}, h.wire(name, err)
	}
	h.touch(sb.ID)
	if sb, err = h.cfg.Provider.Get(ctx, sb.ID); err != nil {
		return Object{}, h.wire(name, err)
	}
	h.see(sb)
	return h.object(ctx, sb), nil
}
