package x11

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestAuthorityOfSeveralDisplays: adding or replacing a cookie keeps the others.
func TestAuthorityOfSeveralDisplays(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "authority")
	if got := ReadAuthority(path, 1); got != nil {
		t.Errorf("missing file: got %x, want nothing", got)
	}
	first, second, third := NewCookie(), NewCookie(), NewCookie()
	must(t, AddAuthority(path, 1, first))
	must(t, AddAuthority(path, 2, second))
	must(t, AddAuthority(path, 1, third))
	if a, b := ReadAuthority(path, 1), ReadAuthority(path, 2); !bytes.Equal(a, third) || !bytes.Equal(b, second) {
		t.Errorf("got %x and %x, want %x and %x", a, b, third, second)
	}
	if got := ReadAuthority(path, 3); got != nil {
		t.Errorf("unknown display: got %x, want nothing", got)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got %v %v, want a private file", info, err)
	}
}

// FuzzAuthority: parsing any file is safe.
func FuzzAuthority(f *testing.F) {
	f.Add([]byte("\xff\xff\x00\x00\x00\x011\x00\x12MIT-MAGIC-COOKIE-1\x00\x100123456789abcdef"))
	f.Add([]byte{1, 0, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		for _, e := range parseAuthority(b) {
			n += len(e.raw)
		}
		if n > len(b) {
			t.Errorf("got %d bytes of entries, want at most %d", n, len(b))
		}
	})
}
