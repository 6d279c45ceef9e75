// Package activity owns the activity records that the hub keeps of sandboxes after their deletion, for
// the time that the operator configures.
//
// It owns a folder with one file for each sandbox, and a folder of pictures for sandboxes with a
// screen. Programs of sandboxes wrote the content: it is untrusted, limited in size, and visible only
// to the owner of the sandbox and to admins.
package activity

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Limits. The oldest entries, and the records that were saved first, are removed first.
const (
	maxEntries = 1000
	maxBytes   = 4 << 20 // of one record
	maxOwned   = 200     // records of one tenant
	maxRecords = 2000
	maxTotal   = 4 << 30 // of all records with their pictures
	maxHead    = 4 << 10
	suffix     = ".jsonl"
)

// Config of a Store.
type Config struct {
	Dir  string
	Keep time.Duration // after it was last saved
	// MaxTotal is the maximum size of all records with their pictures in bytes; 0: 4 GiB.
	MaxTotal int64
	Log      *slog.Logger
	Now      func() time.Time // nil is time.Now
}

// Store keeps records.
type Store struct {
	cfg Config

	mu    sync.Mutex
	index map[string]Head // by ID; nil: not read yet
	sizes map[string]int64
	count func(owner string, size int64) // nil: sizes are not counted
}

// New returns a store. It creates files only when there is a record to save.
func New(cfg Config) *Store {
	if cfg.MaxTotal == 0 {
		cfg.MaxTotal = maxTotal
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{cfg: cfg}
}

// Head is the metadata of a record.
type Head struct {
	ID      string    `json:"id" doc:"ID of the sandbox"`
	Name    string    `json:"name" doc:"Name of the sandbox"`
	User    string    `json:"user,omitempty" doc:"Owner"`
	Created time.Time `json:"created" doc:"Creation time of the sandbox"`
	Saved   time.Time `json:"saved" doc:"Time of the last save: a sandbox was paused, stopped or deleted"`
	Entries int       `json:"entries" doc:"Number of entries"`
}

func (s *Store) path(id string) string { return filepath.Join(s.cfg.Dir, id+suffix) }

// Save adds entries to the record of a sandbox, with pictures by the number of their entry. It ignores
// entries that the record already has.
func (s *Store) Save(sb sandbox.Sandbox, entries []json.RawMessage, pictures map[int64][]byte) {
	if len(entries) == 0 || sandbox.CheckName(sb.ID) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, all, err := s.read(sb.ID)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.cfg.Log.Warn("replacing unreadable activity record", "sandbox", sb.ID, "error", err)
	}
	had := map[string]bool{}
	for _, line := range all {
		had[keyOf(line)] = true
	}
	for _, e := range entries {
		var line bytes.Buffer
		if json.Compact(&line, e) == nil && len(e) > 0 && e[0] == '{' && !had[keyOf(line.Bytes())] {
			all = append(all, line.Bytes())
		}
	}
	all = all[max(0, len(all)-maxEntries):]
	size := 0
	for i := len(all) - 1; i >= 0; i-- {
		if size += len(all[i]) + 1; size > maxBytes {
			all = all[i+1:]
			break
		}
	}
	h := Head{ID: sb.ID, Name: sb.Spec.Name, User: sb.Spec.Owner, Created: sb.Created.UTC(), Saved: s.cfg.Now().UTC(), Entries: len(all)}
	if err := s.write(h, all); err != nil {
		s.cfg.Log.Error("cannot save activity record", "sandbox", sb.ID, "error", err)
		return
	}
	if err := s.savePictures(sb.ID, pictures); err != nil {
		s.cfg.Log.Warn("cannot save pictures of activity record", "sandbox", sb.ID, "error", err)
	}
	s.open()
	s.index[h.ID] = h
	s.sizes[h.ID] = s.measure(h.ID)
	s.prune()
	s.report(h.User)
}

// keyOf identifies an entry. Numbers are not unique: they repeat after the disk was rolled back.
func keyOf(line []byte) string {
	var e struct {
		ID   json.Number `json:"id"`
		Time string      `json:"time"`
	}
	if json.Unmarshal(line, &e) != nil {
		return ""
	}
	return e.ID.String() + " " + e.Time
}

func (s *Store) write(h Head, lines [][]byte) error {
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return err
	}
	first, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return atomicfile.Replace(s.path(h.ID), atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
		w := bufio.NewWriter(f)
		for _, line := range append([][]byte{first}, lines...) {
			_, _ = w.Write(line)
			_ = w.WriteByte('\n')
		}
		return w.Flush()
	})
}

// read returns a record.
func (s *Store) read(id string) (h Head, lines [][]byte, err error) {
	f, err := os.Open(s.path(id))
	if err != nil {
		return h, nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+maxHead))
	if err != nil {
		return h, nil, err
	}
	first, rest, _ := bytes.Cut(b, []byte("\n"))
	if err := json.Unmarshal(first, &h); err != nil {
		return h, nil, err
	}
	for line := range bytes.Lines(rest) {
		lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
	}
	return h, lines, nil
}

// open reads the metadata of all records, once. The lock is held.
func (s *Store) open() {
	if s.index != nil {
		return
	}
	s.index, s.sizes = map[string]Head{}, map[string]int64{}
	files, _ := os.ReadDir(s.cfg.Dir) // the folder does not exist before the first record
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), suffix)
		if !ok {
			continue
		}
		if h, err := s.readHead(id); err == nil && h.ID == id {
			s.index[id], s.sizes[id] = h, s.measure(id)
		}
	}
}

// heads returns the metadata of all records, the latest first. The lock is held.
func (s *Store) heads() []Head {
	s.open()
	out := slices.Collect(maps.Values(s.index))
	slices.SortFunc(out, func(a, b Head) int { return b.Saved.Compare(a.Saved) })
	return out
}

func (s *Store) readHead(id string) (h Head, err error) {
	f, err := os.Open(s.path(id))
	if err != nil {
		return h, err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, maxHead)).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &h)
	}
	return h, err
}

// prune deletes expired records, and the oldest above the limits. The lock is held.
func (s *Store) prune() {
	owned, total := map[string]int{}, int64(0)
	for i, h := range s.heads() {
		total += s.sizes[h.ID]
		if owned[h.User]++; i >= maxRecords || total > s.cfg.MaxTotal || owned[h.User] > maxOwned || s.cfg.Now().Sub(h.Saved) > s.cfg.Keep {
			if err := s.remove(h.ID); err != nil {
				s.cfg.Log.Warn("cannot delete old activity record", "sandbox", h.ID, "error", err)
			}
			s.forget(h)
		}
	}
}

// Ops lists the operations. They fail on a nil Store.
func (s *Store) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "record_list", Route: "GET /api/v1/record", Tag: "record", Verb: "record list",
			ReadOnly: true, NoTool: true, Columns: []string{"id", "name", "saved", "entries"},
			Doc: "List the activity records of sandboxes, including deleted ones, the latest first."}, s.List),
		op.New(op.Spec{Name: "record_get", Content: op.ContentForeign, Route: "GET /api/v1/record/{id}",
			Tag: "record", Verb: "record get", ReadOnly: true, NoTool: true, Produces: "application/x-ndjson",
			Doc: "Download the activity record of a sandbox, which can be deleted: one JSON object per line, in the format of " +
				"GET /v1/sandbox/activity of the sandbox."}, s.Get),
		op.New(op.Spec{Name: "record_picture", Content: op.ContentForeign,
			Route: "GET /api/v1/record/{id}/picture/{entry}", Tag: "record", Verb: "record picture", ReadOnly: true,
			NoTool: true, Produces: "image/jpeg",
			Doc: "Return the screenshot of an entry of an activity record. Only the latest screenshots are kept."}, s.Picture),
		op.New(op.Spec{Name: "record_delete", Route: "DELETE /api/v1/record/{id}", Tag: "record", Verb: "record rm",
			Destructive: true, NoTool: true,
			Doc: "Delete the activity record of a sandbox."}, s.Delete),
	}
}

// check returns an error if the hub keeps no records.
func (s *Store) check() error {
	if s == nil {
		return op.Errorf(op.Invalid, "this hub keeps no activity records; set keep_activity to a duration")
	}
	return nil
}

// List lists the caller's records.
func (s *Store) List(ctx context.Context, in caller.UserIn) ([]Head, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	who, err := caller.Select(ctx, in.User)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune()
	out := slices.DeleteFunc(s.heads(), func(h Head) bool { return !who.Has(h.User) })
	if out == nil {
		out = []Head{}
	}
	return out, nil
}

// IDIn names a record.
type IDIn struct {
	ID string `path:"id" doc:"ID of the sandbox"`
}

// find returns a record that is visible to the caller. The lock is held.
func (s *Store) find(ctx context.Context, id string) (Head, error) {
	missing := op.Errorf(op.NotFound, "no activity record of %.60q; list them with GET /api/v1/record", id)
	if sandbox.CheckName(id) != nil {
		return Head{}, missing
	}
	s.open()
	h, ok := s.index[id]
	call := op.CallOf(ctx)
	if !ok || call.Share != nil || h.User != caller.Owner(ctx) && !caller.IsAdmin(call) || s.cfg.Now().Sub(h.Saved) > s.cfg.Keep {
		return Head{}, missing
	}
	call.Target, call.TargetName = h.ID, h.Name
	return h, nil
}

// Get returns a record.
func (s *Store) Get(ctx context.Context, in IDIn) (*op.Blob, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.find(ctx, in.ID); err != nil {
		return nil, err
	}
	_, lines, err := s.read(in.ID)
	if err != nil {
		return nil, err
	}
	b := append(bytes.Join(lines, []byte("\n")), '\n')
	return &op.Blob{Type: "application/x-ndjson", Name: in.ID + ".jsonl", Size: int64(len(b)), Body: io.NopCloser(bytes.NewReader(b))}, nil
}

// Delete deletes a record.
func (s *Store) Delete(ctx context.Context, in IDIn) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h, err := s.find(ctx, in.ID)
	if err != nil {
		return "", err
	}
	if err := s.remove(in.ID); err != nil {
		return "", err
	}
	s.forget(h)
	return "Activity record of " + in.ID + " deleted successfully", nil
}
