package browser

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/andybalholm/brotli"
)

const (
	// packVersion is the version of the format of Chromium's resource files.
	packVersion = 5
	// packHead is the size of a resource file's header, packEntry that of an entry of its table.
	packHead, packEntry = 12, 6
	// minProtocol and maxProtocol are limits of the size of the protocol description, which is about 1.6 MB.
	minProtocol, maxProtocol = 256 << 10, 64 << 20
)

// compressed precedes a resource that is compressed with Brotli; its size in 6 bytes follows.
var compressed = []byte{0x1e, 0x9b}

// protocol reads the protocol description of the browser from its resource file, because the browser serves it only on a
// port.
func (c *chrome) protocol() ([]byte, error) {
	program, err := os.Readlink("/proc/" + strconv.Itoa(c.process.PID()) + "/exe")
	if err != nil {
		return nil, fmt.Errorf("find the browser's files: %w", err)
	}
	f, err := os.Open(filepath.Join(filepath.Dir(program), "resources.pak"))
	if err != nil {
		return nil, fmt.Errorf("read the browser's resources: %w", err)
	}
	defer f.Close()
	return findProtocol(f)
}

// findProtocol finds the description in a resource file by its content. The numbers of resources change with each version.
func findProtocol(f io.ReaderAt) ([]byte, error) {
	head := make([]byte, packHead)
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the browser's resources: %w", err)
	}
	if v := binary.LittleEndian.Uint32(head); v != packVersion {
		return nil, fmt.Errorf("read the browser's resources: unknown version %d", v)
	}
	// One more entry marks the end of the last.
	table := make([]byte, (int(binary.LittleEndian.Uint16(head[8:]))+1)*packEntry)
	if _, err := f.ReadAt(table, packHead); err != nil {
		return nil, fmt.Errorf("read the browser's resources: %w", err)
	}
	for ; len(table) >= 2*packEntry; table = table[packEntry:] {
		begin, end := binary.LittleEndian.Uint32(table[2:]), binary.LittleEndian.Uint32(table[packEntry+2:])
		if end <= begin || end-begin > maxProtocol {
			continue
		}
		if text := readProtocol(io.NewSectionReader(f, int64(begin), int64(end-begin))); text != nil {
			return text, nil
		}
	}
	return nil, errors.New("the browser's resources contain no description of the protocol")
}

// readProtocol returns the resource if it is the description, otherwise nil.
func readProtocol(r *io.SectionReader) []byte {
	head := make([]byte, 8)
	if _, err := io.ReadFull(r, head); err != nil || !bytes.HasPrefix(head, compressed) {
		return nil
	}
	size := int64(binary.LittleEndian.Uint64(append(head[2:8:8], 0, 0)))
	if size < minProtocol || size > maxProtocol {
		return nil
	}
	text := io.LimitReader(brotli.NewReader(r), size)
	begin := make([]byte, 128)
	if _, err := io.ReadFull(text, begin); err != nil || !bytes.Contains(begin, []byte(`"domains"`)) {
		return nil
	}
	rest, err := io.ReadAll(text)
	if err != nil {
		return nil
	}
	return append(begin, rest...)
}
