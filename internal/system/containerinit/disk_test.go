//go:build linux

package containerinit

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// image creates a disk with the files of an image, which are older than the container.
func image(t *testing.T) *disk {
	t.Helper()
	root := t.TempDir()
	sh(t, root, `mkdir -p home/gem usr/bin opt/app tmp mnt/data etc && echo old >usr/bin/tool && echo old `+
		`>usr/bin/other && echo old >opt/app/conf && echo host >etc/hosts && mkdir -p usr/lib/deep var/cache && `+
		`echo old >usr/lib/deep/lib && echo old >usr/bin/third && echo old >var/cache/old && chmod 1777 tmp && `+
		`echo shared >mnt/data/file && ln -s usr/bin bin && find . -type f -exec touch -d 2020-01-01 {} +`)
	d := &disk{root: root, home: "/home/gem", mounts: map[string]bool{"/mnt/data": true, "/etc/hosts": true}}
	var err error
	if d.since, err = tick(); err != nil {
		t.Fatal(err)
	}
	return d
}

func ctime(info fs.FileInfo) time.Time {
	st := info.Sys().(*syscall.Stat_t)
	return time.Unix(st.Ctim.Unix())
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.Command("bash", "-euc", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}

// describe returns a description of each file of a tree.
func describe(t *testing.T, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		text := fmt.Sprintf("%v %d:%d", info.Mode(), st.Uid, st.Gid)
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			if len(data) > 100 {
				data = fmt.Appendf(nil, "%d bytes", len(data))
			}
			text += fmt.Sprintf(" %d %q %d", st.Nlink, data, info.ModTime().UnixNano())
		case info.Mode()&fs.ModeSymlink != 0:
			link, _ := os.Readlink(p)
			text += " " + link
		}
		name, _ := filepath.Rel(root, p)
		out[name] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

const changes = `
echo new >home/gem/file; mkdir -p home/gem/deep/er; echo x >home/gem/deep/er/x; ln home/gem/file home/gem/twin
ln -s /etc/passwd home/gem/away; ln -s nowhere home/gem/dangling
mkfifo home/gem/pipe; touch -d 2001-02-03 home/gem/aged; chmod 4751 home/gem/aged
printf 'odd\n' >"home/gem/$(printf 'na\nme = \303\244')"
mkdir home/gem/sealed; echo in >home/gem/sealed/in; chmod 000 home/gem/sealed
echo no >home/gem/closed; chmod 000 home/gem/closed
truncate -s 100M home/gem/hole; printf data | dd of=home/gem/hole bs=1 seek=10M conv=notrunc status=none
echo new >tmp/scratch; echo changed >usr/bin/tool; rm usr/bin/other
rm -r opt/app; echo now a file >opt/app; mkdir srv; echo s >srv/s
echo mine >mnt/data/file; echo mine >etc/hosts
rm -r var/cache; mkdir var/cache; echo fresh >var/cache/fresh
chmod 755 usr var # as overlayfs does: a folder changes with everything below`

// TestCopy: the disk of a new container of the same image becomes equal to that of the first, except for mounts.
func TestCopy(t *testing.T) {
	t.Parallel()
	from := image(t)
	sh(t, from.root, changes)
	var packed bytes.Buffer
	if err := from.save(&packed); err != nil {
		t.Fatal(err)
	}
	if packed.Len() > 64<<10 {
		t.Errorf("got %d bytes, want neither holes nor unchanged files", packed.Len())
	}
	to := image(t)
	sh(t, to.root, `echo earlier >home/gem/file; mkdir home/gem/earlier; echo x >home/gem/earlier/x; chmod 000 home/gem/earlier`)
	if err := to.restore(bytes.NewReader(packed.Bytes())); err != nil {
		t.Fatal(err)
	}
	for _, d := range []*disk{from, to} {
		if os.Geteuid() != 0 {
			sh(t, d.root, "chmod 700 home/gem/sealed; chmod 600 home/gem/closed")
		}
	}
	want, got := describe(t, from.root), describe(t, to.root)
	for name, text := range map[string]string{"mnt/data/file": "shared", "etc/hosts": "host"} {
		if !strings.Contains(got[name], text) {
			t.Errorf("%s: got %s, want it unchanged, because it is mounted", name, got[name])
		}
		delete(want, name)
		delete(got, name)
	}
	// The times of unchanged files differ between the two.
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(filepath.Join(to.root, "home/gem/hole"), &st); err != nil || st.Size != 100<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("got %d bytes in %d blocks, %v, want a hole", st.Size, st.Blocks, err)
	}
	// A copy of the copy is the same.
	var again bytes.Buffer
	if err := to.save(&again); err != nil {
		t.Fatal(err)
	}
	third := image(t)
	if err := third.restore(&again); err != nil {
		t.Fatal(err)
	}
	if a, b := describe(t, to.root)["usr/bin/tool"], describe(t, third.root)["usr/bin/tool"]; a != b {
		t.Errorf("got %s, want %s", b, a)
	}
	if got := describe(t, third.root); got["usr/bin/other"] != "" || got["srv/s"] == "" || got["opt/app"] == "" {
		t.Errorf("got %v, want the files of the first disk", got)
	}
}

// archive returns an archive with the given headers.
func archive(t testing.TB, headers ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for _, h := range headers {
		body := "evil"
		if h.Typeflag != tar.TypeReg {
			body = ""
		}
		h.Format, h.Mode, h.Size = tar.FormatPAX, 0o777, int64(len(body))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, body)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	gz.Close()
	return b.Bytes()
}

// TestHostileArchives: an archive cannot change anything outside the disk.
func TestHostileArchives(t *testing.T) {
	t.Parallel()
	reg, dir, link, hard := byte(tar.TypeReg), byte(tar.TypeDir), byte(tar.TypeSymlink), byte(tar.TypeLink)
	for name, headers := range map[string][]tar.Header{
		"dots":                   {{Name: "./../evil", Typeflag: reg}},
		"dots inside":            {{Name: "./tmp/../../evil", Typeflag: reg}},
		"absolute":               {{Name: "/evil", Typeflag: reg}},
		"no prefix":              {{Name: "evil", Typeflag: reg}},
		"through a link":         {{Name: "./tmp/l", Linkname: "../mnt/data", Typeflag: link}, {Name: "./tmp/l/file", Typeflag: reg}},
		"through an old link":    {{Name: "./bin/tool", Typeflag: reg}},
		"into a mount":           {{Name: "./mnt/data/file", Typeflag: reg}},
		"a mount":                {{Name: "./mnt/data/", Typeflag: dir}},
		"over a mount":           {{Name: "./mnt", Typeflag: reg}},
		"link over a mount":      {{Name: "./mnt", Linkname: "/tmp", Typeflag: link}},
		"over the home":          {{Name: "./home", Typeflag: reg}},
		"a file that is mounted": {{Name: "./etc/hosts", Typeflag: reg}},
		"hard link out":          {{Name: "./tmp/h", Linkname: "./../outside", Typeflag: hard}},
		"hard link to a mount":   {{Name: "./tmp/h", Linkname: "./mnt/data/file", Typeflag: hard}},
		"hard link to a link": {{Name: "./tmp/l", Linkname: "/etc/passwd", Typeflag: link},
			{Name: "./tmp/h", Linkname: "./tmp/l", Typeflag: hard}},
		"a device":                {{Name: "./tmp/d", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1}},
		"a negative hole":         {{Name: "./tmp/h", Typeflag: reg, PAXRecords: map[string]string{recordSize: "10", recordData: "-1,4"}}},
		"a hole past the end":     {{Name: "./tmp/h", Typeflag: reg, PAXRecords: map[string]string{recordSize: "2", recordData: "1,4"}}},
		"more data than there is": {{Name: "./tmp/h", Typeflag: reg, PAXRecords: map[string]string{recordSize: "100", recordData: "0,100"}}},
		"without a folder":        {{Name: "./tmp/a/b", Typeflag: reg}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := image(t)
			outside := filepath.Dir(d.root)
			before := describe(t, filepath.Join(d.root, "mnt"))
			if err := d.restore(bytes.NewReader(archive(t, headers...))); err == nil {
				t.Error("got no error")
			}
			if diff := cmp.Diff(before, describe(t, filepath.Join(d.root, "mnt"))); diff != "" {
				t.Error(diff)
			}
			if _, err := os.Lstat(filepath.Join(outside, "evil")); err == nil {
				t.Error("a file was created outside the disk")
			}
			if data, _ := os.ReadFile(filepath.Join(d.root, "usr/bin/tool")); string(data) != "old\n" {
				t.Errorf("got %q, want the tool unchanged", data)
			}
		})
	}
	// Emptying a folder keeps the mounts in it.
	d := image(t)
	if err := d.restore(bytes.NewReader(archive(t, tar.Header{Name: "./", Typeflag: dir},
		tar.Header{Name: "./mnt/", Typeflag: dir}))); err != nil {
		t.Fatal(err)
	}
	if got := describe(t, d.root); got["mnt/data/file"] == "" || got["home/gem"] == "" || got["etc/hosts"] == "" || got["usr"] != "" {
		t.Errorf("got %v, want only mounts", got)
	}
}

// TestTruncatedArchives: an archive without its end is refused.
func TestTruncatedArchives(t *testing.T) {
	t.Parallel()
	whole := archive(t, tar.Header{Name: "./tmp/file", Typeflag: tar.TypeReg})
	d := image(t)
	for n := range len(whole) {
		if err := d.restore(bytes.NewReader(whole[:n])); err == nil {
			t.Errorf("got no error with %d of %d bytes", n, len(whole))
		}
	}
}

func FuzzRestore(f *testing.F) {
	f.Add(archive(f, tar.Header{Name: "./tmp/file", Typeflag: tar.TypeReg}, tar.Header{Name: "./tmp/l", Linkname: "/",
		Typeflag: tar.TypeSymlink}))
	f.Fuzz(func(t *testing.T, data []byte) {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "disk/home"), 0o755); err != nil {
			t.Fatal(err)
		}
		d := &disk{root: filepath.Join(root, "disk"), home: "/home", mounts: map[string]bool{}}
		_ = d.restore(bytes.NewReader(data))
		if names, _ := os.ReadDir(root); len(names) != 1 {
			t.Errorf("next to the disk: got %v, want nothing", names)
		}
	})
}

func TestMounts(t *testing.T) {
	t.Parallel()
	d, err := newDisk("/home/gem/")
	if err != nil || !d.mounts["/proc"] || d.mounts["/"] || d.home != "/home/gem" || time.Since(d.since) > time.Hour {
		t.Errorf("got %+v, %v, want the mounts of this process", d, err)
	}
	if got := unescape(`/a\040b\134c`); got != `/a b\c` {
		t.Errorf("got %q", got)
	}
}

// TestChangesBeforeTheStart: a change just before tick has an earlier time, even if the kernel
// records changes with a finer clock.
func TestChangesBeforeTheStart(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	changed := func() time.Time {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		return ctime(info)
	}
	for i := range 30 {
		changed() // so that the kernel records the next change with the finer clock
		if err := os.Chmod(file, 0o600); err != nil {
			t.Fatal(err)
		}
		since, err := tick()
		if err != nil {
			t.Fatal(err)
		}
		if before := changed(); !before.Before(since) {
			t.Fatalf("round %d: changed at %v, want before %v", i, before, since)
		}
		if err := os.Chmod(file, 0o600); err != nil {
			t.Fatal(err)
		}
		if after := changed(); after.Before(since) {
			t.Fatalf("round %d: changed at %v, want not before %v", i, after, since)
		}
	}
}
