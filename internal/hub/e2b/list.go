package e2b

import (
	"cmp"
	"context"
	"encoding/base64"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ListIn selects sandboxes.
type ListIn struct {
	Metadata string   `query:"metadata" default:"" doc:"Required key-value pairs, in query format"`
	State    []string `query:"state,omitempty" doc:"running, paused or both, separated by a comma; default both"`
	Order    string   `query:"order" default:"desc" enum:"asc,desc" doc:"Order by start time"`
	After    string   `query:"startedAfter" default:"" doc:"Only sandboxes that started after this time"`
	Template string   `query:"template" default:"" doc:"Only sandboxes of this template"`
	Limit    int      `query:"limit" default:"100" minimum:"1" maximum:"100" doc:"Page size"`
	Next     string   `query:"nextToken" default:"" doc:"Cursor: X-Next-Token of the previous page"`
}

// ListOldIn selects sandboxes for an older client.
type ListOldIn struct {
	Metadata string `query:"metadata" default:"" doc:"Required key-value pairs, in query format"`
}

// ListOld lists running sandboxes.
func (s *Service) ListOld(ctx context.Context, in ListOldIn) ([]Listed, error) {
	list, err := s.selectFor(ctx, ListIn{Metadata: in.Metadata, State: []string{"running"}})
	return s.show(list), err
}

// List lists a page of sandboxes.
func (s *Service) List(ctx context.Context, in ListIn) ([]Listed, error) {
	list, err := s.selectFor(ctx, in)
	if err != nil {
		return nil, err
	}
	descending := in.Order != "asc"
	if descending {
		slices.Reverse(list)
	}
	if in.Next != "" {
		last, err := decodePlace(in.Next)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(sb sandbox.Sandbox) bool {
			c := placeOf(sb).compare(last)
			return descending && c < 0 || !descending && c > 0
		})
		if i < 0 {
			i = len(list)
		}
		list = list[i:]
	}
	if len(list) > in.Limit {
		list = list[:in.Limit]
		op.CallOf(ctx).Header = map[string]string{"X-Next-Token": placeOf(list[in.Limit-1]).encode()}
	}
	return s.show(list), nil
}

func (s *Service) show(list []sandbox.Sandbox) []Listed {
	out := make([]Listed, 0, len(list))
	for _, sb := range list {
		out = append(out, s.listed(sb))
	}
	return out
}

// selectFor filters the caller's sandboxes, oldest first.
func (s *Service) selectFor(ctx context.Context, in ListIn) ([]sandbox.Sandbox, error) {
	want, err := parseMetadata(in.Metadata)
	if err != nil {
		return nil, err
	}
	var states []string
	for _, list := range in.State {
		for state := range strings.SplitSeq(list, ",") {
			if state != "running" && state != "paused" {
				return nil, op.Errorf(op.Invalid, "state %.40q: use running, paused or both, separated by a comma", state)
			}
			states = append(states, state)
		}
	}
	var after time.Time
	if in.After != "" {
		if after, err = time.Parse(time.RFC3339, in.After); err != nil {
			return nil, op.Errorf(op.Invalid, "startedAfter %.40q: use a time such as 2006-01-02T15:04:05Z", in.After)
		}
	}
	list, err := s.Sandboxes.Select(ctx, lifecycle.ListIn{})
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(list, func(sb sandbox.Sandbox) bool {
		if sb.State == sandbox.Creating || sb.State == sandbox.Deleting ||
			len(states) > 0 && !slices.Contains(states, stateOf(sb)) ||
			in.Template != "" && in.Template != templateOf(sb.Spec) || !sb.Created.After(after) && in.After != "" {
			return true
		}
		has := metadataOf(sb.Spec)
		for k, v := range want {
			if got, ok := has[k]; !ok || got != v {
				return true
			}
		}
		return false
	}), nil
}

// parseMetadata parses pairs that clients escape twice: each pair, then all together.
func parseMetadata(text string) (map[string]string, error) {
	invalid := func(err error) error {
		return op.Errorf(op.Invalid, "metadata %.60q: use key=value pairs, joined by & and escaped: %v", text, err)
	}
	values, err := url.ParseQuery(text)
	if err != nil {
		return nil, invalid(err)
	}
	all := map[string]string{}
	for k, list := range values {
		key, err := url.QueryUnescape(k)
		if err != nil {
			return nil, invalid(err)
		}
		if all[key], err = url.QueryUnescape(list[0]); err != nil {
			return nil, invalid(err)
		}
	}
	return all, nil
}

// place is the end of a page. It stays valid when sandboxes are created and deleted.
type place struct {
	created int64
	id      string
}

func placeOf(sb sandbox.Sandbox) place { return place{sb.Created.UnixNano(), sb.ID} }

func (p place) compare(q place) int {
	return cmp.Or(cmp.Compare(p.created, q.created), cmp.Compare(p.id, q.id))
}

func (p place) encode() string {
	return base64.RawURLEncoding.EncodeToString([]byte(strconv.FormatInt(p.created, 36) + "." + p.id))
}

func decodePlace(text string) (place, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	first, id, ok := strings.Cut(string(b), ".")
	n, bad := strconv.ParseInt(first, 36, 64)
	if err != nil || bad != nil || !ok {
		return place{}, op.Errorf(op.Invalid, "nextToken: pass the X-Next-Token of the previous page, or omit it")
	}
	return place{n, id}, nil
}
