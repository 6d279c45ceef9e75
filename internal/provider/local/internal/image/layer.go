package image

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// layerInfo describes an unpacked layer. It is stored beside the layer's root folder,
// and one rename makes both appear.
type layerInfo struct {
	Size  int64 `json:"size"`
	Files int64 `json:"files"`
	// Attrs is what extended attributes take, in bytes.
	Attrs int64 `json:"attrs,omitempty"`
	// Opaque: the layers below are hidden. Overlays ignore that mark on the root folder.
	Opaque bool `json:"opaque,omitempty"`
	// Scopes lists the repositories that have shown the layer's content.
	Scopes []string `json:"scopes,omitempty"`
}

// entrySize is the size of an entry without its content: an inode, a name, a partly used block. Disk limits of sandboxes
// use the same size per file.
const entrySize = 4 << 10

// footprint is the size for which a layer counts. Holes and empty entries count.
func (u layerInfo) footprint() int64 { return u.Size + u.Attrs + entrySize*u.Files }

// maxScopes bounds the list. Other repositories must prove each time that they have the content.
const maxScopes = 64

const (
	layerInfoFile = "layer.json"
	rootDir       = "root"
	attempts      = 3
)

// getLayer unpacks a layer unless it is stored. Only callers with the same source share a download, because a hostile source
// could block other callers or make them fail.
func (s *Store) getLayer(ctx context.Context, b blob, p Progress, c *account) (layerInfo, error) {
	for {
		var own bool
		u, err := s.layers.do(ctx, b.from+" "+b.id.Hex, p, func(ctx context.Context, report Progress) (layerInfo, error) {
			own = true
			defer func() {
				if ctx.Err() != nil {
					s.Sweep() // the caller may have cleaned up before this was done
				}
			}()
			defer s.pin([]blob{b})()
			return s.ensureLayer(ctx, b, report, c)
		})
		if err == nil && !own && b.scope != "" && !slices.Contains(u.Scopes, b.scope) {
			return s.ensureLayer(ctx, b, p, c) // another repository has proved it, not this one
		}
		if err == nil && !own {
			return u, c.pay(b.id.Hex, u.footprint()) // another call has downloaded it
		}
		if err == nil || ctx.Err() != nil || own || errors.Is(err, sandbox.ErrClosed) {
			return u, err
		}
		// The download of another caller failed. This one may succeed.
	}
}

func (s *Store) ensureLayer(ctx context.Context, b blob, report Progress, c *account) (u layerInfo, err error) {
	u, err = s.readLayerInfo(b.id.Hex)
	if err == nil {
		if err := c.pay(b.id.Hex, u.footprint()); err != nil {
			return layerInfo{}, err
		}
		if b.scope != "" && slices.Contains(u.Scopes, b.scope) {
			return u, nil
		}
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return u, err
	}
	// Knowing the digest of a stored layer is not sufficient to use it: the source must have its content.
	get := func(ctx context.Context, b blob, report Progress) (layerInfo, error) {
		return s.download(ctx, b, report, c)
	}
	if err == nil {
		get = s.verify
	}
	for n := 1; ; n++ {
		u, err = get(ctx, b, report)
		if err == nil || n == attempts || ctx.Err() != nil || !isTransient(err) {
			return u, err
		}
		s.cfg.Log.Warn("download of a layer failed, retrying", "layer", b.id.String(), "error", err)
	}
}

// isTransient reports whether the connection caused an error, so that a retry may help.
func isTransient(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrInvalid) || errors.Is(err, unix.ECONNRESET)
}

func (s *Store) readLayerInfo(id string) (u layerInfo, err error) {
	raw, err := os.ReadFile(s.path("layers", id, layerInfoFile))
	if err == nil {
		err = json.Unmarshal(raw, &u)
	}
	return u, err
}

// verify reads a stored layer from another source, and fails if the content differs.
func (s *Store) verify(ctx context.Context, b blob, report Progress) (u layerInfo, err error) {
	in, err := b.open(ctx)
	if err != nil {
		return u, fmt.Errorf("download layer %s: %w", b.id, err)
	}
	defer in.Close()
	plain, done, err := decompress(&meter{r: in, ctx: ctx, size: b.size, report: report})
	if err != nil {
		return u, err
	}
	defer done()
	sum := s.newSummer(plain)
	if _, err := io.Copy(io.Discard, sum); err != nil {
		return u, fmt.Errorf("layer %s: %w", b.id, err)
	}
	if err := sum.match(b); err != nil {
		return u, fmt.Errorf("layer %s: %w", b.id, err)
	}
	return s.addScope(b)
}

// addScope records that a repository has the content of a layer.
func (s *Store) addScope(b blob) (u layerInfo, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u, err = s.readLayerInfo(b.id.Hex); err != nil || b.scope == "" || len(u.Scopes) >= maxScopes || slices.Contains(u.Scopes, b.scope) {
		return u, err
	}
	u.Scopes = append(u.Scopes, b.scope)
	raw, err := json.Marshal(u)
	if err == nil {
		err = atomicfile.Replace(s.path("layers", b.id.Hex, layerInfoFile), atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
			_, err := f.Write(raw)
			return err
		})
	}
	return u, err
}

// download downloads and unpacks a layer. Until the last step it is in a temporary
// folder, which the next start removes if this process ends.
func (s *Store) download(ctx context.Context, b blob, report Progress, c *account) (u layerInfo, err error) {
	if err := s.checkSpace(b.size); err != nil {
		return u, err
	}
	bill := c.open(b.id.Hex)
	defer func() { err = errors.Join(err, bill.close(err == nil)) }()
	tmp, err := os.MkdirTemp(s.path("tmp"), "layer-")
	if err != nil {
		return u, explainNoSpace(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := os.Mkdir(filepath.Join(tmp, rootDir), 0o700); err != nil {
		return u, explainNoSpace(err)
	}
	in, err := b.open(ctx)
	if err != nil {
		return u, fmt.Errorf("download layer %s: %w", b.id, err)
	}
	defer in.Close()
	if u, err = s.fill(ctx, tmp, b, bill, &meter{r: in, ctx: ctx, size: b.size, report: report}); err != nil {
		return layerInfo{}, fmt.Errorf("layer %s: %w", b.id, explainNoSpace(err))
	}
	if b.scope != "" {
		u.Scopes = []string{b.scope}
	}
	raw, err := json.Marshal(u)
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, layerInfoFile), raw, 0o600)
	}
	if err == nil {
		err = record.SyncFilesystem(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, s.path("layers", b.id.Hex))
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return s.addScope(b) // a canceled download finished nevertheless
	}
	if err != nil {
		return layerInfo{}, explainNoSpace(err)
	}
	return u, record.SyncDir(s.path("layers"))
}

// fill unpacks a stream and checks it against the layer's ID.
func (s *Store) fill(ctx context.Context, tmp string, b blob, bill *bill, in io.Reader) (layerInfo, error) {
	plain, done, err := decompress(in)
	if err != nil {
		return layerInfo{}, err
	}
	defer done()
	sum := s.newSummer(plain)
	u, err := unpack(sum, filepath.Join(tmp, rootDir), limits{
		size: s.cfg.MaxSize, files: s.cfg.MaxFiles, owners: !s.private, privileges: s.cfg.Privileges && !s.private, take: bill.take,
		check: func() error { return errors.Join(ctx.Err(), s.checkSpace(0)) },
	})
	if err != nil {
		return layerInfo{}, err
	}
	// Data after the end of the tar is part of the content, too.
	if _, err := io.Copy(io.Discard, sum); err != nil {
		return layerInfo{}, err
	}
	return u, sum.match(b)
}

// newSummer limits the size of a layer, including names and attributes.
func (s *Store) newSummer(plain io.Reader) *summer {
	return &summer{r: plain, left: s.cfg.MaxSize + 4096*s.cfg.MaxFiles, hash: sha256.New()}
}

// match fails if the content is not that of the layer.
func (s *summer) match(b blob) error {
	if got := hex.EncodeToString(s.hash.Sum(nil)); got != b.id.Hex {
		return fmt.Errorf("%w: %w: got sha256:%s", ErrInvalid, errDigest, got)
	}
	return nil
}

// explainNoSpace adds ErrNoSpace to the errors of a full disk.
func explainNoSpace(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: delete images: %w", ErrNoSpace, err)
	}
	return err
}

// decompress detects the format by the first bytes, because media types are not
// always right.
func decompress(r io.Reader) (io.Reader, func(), error) {
	br := bufio.NewReaderSize(r, 64<<10)
	head, err := br.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return z, func() { z.Close() }, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		return z, z.Close, nil
	}
	return br, func() {}, nil
}

// meter ends a transfer with its context and reports its progress.
type meter struct {
	r          io.Reader
	ctx        context.Context
	n, last    int64 // transferred so far, and at the last report
	size       int64
	report     Progress
	everything bool
}

// step is the number of bytes between two reports.
const step = 256 << 10

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.n += int64(n)
	if m.n-m.last >= step || errors.Is(err, io.EOF) && !m.everything {
		m.last, m.everything = m.n, errors.Is(err, io.EOF)
		m.report(min(m.n, m.size), m.size)
	}
	return n, err
}

// summer is a reader that hashes its data and limits its size.
type summer struct {
	r    io.Reader
	left int64
	hash hash.Hash
}

func (s *summer) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.hash.Write(p[:n])
	if s.left -= int64(n); s.left < 0 {
		return n, fmt.Errorf("%w: a layer is larger than the limit", ErrTooLarge)
	}
	return n, err
}
