// Package archive keeps snapshots in a store: archives of disks, and a note for each that names it.
//
// It owns everything below its prefix, and removes what belongs to nobody there. It refuses a prefix that another hub has
// taken. It does not look into archives.
package archive

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// The keys of objects in the store. A snapshot is an archive, and a note that names it; without a note, an archive belongs to
// nobody and is removed.
const (
	keyHub      = "hub" // holds the pin of the hub whose objects these are
	keyArchives = "archives/"
	keyNotes    = "snapshots/"
)

// Source is what the disk of a sandbox starts from.
type Source struct {
	Archive string `json:"archive"`         // its key
	From    string `json:"from,omitempty"`  // the snapshot
	Named   string `json:"named,omitempty"` // the image, as the spec named it
	Base    string `json:"base"`            // the image
	Pin     string `json:"pin,omitempty"`   // the image, by its content
}

// Entry is the note of a snapshot.
type Entry struct {
	Snapshot sandbox.Snapshot `json:"snapshot"`
	Source   Source           `json:"source"`
}

type snapshotID struct{ owner, name string }

// Config says where snapshots are kept, and for whom.
type Config struct {
	Bucket bucket.Config
	Hub    string // identifies the hub, also after a restart
	Log    *slog.Logger
}

// Store keeps snapshots. Nobody else changes what is below the prefix, so it is read once.
type Store struct {
	cfg     Config
	bucket  *bucket.Bucket
	turns   *turns
	loading chan struct{} // is full while someone loads

	mu     sync.Mutex
	loaded bool
	all    map[snapshotID]Entry
	taken  map[snapshotID]bool // names of snapshots that are being taken
	pins   map[string]int      // archives that are in use
}

// Bounds of a copy.
const (
	loadAtOnce = 16
	CopyTime   = time.Hour
	cleanTime  = time.Minute
)

// New returns a store. It does not connect.
func New(cfg Config) (*Store, error) {
	b, err := bucket.New(cfg.Bucket)
	if err != nil {
		return nil, err
	}
	return &Store{cfg: cfg, bucket: b, turns: newTurns(), loading: make(chan struct{}, 1),
		all: map[snapshotID]Entry{}, taken: map[snapshotID]bool{}, pins: map[string]int{}}, nil
}

// Close ends idle connections.
func (s *Store) Close() { s.bucket.Close() }

func (s *Store) String() string { return s.bucket.String() }

// fromStore explains an error of the store.
func fromStore(ctx context.Context, err error) error {
	var e *bucket.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &e) && (e.Status == http.StatusInsufficientStorage || strings.Contains(e.Code, "Quota") || strings.Contains(e.Code, "StorageFull")):
		return fmt.Errorf("%w: the snapshot store is full: %w", sandbox.ErrExhausted, err)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
}

// Ready reads what the store holds, unless that was done, and removes what was cut short.
func (s *Store) Ready(ctx context.Context) error {
	select {
	case s.loading <- struct{}{}:
		defer func() { <-s.loading }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if s.loaded {
		return nil
	}
	if err := s.load(ctx); err != nil {
		return fromStore(ctx, err)
	}
	s.loaded = true
	return nil
}

func (s *Store) load(ctx context.Context) error {
	if err := s.takePrefix(ctx); err != nil {
		return err
	}
	notes, err := s.bucket.List(ctx, keyNotes)
	if err != nil {
		return err
	}
	kept, err := s.bucket.List(ctx, keyArchives)
	if err != nil {
		return err
	}
	exists, used := map[string]bool{}, map[string]bool{}
	for _, key := range kept {
		exists[key] = true
	}
	var work sync.WaitGroup
	slots, errs := make(chan struct{}, loadAtOnce), make([]error, len(notes))
	for i, key := range notes {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			var e Entry
			if e, errs[i] = s.readNote(ctx, key); errs[i] != nil || !exists[e.Source.Archive] {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.all[snapshotID{e.Snapshot.Owner, e.Snapshot.Name}], used[e.Source.Archive] = e, true
		})
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, key := range kept {
		s.mu.Lock()
		busy := used[key] || s.pins[key] > 0
		s.mu.Unlock()
		if !busy {
			if err := s.bucket.Delete(ctx, key); err != nil {
				return err
			}
		}
	}
	return s.bucket.Sweep(ctx)
}

// readNote reads a note. One that is not ours is as if it were none.
func (s *Store) readNote(ctx context.Context, key string) (e Entry, err error) {
	data, err := s.bucket.Get(ctx, key)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e); err != nil || key != noteKey(e.Snapshot.Owner, e.Snapshot.Name) || !strings.HasPrefix(e.Source.Archive, keyArchives+folderOf(e.Snapshot.Owner)) {
		s.cfg.Log.Error("cannot read the note of a snapshot; leaving it alone", "key", key, "error", err)
		return Entry{}, nil
	}
	return e, nil
}

// takePrefix makes sure that what is below the prefix is ours to sweep.
func (s *Store) takePrefix(ctx context.Context) error {
	owner, err := s.bucket.Get(ctx, keyHub)
	switch {
	case bucket.IsMissing(err):
		return s.bucket.Put(ctx, keyHub, []byte(s.cfg.Hub))
	case err != nil:
		return err
	case string(owner) != s.cfg.Hub:
		return fmt.Errorf("the prefix %q of the snapshot store is in use by another hub; set kubernetes_snapshot_prefix to another, or delete the object %q to take over what is there", s.cfg.Bucket.Prefix, s.cfg.Bucket.Prefix+keyHub)
	}
	return nil
}

// folderOf tells the owners apart, who can have any name.
func folderOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8]) + "/"
}

func noteKey(owner, name string) string { return keyNotes + folderOf(owner) + name + ".json" }

// Upload writes what save writes into a new archive, at most limit bytes of it, and pins it. An error of save is returned as it is;
// nothing of the archive is left then.
func (s *Store) Upload(ctx context.Context, owner string, limit int64, save func(context.Context, io.Writer) error) (key string, size int64, err error) {
	done, err := s.turns.take(ctx, owner)
	if err != nil {
		return "", 0, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, CopyTime, fmt.Errorf("%w: copying the disk took more than %v", sandbox.ErrExhausted, CopyTime))
	defer cancel()
	key = keyArchives + folderOf(owner) + sandbox.NewID() + ".tar.gz"
	s.Pin(key) // before it exists: who loads must not remove it
	r, w := io.Pipe()
	var work sync.WaitGroup
	work.Go(func() { w.CloseWithError(save(ctx, &limited{w, limit})) })
	size, err = s.bucket.Upload(ctx, key, &marked{r: r})
	r.CloseWithError(errStopped)
	work.Wait()
	if err == nil {
		return key, size, nil
	}
	var inside *saveError
	if errors.As(err, &inside) {
		err = inside.error
	} else {
		err = fromStore(ctx, err)
	}
	s.unpin(key)
	s.discard(ctx, key)
	return "", 0, err
}

// Open reads an archive. Errors of the store are ErrUnavailable.
func (s *Store) Open(ctx context.Context, key string) (io.ReadCloser, error) {
	r, err := s.bucket.Open(ctx, key)
	if err != nil {
		return nil, fromStore(ctx, fmt.Errorf("read the snapshot: %w", err))
	}
	return &download{r, ctx}, nil
}

type download struct {
	io.ReadCloser
	ctx context.Context
}

func (d *download) Read(b []byte) (int, error) {
	n, err := d.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = fromStore(d.ctx, fmt.Errorf("read the snapshot: %w", err))
	}
	return n, err
}

var errStopped = errors.New("the snapshot store has stopped reading")

// marked tells the errors of who is read from those of the store.
type marked struct{ r io.Reader }

type saveError struct{ error }

func (m *marked) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if err != nil && err != io.EOF {
		err = &saveError{err}
	}
	return n, err
}

// limited refuses more than a disk can hold.
type limited struct {
	w    io.Writer
	left int64
}

func (l *limited) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, fmt.Errorf("%w: the copy is larger than the disk of the sandbox may be", sandbox.ErrExhausted)
	}
	return l.w.Write(b)
}

// discard removes an archive that nobody knows.
func (s *Store) discard(ctx context.Context, key string) {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if err := s.bucket.Delete(clean, key); err != nil {
		s.cfg.Log.Warn("cannot remove an archive from the snapshot store; the next start of the hub does", "key", key, "error", err)
	}
}

// Pin notes that an archive is in use, until Release.
func (s *Store) Pin(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pins[key]++
}

// unpin returns whether nobody uses the archive any more, and no snapshot is kept in it.
func (s *Store) unpin(key string) (free bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pins[key]--; s.pins[key] > 0 {
		return false
	}
	delete(s.pins, key)
	for _, e := range s.all {
		if e.Source.Archive == key {
			return false
		}
	}
	return true
}

// Release ends the use of an archive, and removes it if it is not needed.
func (s *Store) Release(ctx context.Context, key string) {
	if s.unpin(key) {
		s.discard(ctx, key)
	}
}

// Find finds a snapshot, and pins its archive.
func (s *Store) Find(ctx context.Context, owner, name string) (Entry, error) {
	if err := s.Ready(ctx); err != nil {
		return Entry{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.all[snapshotID{owner, name}]
	if !ok {
		return Entry{}, fmt.Errorf("%w: %q", sandbox.ErrNoSnapshot, name)
	}
	s.pins[e.Source.Archive]++
	return e, nil
}

// Reserve makes sure that nobody else takes a snapshot of that name.
func (s *Store) Reserve(owner, name string) (done func(), err error) {
	id := snapshotID{owner, name}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.all[id]; exists || s.taken[id] {
		return nil, fmt.Errorf("%w: snapshot %q", sandbox.ErrConflict, id.name)
	}
	s.taken[id] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.taken, id)
	}, nil
}

// Add makes a snapshot of an archive.
func (s *Store) Add(ctx context.Context, e Entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	key := noteKey(e.Snapshot.Owner, e.Snapshot.Name)
	if err := s.bucket.Put(call, key, data); err != nil {
		// It may have been written all the same.
		again, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		if failed := s.bucket.Delete(again, key); failed != nil {
			s.cfg.Log.Warn("cannot remove the note of a snapshot that failed", "key", key, "error", failed)
		}
		return fromStore(call, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[snapshotID{e.Snapshot.Owner, e.Snapshot.Name}] = e
	return nil
}

// Delete removes a snapshot. Its archive goes when nobody uses it any more.
func (s *Store) Delete(ctx context.Context, owner, name string) error {
	e, err := s.Find(ctx, owner, name)
	if err != nil {
		return err
	}
	defer s.Release(ctx, e.Source.Archive)
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	if err := s.bucket.Delete(call, noteKey(owner, name)); err != nil {
		return fromStore(call, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id := (snapshotID{owner, name}); s.all[id].Source == e.Source {
		delete(s.all, id)
	}
	return nil
}

// List lists the snapshots of an owner, or all.
func (s *Store) List(ctx context.Context, owner string) ([]sandbox.Snapshot, error) {
	if err := s.Ready(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []sandbox.Snapshot{}
	for id, e := range s.all {
		if owner == "" || owner == id.owner {
			out = append(out, e.Snapshot)
		}
	}
	slices.SortFunc(out, func(a, b sandbox.Snapshot) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return out, nil
}
