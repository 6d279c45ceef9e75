// Package archive stores copies of disks as archives in an S3-compatible store, with a note for each snapshot.
//
// It owns all objects below its prefix and removes those that belong to no snapshot. It fails if another hub owns the
// prefix. It does not read the content of archives.
package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Keys of objects in the store. A snapshot is an archive and a note that names it.
const (
	keyHub      = "hub" // contains the pin of the owning hub
	keyArchives = "archives/"
	keyNotes    = "snapshots/"
)

// Config configures a store.
type Config struct {
	Bucket bucket.Config
	Hub    string // stable ID of the hub
	Log    *slog.Logger
}

// Store stores archives.
type Store struct {
	*catalog.Catalog
	*keeper
	limiter *limiter
}

// Limits of copies.
const (
	concurrentReads = 16        // of notes
	CopyTime        = time.Hour // timeout of a copy
)

// New returns a store. It sends no request.
func New(cfg Config) (*Store, error) {
	b, err := bucket.New(cfg.Bucket)
	if err != nil {
		return nil, err
	}
	k := &keeper{cfg: cfg, bucket: b}
	return &Store{Catalog: catalog.New(k, cfg.Log), keeper: k, limiter: newLimiter()}, nil
}

// Close ends idle connections.
func (s *Store) Close() { s.bucket.Close() }

func (s *Store) String() string { return s.bucket.String() }

// fromStore adds the error code for callers to an error of the store.
func fromStore(ctx context.Context, err error) error {
	var e *bucket.Error
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &e) && (e.Status == http.StatusInsufficientStorage || strings.Contains(e.Code, "Quota") ||
		strings.Contains(e.Code, "StorageFull")):
		return fmt.Errorf("%w: the snapshot store is full: %w", sandbox.ErrExhausted, err)
	}
	return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
}

// keeper stores archives and notes in the bucket.
type keeper struct {
	cfg    Config
	bucket *bucket.Bucket
}

// Load implements catalog.Keeper. It also removes parts of interrupted uploads.
func (k *keeper) Load(ctx context.Context) (notes []catalog.Entry, copies []string, err error) {
	if notes, copies, err = k.load(ctx); err != nil {
		err = fromStore(ctx, err)
	}
	return notes, copies, err
}

func (k *keeper) load(ctx context.Context) (all []catalog.Entry, archives []string, err error) {
	if err := k.takePrefix(ctx); err != nil {
		return nil, nil, err
	}
	notes, err := k.bucket.List(ctx, keyNotes)
	if err != nil {
		return nil, nil, err
	}
	if archives, err = k.bucket.List(ctx, keyArchives); err != nil {
		return nil, nil, err
	}
	var work sync.WaitGroup
	slots, errs := make(chan struct{}, concurrentReads), make([]error, len(notes))
	all = make([]catalog.Entry, len(notes))
	for i, key := range notes {
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			all[i], errs[i] = k.readNote(ctx, key)
		})
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	return all, archives, k.bucket.Sweep(ctx)
}

// readNote reads a note. It returns an empty entry for an invalid note.
func (k *keeper) readNote(ctx context.Context, key string) (e catalog.Entry, err error) {
	data, err := k.bucket.Get(ctx, key)
	if err != nil {
		return e, err
	}
	if err := json.Unmarshal(data, &e); err != nil || key != noteKey(e.Snapshot.Owner, e.Snapshot.Name) ||
		!strings.HasPrefix(e.Source.Archive, keyArchives+folderOf(e.Snapshot.Owner)) {
		k.cfg.Log.Error("cannot read the note of a snapshot; ignoring it", "key", key, "error", err)
		return catalog.Entry{}, nil
	}
	return e, nil
}

// takePrefix makes sure that this hub owns the prefix, whose unused objects it will remove.
func (k *keeper) takePrefix(ctx context.Context) error {
	owner, err := k.bucket.Get(ctx, keyHub)
	switch {
	case bucket.IsMissing(err):
		return k.bucket.Put(ctx, keyHub, []byte(k.cfg.Hub))
	case err != nil:
		return err
	case string(owner) != k.cfg.Hub:
		return fmt.Errorf("the prefix %q of the snapshot store is in use by another hub; set "+
			"kubernetes_snapshot_prefix to another prefix, or delete the object %q to take over this one",
			k.cfg.Bucket.Prefix, k.cfg.Bucket.Prefix+keyHub)
	}
	return nil
}

// folderOf returns the folder of an owner. It is a hash, because the name of an owner may contain any character.
func folderOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8]) + "/"
}

func noteKey(owner, name string) string { return keyNotes + folderOf(owner) + name + ".json" }

// WriteNote implements catalog.Keeper.
func (k *keeper) WriteNote(ctx context.Context, e catalog.Entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := k.bucket.Put(ctx, noteKey(e.Snapshot.Owner, e.Snapshot.Name), data); err != nil {
		return fromStore(ctx, err)
	}
	return nil
}

// RemoveNote implements catalog.Keeper.
func (k *keeper) RemoveNote(ctx context.Context, e catalog.Entry) error {
	if err := k.bucket.Delete(ctx, noteKey(e.Snapshot.Owner, e.Snapshot.Name)); err != nil {
		return fromStore(ctx, err)
	}
	return nil
}

// RemoveCopy implements catalog.Keeper.
func (k *keeper) RemoveCopy(ctx context.Context, key string) error {
	if err := k.bucket.Delete(ctx, key); err != nil {
		return fromStore(ctx, err)
	}
	return nil
}

// Upload stores what save writes as a new archive of at most limit bytes, and pins it. It returns errors of save
// unchanged. After an error, the archive does not exist.
func (s *Store) Upload(ctx context.Context, owner string, limit int64,
	save func(context.Context, io.Writer) error) (key string, size int64, err error) {
	done, err := s.limiter.acquire(ctx, owner)
	if err != nil {
		return "", 0, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, CopyTime, fmt.Errorf("%w: copying the disk took more than %v",
		sandbox.ErrExhausted, CopyTime))
	defer cancel()
	key = keyArchives + folderOf(owner) + sandbox.NewID() + ".tar.gz"
	s.Pin(key) // before it exists, so that a concurrent load does not remove it
	r, w := io.Pipe()
	var work sync.WaitGroup
	work.Go(func() { w.CloseWithError(save(ctx, &limitedWriter{w, limit})) })
	size, err = s.bucket.Upload(ctx, key, &sourceReader{r: r})
	r.CloseWithError(errStopped)
	work.Wait()
	if err == nil {
		return key, size, nil
	}
	var source *saveError
	if errors.As(err, &source) {
		err = source.error
	} else {
		err = fromStore(ctx, err)
	}
	s.Release(ctx, key)
	return "", 0, err
}

// Open opens an archive. Errors of the store are ErrUnavailable.
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

// sourceReader separates source errors from store errors.
type sourceReader struct{ r io.Reader }

type saveError struct{ error }

func (m *sourceReader) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	if err != nil && err != io.EOF {
		err = &saveError{err}
	}
	return n, err
}

// limitedWriter fails if more is written than a disk can contain.
type limitedWriter struct {
	w    io.Writer
	left int64
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	if l.left -= int64(len(b)); l.left < 0 {
		return 0, fmt.Errorf("%w: the copy exceeds the disk limit of the sandbox", sandbox.ErrExhausted)
	}
	return l.w.Write(b)
}
