package buildcontext

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

var limits = Limits{Entries: 10, Bytes: 1 << 20}

func tarOf(t testing.TB, headers []tar.Header, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if h.Typeflag == tar.TypeReg || h.Typeflag == 0 {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func digest(t *testing.T, b []byte) string {
	t.Helper()
	d, _, err := Digest(bytes.NewReader(b), limits)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDigest: a digest depends on names, modes, links and content; not on order, times, owners and compression.
func TestDigest(t *testing.T) {
	t.Parallel()
	list := []tar.Header{{Name: "a", Mode: 0o644}, {Name: "dir/b", Mode: 0o644}, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: "a"}}
	plain := tarOf(t, list, "text")
	want := digest(t, plain)
	var gz, zs bytes.Buffer
	w := gzip.NewWriter(&gz)
	w.Write(plain)
	w.Close()
	z, err := zstd.NewWriter(&zs)
	if err != nil {
		t.Fatal(err)
	}
	z.Write(plain)
	z.Close()
	other := slices.Clone(list)
	slices.Reverse(other)
	for i := range other {
		other[i].Uid, other[i].Uname, other[i].ModTime, other[i].Name = 7, "x", time.Unix(1, 0), "./"+other[i].Name
	}
	for name, b := range map[string][]byte{"gzip": gz.Bytes(), "zstd": zs.Bytes(), "order, owner and time": tarOf(t, other, "text")} {
		if got := digest(t, b); got != want {
			t.Errorf("%s changes the digest", name)
		}
	}
	for name, change := range map[string]func(*tar.Header){
		"name": func(h *tar.Header) { h.Name = "c" }, "mode": func(h *tar.Header) { h.Mode = 0o755 },
	} {
		changed := slices.Clone(list)
		change(&changed[0])
		if digest(t, tarOf(t, changed, "text")) == want {
			t.Errorf("%s does not change the digest", name)
		}
	}
	changed := slices.Clone(list)
	changed[2].Linkname = "dir/b"
	if digest(t, tarOf(t, changed, "text")) == want || digest(t, tarOf(t, list, "tex2")) == want {
		t.Error("a link or content does not change the digest")
	}
}

func TestDigestLimits(t *testing.T) {
	t.Parallel()
	var bomb bytes.Buffer
	w := gzip.NewWriter(&bomb)
	w.Write(tarOf(t, []tar.Header{{Name: "zeros"}}, strings.Repeat("\x00", 2<<20)))
	w.Close()
	many := make([]tar.Header, 11)
	for i := range many {
		many[i].Name = string(rune('a' + i))
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"bomb": {bomb.Bytes(), ErrTooLarge}, "entries": {tarOf(t, many, ""), ErrTooLarge},
		"text": {bytes.Repeat([]byte("not a tar archive "), 100), ErrMalformed},
		"cut":  {tarOf(t, []tar.Header{{Name: "a"}}, "text")[:514], ErrMalformed}, "cut gzip": {bomb.Bytes()[:100], ErrMalformed},
	} {
		if _, _, err := Digest(bytes.NewReader(c.data), limits); !errors.Is(err, c.want) {
			t.Errorf("%s: got %v, want %v", name, err, c.want)
		}
	}
}

func FuzzDigest(f *testing.F) {
	f.Add(tarOf(f, []tar.Header{{Name: "a"}}, "text"))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _, _ = Digest(bytes.NewReader(b), limits) })
}
