package editor

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"
)

// The known size of the history is that on the disk, also after a restart.
func TestHistorySize(t *testing.T) {
	t.Parallel()
	h := &history{dir: t.TempDir(), maxBytes: 10_000}
	big := strings.Repeat("x", 3000)
	for i := range 20 {
		if _, err := h.push(fmt.Sprint("/f", i%5), []byte(fmt.Sprint(i, big)), true); err != nil {
			t.Fatal(err)
		}
	}
	if h.bytes == 0 || h.bytes > h.maxBytes {
		t.Errorf("got %d bytes, want at most %d", h.bytes, h.maxBytes)
	}
	var onDisk int64
	err := filepath.WalkDir(h.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			onDisk += info.Size()
		}
		return err
	})
	if err != nil || onDisk != h.bytes {
		t.Errorf("got %d bytes on the disk and %v, want %d", onDisk, err, h.bytes)
	}
	restarted := &history{dir: h.dir, maxBytes: h.maxBytes}
	if err := restarted.load(); err != nil || restarted.bytes != h.bytes {
		t.Errorf("after a restart: got %d bytes and %v, want %d", restarted.bytes, err, h.bytes)
	}
}
