// Package buildcontext handles the files of a build. On the machine of the user, it selects files of a folder with the rules
// of .dockerignore and packs them. On the hub, it computes a digest of an archive that depends only on what a build sees of
// it, with limits, and never unpacks it.
package buildcontext

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

var (
	// ErrTooLarge means that a limit was exceeded.
	ErrTooLarge = errors.New("the files are too large")
	// ErrMalformed means that the data is not a tar archive, plain or compressed with gzip or zstd.
	ErrMalformed = errors.New("not a tar archive")
)

// Limits of one archive.
type Limits struct {
	Entries int
	Bytes   int64 // unpacked
}

// maxWindow bounds the memory of the decoder.
const maxWindow = 128 << 20

// record is what a build sees of an entry: not its time and its owner.
type record struct {
	Name string
	Kind byte
	Mode int64
	Link string
	Sum  string
}

// Digest reads an archive to its end and returns the digest of its content and its unpacked size.
func Digest(r io.Reader, l Limits) (digest string, size int64, err error) {
	src := bufio.NewReaderSize(r, 64<<10)
	plain, done, err := decompress(src)
	if err != nil {
		return "", 0, err
	}
	defer done()
	bounded := &io.LimitedReader{R: plain, N: l.Bytes + 1}
	var list []record
	for t := tar.NewReader(bounded); ; {
		h, err := t.Next()
		if bounded.N <= 0 {
			return "", 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, l.Bytes)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", 0, malformed(err)
		}
		if len(list) >= l.Entries {
			return "", 0, fmt.Errorf("%w: more than %d entries", ErrTooLarge, l.Entries)
		}
		e := record{Name: path.Clean("/" + h.Name), Kind: h.Typeflag, Mode: h.Mode & 0o777, Link: h.Linkname}
		sum := sha256.New()
		n, err := io.Copy(sum, t)
		if bounded.N <= 0 {
			return "", 0, fmt.Errorf("%w: more than %d bytes", ErrTooLarge, l.Bytes)
		}
		if err != nil {
			return "", 0, malformed(err)
		}
		size += n
		e.Sum = hex.EncodeToString(sum.Sum(nil))
		list = append(list, e)
	}
	// What follows the archive is read too, so that the sender is not interrupted.
	if _, err := io.Copy(io.Discard, io.LimitReader(src, 1<<20)); err != nil {
		return "", 0, err
	}
	slices.SortStableFunc(list, func(a, b record) int { return cmp.Compare(a.Name, b.Name) })
	digest, err = sumOf(list)
	return digest, size, err
}

func decompress(src *bufio.Reader) (plain io.Reader, done func(), err error) {
	head, err := src.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(src)
		if err != nil {
			return nil, nil, malformed(err)
		}
		return z, func() {}, nil
	case bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(src, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxWindow))
		if err != nil {
			return nil, nil, malformed(err)
		}
		return z, z.Close, nil
	}
	return src, func() {}, nil
}

func malformed(err error) error { return fmt.Errorf("%w: %w", ErrMalformed, err) }
