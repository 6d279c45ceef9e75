package templatestore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/buildcontext"
)

// File is an uploaded archive.
type File struct {
	Hash   string    `json:"hash"`   // the name that the client chose
	Digest string    `json:"digest"` // of its content, computed here
	Size   int64     `json:"size"`   // packed
	Used   time.Time `json:"used"`
}

// Limits of an upload.
const (
	MaxUpload   = 8 << 30
	maxUnpacked = 32 << 30
	maxFiles    = 200_000
)

const (
	filePrefix = "f-"
	tempPrefix = "upload-"
)

// ErrTooLarge means that an upload exceeds a limit.
var ErrTooLarge = buildcontext.ErrTooLarge

// Receive stores an uploaded archive under a hash. Take is called before bytes are written and may refuse them. The
// content decides what later builds see: a client cannot choose the digest.
func (s *Store) Receive(ctx context.Context, owner, hash string, r io.Reader, take func(n int64) error) (File, error) {
	if err := os.MkdirAll(s.path(owner, ""), 0o700); err != nil {
		return File{}, err
	}
	tmp, err := os.CreateTemp(s.path(owner, ""), tempPrefix)
	if err != nil {
		return File{}, err
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	in := &receiver{ctx: ctx, r: r, take: take, left: MaxUpload}
	digest, _, err := buildcontext.Digest(io.TeeReader(in, tmp), buildcontext.Limits{Entries: maxFiles, Bytes: maxUnpacked})
	if in.err != nil {
		err = in.err
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err != nil {
		return File{}, fmt.Errorf("receive the files of a build: %w", err)
	}
	f := File{Hash: hash, Digest: digest, Size: in.read, Used: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	// Without a record, the file of a killed hub is not used: its digest would be that of the earlier content.
	if err := remove(s.path(owner, filePrefix+hash+".json")); err != nil {
		return File{}, err
	}
	delete(s.files, keyOf(owner, hash))
	if err := os.Rename(tmp.Name(), s.path(owner, filePrefix+hash+".tar")); err != nil {
		return File{}, err
	}
	if err := s.write(owner, filePrefix+hash+".json", entry{File: &f}); err != nil {
		return File{}, err
	}
	s.files[keyOf(owner, hash)] = f
	return f, nil
}

// receiver counts and bounds what is read.
type receiver struct {
	ctx        context.Context
	r          io.Reader
	take       func(int64) error
	read, left int64
	err        error
}

func (r *receiver) Read(b []byte) (int, error) {
	if r.err = context.Cause(r.ctx); r.err != nil {
		return 0, r.err
	}
	n, err := r.r.Read(b)
	r.read += int64(n)
	if r.left -= int64(n); r.left < 0 {
		r.err = fmt.Errorf("%w: more than %d bytes packed", ErrTooLarge, int64(MaxUpload))
		return 0, r.err
	}
	if n > 0 {
		if r.err = r.take(int64(n)); r.err != nil {
			return 0, r.err
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}

// File finds an upload, and notes that it is used.
func (s *Store) File(owner, hash string) (File, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[keyOf(owner, hash)]
	if ok {
		f.Used = time.Now()
		s.files[keyOf(owner, hash)] = f
	}
	return f, ok
}

// OpenFile opens the archive of an upload whose content has a digest. It fails if the content was replaced.
func (s *Store) OpenFile(owner, hash, digest string) (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.files[keyOf(owner, hash)]; f.Digest != digest {
		return nil, fmt.Errorf("files %.12s were uploaded again during the build; build again", hash)
	}
	return os.Open(s.path(owner, filePrefix+hash+".tar"))
}

// SweepFiles removes uploads that were last used before a time, and returns the owners and hashes of removed ones.
func (s *Store) SweepFiles(before time.Time) (gone [][2]string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, f := range s.files {
		if !f.Used.Before(before) {
			continue
		}
		owner := key[:len(key)-len(f.Hash)-1]
		if e := errors.Join(remove(s.path(owner, filePrefix+f.Hash+".json")), remove(s.path(owner, filePrefix+f.Hash+".tar"))); e != nil {
			err = errors.Join(err, e)
			continue
		}
		delete(s.files, key)
		gone = append(gone, [2]string{owner, f.Hash})
	}
	return gone, err
}

// Files lists the uploads of all owners.
func (s *Store) Files(visit func(owner string, f File)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, f := range s.files {
		visit(key[:len(key)-len(f.Hash)-1], f)
	}
}

// removeUnfinished removes uploads that an earlier hub did not finish.
func (s *Store) removeUnfinished() error {
	paths, err := filepath.Glob(filepath.Join(s.dir, "*", tempPrefix+"*"))
	for _, p := range paths {
		err = errors.Join(err, remove(p))
	}
	return err
}
