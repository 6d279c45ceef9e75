package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

var roomy = limits{size: 1 << 30, files: 10_000}

// unpackTo unpacks into a folder, and fails if anything appears next to it.
func unpackTo(t testing.TB, l limits, raw []byte) (root string, u layerInfo, err error) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	u, err = unpack(bytes.NewReader(raw), root, l)
	if beside, rerr := os.ReadDir(filepath.Dir(root)); rerr != nil || len(beside) != 1 {
		t.Fatalf("next to the layer: %v, %v", beside, rerr)
	}
	return root, u, err
}

func TestUnpack(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("long-name/", 30) + strings.Repeat("n", 200)
	for name, c := range map[string]struct {
		entries []entry
		want    map[string]string
	}{
		"plain": {
			[]entry{dir("./"), dir("a/", mode(0o750)), file("a/f", "x", mode(0o640)), symlink("l", "/a/f"), hardlink("h", "a/f")},
			map[string]string{"a": "drwxr-x---", "a/f": "-rw-r----- x", "h": "-rw-r----- x", "l": "-> /a/f"},
		},
		"missing folders are made": {[]entry{file("a/b/c", "x")},
			map[string]string{"a": "drwxr-xr-x", "a/b": "drwxr-xr-x", "a/b/c": "-rw-r--r-- x"}},
		"absolute names": {[]entry{file("/etc/x", "x")}, map[string]string{"etc": "drwxr-xr-x", "etc/x": "-rw-r--r-- x"}},
		"through own links": {[]entry{dir("usr/lib"), symlink("lib", "usr/lib"), file("lib/x", "x")},
			map[string]string{"usr": "drwxr-xr-x", "usr/lib": "drwxr-xr-x", "usr/lib/x": "-rw-r--r-- x", "lib": "-> usr/lib"}},
		"absolute links stay inside": {[]entry{dir("d"), symlink("l", "/d"), file("l/x", "x")},
			map[string]string{"d": "drwxr-xr-x", "d/x": "-rw-r--r-- x", "l": "-> /d"}},
		"climbing links stay inside": {[]entry{symlink("l", "../../../.."), file("l/x", "x")},
			map[string]string{"x": "-rw-r--r-- x", "l": "-> ../../../.."}},
		"a link is replaced, not followed": {[]entry{file("t", "old"), symlink("l", "t"), file("l", "new")},
			map[string]string{"t": "-rw-r--r-- old", "l": "-rw-r--r-- new"}},
		"a folder replaces a link": {[]entry{dir("d"), symlink("l", "d"), dir("l"), file("l/x", "x")},
			map[string]string{"d": "drwxr-xr-x", "l": "drwxr-xr-x", "l/x": "-rw-r--r-- x"}},
		"a file replaces a folder": {[]entry{file("d/e/x", "x"), file("d", "f")}, map[string]string{"d": "-rw-r--r-- f"}},
		"a folder once more": {[]entry{file("d/x", "x"), dir("d", mode(0o700))},
			map[string]string{"d": "drwx------", "d/x": "-rw-r--r-- x"}},
		"hard link over itself": {[]entry{file("a", "x"), hardlink("a", "a")}, map[string]string{"a": "-rw-r--r-- x"}},
		"hard link to a link": {[]entry{symlink("a", "/etc/shadow"), hardlink("b", "a")},
			map[string]string{"a": "-> /etc/shadow", "b": "-> /etc/shadow"}},
		"devices are skipped": {[]entry{ent(tar.TypeChar, "null", ""), ent(tar.TypeBlock, "sda", ""),
			file("x", "")}, map[string]string{"x": "-rw-r--r-- "}},
		"pipes": {[]entry{ent(tar.TypeFifo, "p", "")}, map[string]string{"p": "prw-r--r--"}},
		"no setuid": {[]entry{file("s", "", mode(0o6755)), dir("d", mode(0o3777))},
			map[string]string{"s": "-rwxr-xr-x ", "d": "dtrwxrwxrwx"}},
		"long names":                  {[]entry{file(long, "x")}, nil},
		"own file and whiteout":       {[]entry{file("x", "x"), file(".wh.x", "")}, map[string]string{"x": "-rw-r--r-- x"}},
		"whiteout then file":          {[]entry{file(".wh.x", ""), file("x", "x")}, map[string]string{"x": "-rw-r--r-- x"}},
		"marks of another filesystem": {[]entry{file(".wh..wh.plnk", ""), dir(".wh..wh.aufs")}, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := roomy
			l.owners = os.Geteuid() == 0
			root, _, err := unpackTo(t, l, tarOf(t, c.entries...))
			if err != nil {
				t.Fatal(err)
			}
			if got := look(t, root); c.want != nil {
				want(t, got, c.want)
			} else if len(got) == 0 {
				t.Error("nothing there")
			}
		})
	}
}

func TestUnpackRefuses(t *testing.T) {
	t.Parallel()
	deep := strings.Repeat("d/", maxDepth)
	nest := []entry{dir(deep[:len(deep)-2])}
	for i := range 20 { // links that nest folders where no single name is long
		nest = append(nest, symlink(fmt.Sprint("l", i), "/"+deep[:200]), dir(fmt.Sprintf("l%d/%s", i, deep[:400])))
	}
	for name, c := range map[string]struct {
		want    error
		entries []entry
	}{
		"climbing name":             {ErrInvalid, []entry{file("../x", "x")}},
		"climbing in the middle":    {ErrInvalid, []entry{file("a/../../x", "x")}},
		"climbing hard link":        {ErrInvalid, []entry{hardlink("x", "../../etc/passwd")}},
		"hard link out by a link":   {ErrInvalid, []entry{symlink("l", "/etc"), hardlink("x", "l/passwd")}},
		"hard link to nothing":      {ErrInvalid, []entry{hardlink("x", "/etc/passwd")}},
		"hard link to a folder":     {ErrInvalid, []entry{dir("d"), hardlink("x", "d")}},
		"hard link to the root":     {ErrInvalid, []entry{hardlink("x", "/")}},
		"hard link to a whiteout":   {ErrInvalid, []entry{file(".wh.a", ""), hardlink("x", "a")}},
		"folder in a file":          {ErrInvalid, []entry{file("f", ""), file("f/x", "")}},
		"dangling link as a folder": {ErrInvalid, []entry{symlink("l", "/nowhere"), file("l/x", "")}},
		"link circle":               {unix.ELOOP, []entry{symlink("a", "b"), symlink("b", "a"), file("a/x", "")}},
		"root as a file":            {ErrInvalid, []entry{file("./.", "x")}},
		"whiteout of ..":            {ErrInvalid, []entry{file(".wh...", "")}},
		"whiteout of .":             {ErrInvalid, []entry{file("a/.wh..", "")}},
		"whiteout of nothing":       {ErrInvalid, []entry{file(".wh.", "")}},
		"too deep":                  {ErrInvalid, []entry{dir(deep + "d/")}},
		"too deep by links":         {ErrInvalid, nest},
		"name too long":             {ErrInvalid, []entry{file(strings.Repeat("x", maxName+1), "")}},
		"part too long":             {unix.ENAMETOOLONG, []entry{file(strings.Repeat("x", 300), "")}},
		"unknown kind":              {ErrInvalid, []entry{ent('Z', "x", "")}},
		"magic link":                {nil, []entry{symlink("l", "/proc/self/root"), file("l/x", "")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := unpackTo(t, roomy, tarOf(t, c.entries...))
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

func TestUnpackIsBounded(t *testing.T) {
	t.Parallel()
	var many []entry
	for i := range 20 {
		many = append(many, file(fmt.Sprintf("d%d/f", i), ""))
	}
	for name, c := range map[string]struct {
		l   limits
		raw []byte
	}{
		"files":    {limits{size: 1 << 20, files: 30}, tarOf(t, many...)},
		"bytes":    {limits{size: 10, files: 30}, tarOf(t, file("a", "123456"), file("b", "123456"))},
		"replaced": {limits{size: 10, files: 30}, tarOf(t, file("a", "123456"), file("a", "123456"))},
		"names":    {limits{size: 1 << 20, files: 1000, memory: 1000}, tarOf(t, many...)},
		// A header alone that claims a hole of a terabyte.
		"sparse": {limits{size: 1 << 30, files: 30}, sparse(t, 1<<40)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, _, err := unpackTo(t, c.l, c.raw); !errors.Is(err, ErrTooLarge) {
				t.Errorf("got %v, want %v", err, ErrTooLarge)
			}
		})
	}
}

// sparse is a tar with one sparse file of the size, of which the first block is data.
func sparse(t *testing.T, size int64) []byte {
	t.Helper()
	body := "1\n0\n512\n" + strings.Repeat("\x00", 512-8) + strings.Repeat("s", 512)
	raw := tarOf(t, entry{&tar.Header{Typeflag: tar.TypeReg, Name: "GNUSparseFile.0/s", Size: int64(len(body)),
		Mode: 0o644, Format: tar.FormatPAX,
		PAXRecords: map[string]string{"XNU.sparse.major": "1", "XNU.sparse.minor": "0", "XNU.sparse.name": "s",
			"XNU.sparse.realsize": fmt.Sprint(size)}}, body})
	// The writer rejects these records; the reader uses this name for them.
	return bytes.ReplaceAll(raw, []byte("XNU.sparse"), []byte("GNU.sparse"))
}

func TestUnpackSparse(t *testing.T) {
	t.Parallel()
	root, u, err := unpackTo(t, roomy, sparse(t, 16<<20))
	if err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(root, "s"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Size != 16<<20 || st.Blocks*512 > 1<<20 || u.Size != 16<<20 {
		t.Errorf("got size %d, %d on disk, %d counted, want 16 MiB with holes", st.Size, st.Blocks*512, u.Size)
	}
}

func TestUnpackMeta(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	caps := "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	raw := tarOf(t, dir("d", owned(1000, 1001), mode(0o2755), xattr("user.overlay.opaque", "y")), file("d/f", "x", owned(3, 4), mode(0o4755),
		xattr(attrCapability, caps), xattr("user.note", "n"), xattr("user.overlay.redirect", "/etc"),
		xattr("trusted.overlay.opaque", "y"), xattr("security.evil", "1")),
		file("far", "", owned(200_000, 1<<20)), symlink("l", "x"))
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint(keep), func(t *testing.T) {
			l := roomy
			l.owners, l.privileges = true, keep
			root, _, err := unpackTo(t, l, raw)
			if err != nil {
				t.Fatal(err)
			}
			for name, c := range map[string]struct {
				uid, gid uint32
				plain    uint32
				kept     uint32
			}{"d": {1000, 1001, 0o755, 0o2755}, "d/f": {3, 4, 0o755, 0o4755}, "far": {nobody, nobody, 0o644, 0o644}} {
				var st unix.Stat_t
				if err := unix.Lstat(filepath.Join(root, name), &st); err != nil {
					t.Fatal(err)
				}
				mode := c.plain
				if keep {
					mode = c.kept
				}
				if st.Uid != c.uid || st.Gid != c.gid || st.Mode&0o7777 != mode || st.Mtim.Sec != day.Unix() {
					t.Errorf("%s: got %d:%d %o at %d, want %d:%d %o at %d", name, st.Uid, st.Gid, st.Mode&0o7777,
						st.Mtim.Sec, c.uid, c.gid, mode, day.Unix())
				}
			}
			f, err := os.Open(filepath.Join(root, "d/f"))
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			attrs, _, err := attributes(int(f.Fd()))
			if err != nil {
				t.Fatal(err)
			}
			wanted := map[string]string{"user.note": "n"}
			if keep {
				wanted[attrCapability] = caps
			}
			want(t, attrs, wanted)
			if n, err := unix.Lgetxattr(filepath.Join(root, "d"), attrOpaque, make([]byte, 8)); err == nil {
				t.Errorf("a layer's own overlay attribute was kept (%d bytes)", n)
			}
		})
	}
}

// TestUnpackShared is the way of a store without root: one owner for all, and
// nothing that is closed to it.
func TestUnpackShared(t *testing.T) {
	t.Parallel()
	root, _, err := unpackTo(t, roomy, tarOf(t, dir("d", mode(0), owned(5, 5)), file("d/f", "x", mode(0), owned(6, 6)), file(".wh.gone", "")))
	if err != nil {
		t.Fatal(err)
	}
	got := look(t, root)
	want(t, got, map[string]string{"d": "drwx------", "d/f": "-r-------- x", "gone": "Dc---------"})
}

func FuzzUnpack(f *testing.F) {
	for _, e := range [][]entry{
		{dir("a"), file("a/b", "x"), symlink("a/l", "../.."), file("a/l/x", "")},
		{file(".wh.x", ""), dir("x"), file("x/.wh..wh..opq", ""), hardlink("y", "x/z")},
		{symlink("l", "/etc"), file("l/passwd", "root"), dir("l"), ent(tar.TypeFifo, "p", "")},
		{file("f", "x", xattr("user.a", "b")), file("f/../..", ""), ent(tar.TypeChar, "c", "")},
	} {
		f.Add(tarOf(f, e...))
	}
	f.Add([]byte("not a tar"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		l := limits{size: 1 << 20, files: 200}
		root, u, err := unpackTo(t, l, raw)
		if err == nil && (u.Size > l.size || u.Files > l.files) {
			t.Errorf("beyond the limits: %+v", u)
		}
		if err == nil {
			if _, err := Tar(t.Context(), &bytes.Buffer{}, root, nil); err != nil {
				t.Errorf("what was unpacked cannot be packed: %v", err)
			}
		}
	})
}
