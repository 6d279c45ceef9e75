package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Limits of a search.
const (
	searchTime  = 20 * time.Second
	answerTime  = 5 * time.Second // of the running sandboxes, all together
	maxAsked    = 300             // running sandboxes, those used last
	askedAtOnce = 8
	maxSearches = 2       // of one owner at the same time
	maxField    = 8 << 10 // bytes of a field of a result
)

func searchOps(s *Service) []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "activity_search", Route: "GET /api/v1/activity", Tag: "record", Verb: "search",
			ReadOnly: true, NoTool: true,
			Doc: "Search the activity of all sandboxes, latest first: of running ones, and the saved records of others, including " +
				"deleted ones. Does not wake sandboxes or keep them awake."}, s.Search),
	}
}

// SearchIn selects entries of activity records.
type SearchIn struct {
	Text   string `query:"q" arg:"true" default:"" maxLength:"500" doc:"Only entries with this text in operation, input, output or error"`
	Failed bool   `query:"failed" default:"false" doc:"Only failures: errors, commands with an exit code other than 0, and cells that raised"`
	Reads  bool   `query:"reads" default:"false" doc:"Also operations that change nothing and succeeded"`
	Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"500" doc:"Maximum number of entries"`
	User   string `query:"user" default:"" doc:"Tenant whose sandboxes to search, or * for all; admins only"`
}

// SearchOut is the result of a search.
type SearchOut struct {
	Entries    []FoundEntry `json:"entries" doc:"Latest first"`
	Unanswered int          `json:"unanswered" doc:"Number of running sandboxes that did not respond in time"`
	Complete   bool         `json:"complete" doc:"Whether all sandboxes and records were searched, and all matching entries are returned"`
}

// FoundEntry is an entry of a sandbox.
type FoundEntry struct {
	Sandbox string        `json:"sandbox" doc:"ID of the sandbox"`
	Name    string        `json:"name"`
	User    string        `json:"user,omitempty"`
	Status  string        `json:"status" doc:"State of the sandbox; deleted: only its record is left"`
	Entry   ActivityEntry `json:"entry" doc:"Long fields are truncated; changed files are omitted"`
}

// matches reports whether an entry passes the filters. The input and output are JSON, so text is also
// searched in its escaped form.
func (in SearchIn) matches(e ActivityEntry) bool {
	failed := e.Failed || e.Error != ""
	if in.Failed && !failed || !in.Reads && e.Reads && !failed {
		return false
	}
	text := strings.ToLower(e.Op + "\n" + e.Input + "\n" + e.Output + "\n" + e.Error)
	needle := strings.ToLower(in.Text)
	return strings.Contains(text, needle) || strings.Contains(text, strings.Trim(strconv.Quote(needle), `"`))
}

// matchesLine does so for JSON. It parses only lines that can match.
func (in SearchIn) matchesLine(line []byte) bool {
	plain := !strings.ContainsFunc(in.Text, func(c rune) bool { return c < ' ' || c > '~' || strings.ContainsRune(`"\<>&/`, c) })
	if plain && !bytes.Contains(bytes.ToLower(line), bytes.ToLower([]byte(in.Text))) {
		return false
	}
	var e ActivityEntry
	return json.Unmarshal(line, &e) == nil && in.matches(e)
}

// Search searches the activity of all sandboxes of the caller.
func (s *Service) Search(ctx context.Context, in SearchIn) (SearchOut, error) {
	call := op.CallOf(ctx)
	if call.Share != nil {
		return SearchOut{}, op.Errorf(op.Denied, "a link does not include the activity of other sandboxes")
	}
	who, err := caller.Select(ctx, in.User)
	if err != nil {
		return SearchOut{}, err
	}
	list, err := s.Sandboxes.Select(ctx, lifecycle.ListIn{User: in.User})
	if err != nil {
		return SearchOut{}, err
	}
	owner := caller.Owner(ctx)
	if !s.searches.enter(owner) {
		return SearchOut{}, op.Errorf(op.Exhausted, "%d searches of yours are in progress; retry when one has ended", maxSearches)
	}
	defer s.searches.leave(owner)
	ctx, cancel := context.WithTimeout(ctx, searchTime)
	defer cancel()

	states := map[string]sandbox.Sandbox{}
	for _, sb := range list {
		states[sb.ID] = sb
	}
	var out SearchOut
	found, missed := s.searchRunning(ctx, list, in)
	out.Unanswered, out.Complete = missed, missed == 0
	kept, all := s.Records.Search(ctx, who, in.Limit, in.matchesLine)
	out.Complete = out.Complete && all
	for _, k := range kept {
		f := FoundEntry{Sandbox: k.Record.ID, Name: k.Record.Name, User: k.Record.User, Status: "deleted"}
		if sb, ok := states[f.Sandbox]; ok {
			f.Name, f.Status = sb.Spec.Name, string(sb.State)
		}
		if json.Unmarshal(k.Entry, &f.Entry) == nil {
			found = append(found, f)
		}
	}
	out.Entries = order(found)
	if len(out.Entries) > in.Limit {
		out.Entries, out.Complete = out.Entries[:in.Limit], false
	}
	for i := range out.Entries {
		out.Entries[i].Entry.clip()
	}
	return out, nil
}

// order sorts entries, the latest first. A running sandbox and its saved record have the same entries.
func order(found []FoundEntry) []FoundEntry {
	type key struct {
		sandbox string
		id      int64
		at      int64
	}
	had := map[key]bool{}
	out := []FoundEntry{}
	for _, f := range found {
		k := key{f.Sandbox, f.Entry.ID, f.Entry.Time.UnixNano()}
		if !had[k] {
			out = append(out, f)
		}
		had[k] = true
	}
	slices.SortStableFunc(out, func(a, b FoundEntry) int { return b.Entry.Time.Compare(a.Entry.Time) })
	return out
}

// clip limits the size of an entry.
func (e *ActivityEntry) clip() {
	for _, field := range []*string{&e.Op, &e.Kind, &e.Via, &e.Caller, &e.Key, &e.Input, &e.Output, &e.Error} {
		if len(*field) > maxField {
			*field = strings.ToValidUTF8((*field)[:maxField], "")
		}
	}
	e.Change, e.Changes = nil, nil
}

// searchRunning searches the running sandboxes, a few at a time.
func (s *Service) searchRunning(ctx context.Context, list []sandbox.Sandbox, in SearchIn) (found []FoundEntry, missed int) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	list = slices.DeleteFunc(slices.Clone(list), func(sb sandbox.Sandbox) bool {
		return sb.State != sandbox.Running || !fleet.IsNative(sb)
	})
	slices.SortFunc(list, func(a, b sandbox.Sandbox) int { return s.Fleet.LastActive(b).Compare(s.Fleet.LastActive(a)) })
	missed = max(0, len(list)-maxAsked)
	list = list[:min(len(list), maxAsked)]
	// More than requested, because the sandbox also returns reads.
	query := url.Values{"limit": {strconv.Itoa(min(1000, 2*in.Limit))}, "q": {in.Text}, "failed": {strconv.FormatBool(in.Failed)}}
	path := "/v1/sandbox/activity?" + query.Encode()
	var mu sync.Mutex
	var wait sync.WaitGroup
	slots := make(chan struct{}, askedAtOnce)
	for _, sb := range list {
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			entries, ok := s.entriesOf(ctx, sb, path)
			mu.Lock()
			defer mu.Unlock()
			if !ok {
				missed++
			}
			n := 0
			for _, e := range slices.Backward(entries) {
				if n < in.Limit && in.matches(e) {
					e.clip()
					found = append(found, FoundEntry{sb.ID, sb.Spec.Name, sb.Spec.Owner, string(sb.State), e})
					n++
				}
			}
		})
	}
	wait.Wait()
	return found, missed
}

// entriesOf returns entries of a running sandbox; false if it does not respond.
func (s *Service) entriesOf(ctx context.Context, sb sandbox.Sandbox, path string) ([]ActivityEntry, bool) {
	text, err := fleet.Ask(ctx, s.Fleet, sb, http.MethodGet, path, nil)
	var reply struct {
		Entries []ActivityEntry `json:"entries"`
	}
	return reply.Entries, err == nil && json.Unmarshal(text, &reply) == nil
}

// searches counts the searches in progress by owner.
type searches struct {
	mu sync.Mutex
	of map[string]int
}

func (s *searches) enter(owner string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[owner] >= maxSearches {
		return false
	}
	if s.of == nil {
		s.of = map[string]int{}
	}
	s.of[owner]++
	return true
}

func (s *searches) leave(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of[owner]--; s.of[owner] == 0 {
		delete(s.of, owner)
	}
}
