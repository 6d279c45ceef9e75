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

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// unit is what is known of an unpacked layer. It is kept beside the layer's root
// folder, and both come into being by one rename.
type unit struct {
	Size  int64 `json:"size"`
	Files int64 `json:"files"`
	// Opaque says that nothing of the layers below is to be seen. Overlays do not
	// look for that mark on the root.
	Opaque bool `json:"opaque,omitempty"`
}

const (
	unitFile = "layer.json"
	rootDir  = "root"
	attempts = 3
)

// obtain unpacks a layer unless it is there. Efforts are shared with those who want
// the layer from the same place only: elsewhere somebody may claim to have it just
// to keep others waiting, or to make them fail.
func (s *Store) obtain(ctx context.Context, b blob, p Progress) (unit, error) {
	for {
		var own bool
		u, err := s.units.do(ctx, b.from+" "+b.id.Hex, p, func(ctx context.Context, report Progress) (unit, error) {
			own = true
			return s.ensure(ctx, b, report)
		})
		if err == nil || ctx.Err() != nil || own || errors.Is(err, sandbox.ErrClosed) {
			return u, err
		}
		// It was another image's effort. This one may have more luck.
	}
}

func (s *Store) ensure(ctx context.Context, b blob, report Progress) (u unit, err error) {
	if u, err = s.unit(b.id.Hex); err == nil || !errors.Is(err, os.ErrNotExist) {
		return u, err
	}
	for n := 1; ; n++ {
		u, err = s.bring(ctx, b, report)
		if err == nil || n == attempts || ctx.Err() != nil || !passing(err) {
			return u, err
		}
		s.cfg.Log.Warn("transfer of a layer broke off, trying again", "layer", b.id.String(), "err", err)
	}
}

// passing tells whether an error is the connection's.
func passing(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, ErrInvalid) || errors.Is(err, unix.ECONNRESET)
}

func (s *Store) unit(id string) (u unit, err error) {
	raw, err := os.ReadFile(s.path("layers", id, unitFile))
	if err == nil {
		err = json.Unmarshal(raw, &u)
	}
	return u, err
}

// bring transfers and unpacks a layer. Until the last step it is in a temporary
// folder, which an end at any moment leaves to the next start to remove.
func (s *Store) bring(ctx context.Context, b blob, report Progress) (u unit, err error) {
	if err := s.space(b.size); err != nil {
		return u, err
	}
	tmp, err := os.MkdirTemp(s.path("tmp"), "layer-")
	if err != nil {
		return u, full(err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(tmp)) }()
	if err := os.Mkdir(filepath.Join(tmp, rootDir), 0o700); err != nil {
		return u, full(err)
	}
	in, err := b.open(ctx)
	if err != nil {
		return u, fmt.Errorf("get layer %s: %w", b.id, err)
	}
	defer in.Close()
	if u, err = s.fill(ctx, tmp, b, &meter{r: in, ctx: ctx, size: b.size, report: report}); err != nil {
		return unit{}, fmt.Errorf("layer %s: %w", b.id, full(err))
	}
	raw, err := json.Marshal(u)
	if err == nil {
		err = os.WriteFile(filepath.Join(tmp, unitFile), raw, 0o600)
	}
	if err == nil {
		err = syncFS(tmp)
	}
	if err == nil {
		err = os.Rename(tmp, s.path("layers", b.id.Hex))
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		return s.unit(b.id.Hex) // an effort that was given up had come too far to stop
	}
	if err != nil {
		return unit{}, full(err)
	}
	return u, syncDir(s.path("layers"))
}

// fill unpacks a stream and checks it against the layer's ID.
func (s *Store) fill(ctx context.Context, tmp string, b blob, in io.Reader) (unit, error) {
	plain, done, err := decompress(in)
	if err != nil {
		return unit{}, err
	}
	defer done()
	// Names and attributes take space too, in the stream and on the disk.
	sum := &summer{r: plain, left: s.cfg.MaxSize + 4096*s.cfg.MaxFiles, hash: sha256.New()}
	u, err := unpack(sum, filepath.Join(tmp, rootDir), limits{
		size: s.cfg.MaxSize, files: s.cfg.MaxFiles, owners: !s.private, privileges: s.cfg.Privileges && !s.private,
		check: func() error { return errors.Join(ctx.Err(), s.space(0)) },
	})
	if err != nil {
		return unit{}, err
	}
	// What follows the end of the tar is part of the content too.
	if _, err := io.Copy(io.Discard, sum); err != nil {
		return unit{}, err
	}
	if got := hex.EncodeToString(sum.hash.Sum(nil)); got != b.id.Hex {
		return unit{}, fmt.Errorf("%w: %w: got sha256:%s", ErrInvalid, errDigest, got)
	}
	return u, nil
}

// full turns the system's word for it into ours.
func full(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("%w: remove or prune images: %w", ErrNoSpace, err)
	}
	return err
}

// decompress tells by the first bytes, since media types are not always right.
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

// meter ends a transfer with its context and reports how far it is.
type meter struct {
	r          io.Reader
	ctx        context.Context
	n, told    int64
	size       int64
	report     Progress
	everything bool
}

// step is how much comes between two reports.
const step = 256 << 10

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.n += int64(n)
	if m.n-m.told >= step || errors.Is(err, io.EOF) && !m.everything {
		m.told, m.everything = m.n, errors.Is(err, io.EOF)
		m.report(min(m.n, m.size), m.size)
	}
	return n, err
}

// summer adds up what is read, and ends what is too long.
type summer struct {
	r    io.Reader
	left int64
	hash hash.Hash
}

func (s *summer) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.hash.Write(p[:n])
	if s.left -= int64(n); s.left < 0 {
		return n, fmt.Errorf("%w: a layer goes on beyond the limit", ErrTooLarge)
	}
	return n, err
}

func syncFS(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return unix.Syncfs(int(d.Fd()))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
