package local

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// item is an entry of a handmade archive.
type item struct {
	tar.Header
	text string
}

func manifest(change func(*Manifest)) item {
	m := Manifest{Format: backupFormat, Version: "1", State: "/old", Root: os.Geteuid() == 0}
	if change != nil {
		change(&m)
	}
	b, _ := json.Marshal(m)
	return item{tar.Header{Name: manifestName, Mode: 0o600}, string(b)}
}

func pack(t *testing.T, items ...item) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b, zstd.WithWindowSize(maxWindow))
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for _, i := range items {
		i.Size, i.Format = int64(len(i.text)), tar.FormatPAX
		if err := w.WriteHeader(&i.Header); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(i.text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	return &b
}

func file(name, text string) item { return item{tar.Header{Name: name, Mode: 0o600}, text} }

func folder(name string) item {
	return item{tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: 0o755}, ""}
}

var end = file(endName, "")

// hostileArchives are archives that cove backup did not write, with the expected error.
type hostileArchives map[string]struct {
	archive *bytes.Buffer
	want    string
}

const (
	volume       = "volumes/e3b0c44298fc1c14" // the folder of owner ""
	volumeRecord = `{"name":"data"}`
)

func link(name, target string) item {
	return item{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, ""}
}

func with(i item, key, value string) item {
	i.PAXRecords = map[string]string{key: value}
	return i
}

// hostileSandbox returns a backup with one sandbox, with the fields of its record.
func hostileSandbox(sandbox, disk string) []item {
	if disk != "" {
		disk = "," + disk
	}
	text := `{"sandbox":{"id":"sb-1",` + sandbox + `},"layers":["0123456789abcdef"]` + disk + `}`
	return []item{manifest(nil), folder("layers/0123456789abcdef"), folder("sandboxes/sb-1"), file("sandboxes/sb-1/state.json", text), end}
}

// hostileEntries are archives with invalid manifests, names, kinds and sizes of entries.
func hostileEntries(t *testing.T, outside string) hostileArchives {
	return hostileArchives{
		"garbage":            {bytes.NewBufferString("garbage"), "not written by cove backup"},
		"empty":              {&bytes.Buffer{}, "not written by cove backup"},
		"no manifest":        {pack(t, file("hub/keys.json", "{}"), end), "it has no manifest"},
		"manifest of others": {pack(t, file(manifestName, "[]"), end), "cannot unmarshal"},
		"later format": {pack(t, manifest(func(m *Manifest) { m.Format, m.Version = 2, "9.0" }), end),
			`it has format 2, written by version "9.0"; this program reads format 1`},
		"another user":      {pack(t, manifest(func(m *Manifest) { m.Root = !m.Root }), end), "run cove restore the same way"},
		"no end":            {pack(t, manifest(nil), file("hub/keys.json", "{}")), "its end is missing"},
		"after the end":     {pack(t, manifest(nil), end, file("hub/keys.json", "{}")), "unexpected entry"},
		"absolute":          {pack(t, manifest(nil), file(outside+"/x", "x"), end), "unexpected entry"},
		"absolute in hub":   {pack(t, manifest(nil), file("layers/"+outside+"/x", "x"), end), "leaves its folder"},
		"parent":            {pack(t, manifest(nil), file("layers/../../x", "x"), end), "leaves its folder"},
		"parent in hub":     {pack(t, manifest(nil), file("hub/../x", "x"), end), "leaves its folder"},
		"unknown section":   {pack(t, manifest(nil), file("programs/aio", "x"), end), "unexpected entry"},
		"socket of the hub": {pack(t, manifest(nil), file("hub/hub.sock", "x"), end), "unexpected name"},
		"through a link": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), link("layers/0123456789abcdef/root/out", outside),
			file("layers/0123456789abcdef/root/out/x", "x"), end), "is a link or is missing"},
		"over a link": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), link("layers/0123456789abcdef/root/out", outside+"/x"),
			file("layers/0123456789abcdef/root/out", "x"), end), "file exists"},
		"link in hub": {pack(t, manifest(nil), link("hub/keys.json", "/etc/passwd"), end), "must be a file"},
		"hard link outside": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"),
			item{tar.Header{Name: "layers/0123456789abcdef/root/x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
				""}, end), "link to another section"},
		"hard link up": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"),
			item{tar.Header{Name: "layers/0123456789abcdef/root/x", Typeflag: tar.TypeLink,
				Linkname: "layers/../lock"}, ""}, end), "leaves its folder"},
		"device": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"),
			item{tar.Header{Name: "layers/0123456789abcdef/root/sda", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}, end), "unknown kind"},
		"character device": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"),
			item{tar.Header{Name: "layers/0123456789abcdef/root/mem", Typeflag: tar.TypeChar, Devmajor: 1,
				Devminor: 1}, ""}, end), "it is a device"},
		"twice": {pack(t, manifest(nil), file("hub/keys.json", "1"), file("hub/keys.json", "2"), end), "file exists"},
		"negative size": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), with(file("layers/0123456789abcdef/root/x", ""), "COVE.size", "-1"), end), "invalid size"},
		"huge size": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), with(file("layers/0123456789abcdef/root/x", ""), "COVE.size",
				"9223372036854775807"), end), "unpack"},
		"stray part": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), with(file("layers/0123456789abcdef/root/x", "x"), "COVE.offset",
				"5"), end), "is misplaced"},
		"part past the end": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), with(file("layers/0123456789abcdef/root/x", ""), "COVE.size",
				"5"), with(file("layers/0123456789abcdef/root/x", "x"), "COVE.offset", "5"), end), "is misplaced"},
		"attribute": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder("layers/0123456789abcdef/root"), with(file("layers/0123456789abcdef/root/x", ""),
				"SCHILY.xattr.security.ima", "x"), end), "unexpected attribute"},
	}
}

// hostileLinks are archives with links instead of folders and files that a hub opens, mounts or writes by name.
func hostileLinks(t *testing.T, outside string) hostileArchives {
	sum := strings.Repeat("0", 64)
	work := "layers/0123456789abcdef/" + layer.WorkName
	return hostileArchives{
		"volume as a link": {pack(t, manifest(nil), file(volume+"/.data.json", volumeRecord),
			link(volume+"/data", "/"), end), "must be a folder"},
		"owner as a link": {pack(t, manifest(nil), link("volumes/e3b0c44298fc1c14", outside), end), "must be a folder"},
		"layer as a link": {pack(t, manifest(nil), link("layers/0123456789abcdef", "/"), end), "must be a folder"},
		"tree as a link": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			link("layers/0123456789abcdef/root", "/"), end), "must be a folder"},
		"work as a link": {pack(t, manifest(nil), folder("layers/0123456789abcdef"),
			folder(work), link(work+"/root", "/"), end), "must be a folder"},
		"base as a link": {pack(t, manifest(nil), link("base/0123456789abcdef", "/"), end), "must be a folder"},
		"tree of a base": {pack(t, manifest(nil), folder("base/0123456789abcdef"),
			link("base/0123456789abcdef/var", outside), end), "must be a folder"},
		"image as a link": {pack(t, manifest(nil), folder("images/layers"), folder("images/layers/"+sum),
			link("images/layers/"+sum+"/root", "/"), end), "must be a folder"},
		"images as a link":  {pack(t, manifest(nil), link("images/layers", "/etc"), end), "must be a folder"},
		"sandbox as a link": {pack(t, manifest(nil), link("sandboxes/sb-1", outside), end), "must be a folder"},
		"log as a link": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			link("sandboxes/sb-1/log.0", outside+"/x"), end), "neither a file nor a folder"},
		"new record as link": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			link("sandboxes/sb-1/.state.json.new", outside+"/x"), end), "neither a file nor a folder"},
	}
}

// hostileFiles are archives with pipes, sparse files and unexpected names instead of the files of a hub.
func hostileFiles(t *testing.T, outside string) hostileArchives {
	return hostileArchives{
		"record as a link": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			link("sandboxes/sb-1/state.json", "/etc/passwd"), end), "must be a file"},
		"record as a pipe": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			item{tar.Header{Name: "sandboxes/sb-1/state.json", Typeflag: tar.TypeFifo}, ""}, end), "must be a file"},
		"volume record pipe": {pack(t, manifest(nil),
			item{tar.Header{Name: volume + "/.data.json", Typeflag: tar.TypeFifo}, ""}, folder(volume+"/data"), end), "must be a file"},
		"image record pipe": {pack(t, manifest(nil),
			item{tar.Header{Name: "images/images/x.json", Typeflag: tar.TypeFifo}, ""}, end), "must be a file"},
		"record of a hole": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			with(file("sandboxes/sb-1/state.json", ""), "COVE.size", "1099511627776"), end), "is too large"},
		"volume record hole": {pack(t, manifest(nil), with(file(volume+"/.data.json", ""), "COVE.size",
			"1099511627776"), folder(volume+"/data"), end), "is too large"},
		"image record hole": {pack(t, manifest(nil), with(file("images/images/x.json", ""), "COVE.size",
			"1099511627776"), end), "is too large"},
		"snapshot of a hole": {pack(t, manifest(nil), with(file("snapshots/e3b0c44298fc1c14/s.json", ""),
			"COVE.size", "1099511627776"), end), "is too large"},
		"keys of a hole": {pack(t, manifest(nil), with(file("hub/keys.json", ""), "COVE.size", "1099511627776"), end), "has holes"},
		"huge record": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			file("sandboxes/sb-1/state.json", strings.Repeat(" ", 9<<20)), end), "is too large"},
		"folder as keys":      {pack(t, manifest(nil), folder("hub/keys.json"), end), "must be a file"},
		"odd layer":           {pack(t, manifest(nil), folder("layers/.."+outside), end), "leaves its folder"},
		"odd name of a layer": {pack(t, manifest(nil), folder("layers/evil"), end), "unexpected name"},
		"odd owner":           {pack(t, manifest(nil), folder("volumes/.doomed-1"), end), "unexpected name"},
		"odd volume":          {pack(t, manifest(nil), folder(volume), folder(volume+"/..."), end), "unexpected name"},
		"file among images":   {pack(t, manifest(nil), file("images/tmp", "x"), end), "unexpected name"},
	}
}

// hostileRecords are archives with invalid records, which are validated like requests.
func hostileRecords(t *testing.T, _ string) hostileArchives {
	sum := strings.Repeat("0", 64)
	return hostileArchives{
		"foreign record": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-2"}}`), end), "it is the record of"},
		"no disk": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-1","spec":{"name":"a"}}}`), end), "has no disk"},
		"layer elsewhere": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-1","spec":{"name":"a"}},"layers":["../../x"]}`), end), "invalid layer"},
		"image elsewhere": {pack(t, manifest(nil), folder("sandboxes/sb-1"),
			file("sandboxes/sb-1/state.json",
				`{"sandbox":{"id":"sb-1","spec":{"name":"a"}},"layers":["0123456789abcdef"],`+
					`"image":{"layers":["/etc"]}}`), end), "is not in its state folder"},
		"snapshot elsewhere": {pack(t, manifest(nil), file("snapshots/e3b0c44298fc1c14/s.json",
			`{"snapshot":{"name":"s"},"layers":["0123456789abcdef"],"base":"../../etc"}`), end), "invalid base"},
		"volume of another path": {pack(t,
			hostileSandbox(`"spec":{"name":"a","volumes":[{"name":"../../../etc","target":"/mnt"}]}`, "")...), "invalid"},
		"target over the server":   {pack(t, hostileSandbox(`"spec":{"name":"a","volumes":[{"name":"v","target":"/run/x"}]}`, "")...), "invalid"},
		"control characters":       {pack(t, hostileSandbox(`"spec":{"name":"a\u001b[2J"}`, "")...), "invalid"},
		"name of a path":           {pack(t, hostileSandbox(`"spec":{"name":"../../x"}`, "")...), "invalid"},
		"IDs of users of the host": {pack(t, hostileSandbox(`"spec":{"name":"a"}`, `"slot":35019`)...), "is beyond the last"},
		"IDs of another sandbox": {pack(t, manifest(nil), folder("layers/0123456789abcdef"), folder("sandboxes/sb-1"), folder("sandboxes/sb-2"),
			file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-1","spec":{"name":"a"}},"slot":7,"layers":["0123456789abcdef"]}`),
			file("sandboxes/sb-2/state.json",
				`{"sandbox":{"id":"sb-2","spec":{"name":"b"}},"slot":7,"layers":["0123456789abcdef"]}`), end), "belongs to another sandbox"},
		"image of the state": {pack(t, hostileSandbox(`"spec":{"name":"a"}`, `"image":{"layers":["/old/secrets"]}`)...),
			"is not in its state folder"},
		"image above the state": {pack(t, hostileSandbox(`"spec":{"name":"a"}`, `"image":{"layers":["/old/images/layers/`+
			sum+`/../../../secrets"]}`)...), "is not in its state folder"},
		"snapshot of another path": {pack(t, manifest(nil), file("snapshots/e3b0c44298fc1c14/s.json",
			`{"snapshot":{"name":"../x"},"layers":["0123456789abcdef"]}`), end), "it is the record of"},
		"snapshot of others": {pack(t, manifest(nil), file("snapshots/e3b0c44298fc1c14/s.json",
			`{"snapshot":{"name":"s","owner":"ann"},"layers":["0123456789abcdef"]}`), end), "it is the record of"},
		"volume of others": {pack(t, manifest(nil),
			file(volume+"/.data.json", `{"name":"data","owner":"ann"}`), folder(volume+"/data"), end), "it is the record of"},
		"record of a path": {pack(t, manifest(nil), file(volume+"/.data.json", `{"name":"../../../etc"}`), end), "it is the record of"},
	}
}

// TestRestoreRejectsHostileArchives: an archive that cove backup did not write is rejected completely. The state folder
// remains empty, and nothing outside of it is changed.
func TestRestoreRejectsHostileArchives(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	for _, table := range []func(*testing.T, string) hostileArchives{hostileEntries, hostileLinks, hostileFiles, hostileRecords} {
		for name, c := range table(t, outside) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "state")
				_, err := Restore(t.Context(), RestoreConfig{Dir: dir, NoImage: true, Files: []string{"keys.json", "audit/head"}}, c.archive)
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got error %v, want one that contains %q", err, c.want)
				}
				left, err := os.ReadDir(dir)
				if err != nil || len(left) != 1 || left[0].Name() != "lock" {
					t.Errorf("got %v and error %v in the state folder, want only the lock", left, err)
				}
			})
		}
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Errorf("got %v and error %v outside the state folder, want no files", left, err)
		}
	})
}

// A restore never replaces a state folder, and an interrupted one is detected.
func TestRestoreIntoAUsedFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "keys.json"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), RestoreConfig{Dir: dir, NoImage: true},
		pack(t, manifest(nil), end)); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("got error %v, want one about a folder that is not empty", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "keys.json")); err != nil || string(b) != "mine" {
		t.Errorf("got %q and error %v, want the previous content", b, err)
	}
	if err := os.WriteFile(filepath.Join(dir, restoringName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir, Init: []string{"/bin/false"}, NoImage: true}); err == nil ||
		!strings.Contains(err.Error(), "was interrupted") {
		t.Errorf("got error %v, want one about an interrupted restore", err)
	}
	if err := Backup(t.Context(), BackupConfig{Dir: t.TempDir()}, &bytes.Buffer{}); err == nil ||
		!strings.Contains(err.Error(), "no hub has used") {
		t.Errorf("got error %v, want one about an unused folder", err)
	}
}

// An archive of empty files could use all inodes of a filesystem.
func TestRestoreStopsBeforeFilesRunOut(t *testing.T) {
	testenv.NeedRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("cove-test", dir, "tmpfs", 0, "nr_inodes=1000"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	items := []item{manifest(nil), folder("layers/0123456789abcdef"), folder("layers/0123456789abcdef/root")}
	for i := range 2000 {
		items = append(items, file("layers/0123456789abcdef/root/"+strconv.Itoa(i), ""))
	}
	_, err := Restore(t.Context(), RestoreConfig{Dir: filepath.Join(dir, "state"), NoImage: true}, pack(t, append(items, end)...))
	if !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("got error %v, want one about missing space", err)
	}
}

// The state of a hub with images, volumes and snapshots passes the checks against hostile archives.
func TestBackupOfEverySection(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), filepath.Join(t.TempDir(), "state")
	sum := strings.Repeat("a", 64)
	for name, text := range map[string]string{
		"lock":                         "",
		"keys.json":                    "{}",
		"audit/head":                   "1",
		"audit/00000001.log":           "line",
		"secrets/ann/TOKEN":            "sealed",
		"disk/0123456789abcdef/root/f": "changed",
		"disk/0123456789abcdef/" + layer.WorkName + "/x/f": "work",
		"base/0123456789abcdef/var/lib/f":                  "base",
		"sandboxes/sb-1/log.0":                             "output",
		"sandboxes/sb-1/state.json": `{"sandbox":{"id":"sb-1","spec":{"name":"a"}},"slot":3,"layers":["0123456789abcdef"],` +
			`"image":{"layers":["` + from + `/images/layers/` + sum + `/root"]}}`,
		"snapshots/e3b0c44298fc1c14/s.json":    `{"snapshot":{"name":"s"},"layers":["0123456789abcdef"],"base":"0123456789abcdef"}`,
		"volumes/e3b0c44298fc1c14/.data.json":  `{"name":"data"}`,
		"volumes/e3b0c44298fc1c14/data/f":      "kept",
		"images/images/x.json":                 "{}",
		"images/layers/" + sum + "/layer.json": "{}",
		"images/layers/" + sum + "/root/bin/f": "program",
	} {
		path := filepath.Join(from, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(from, "images/layers", sum, "root/bin/link")); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	files := []string{"audit/head", "audit", "keys.json", "secrets"}
	warn := func(what string) { t.Errorf("got warning %q, want none", what) }
	if err := Backup(t.Context(), BackupConfig{Dir: from, Files: files, Warn: warn}, &b); err != nil {
		t.Fatal(err)
	}
	got, err := Restore(t.Context(), RestoreConfig{Dir: to, Files: files, NoImage: true}, &b)
	if err != nil || got.Sandboxes != 1 || got.Snapshots != 1 || got.Volumes != 1 {
		t.Fatalf("got %+v and error %v, want one of each", got, err)
	}
	for _, name := range []string{"secrets/ann/TOKEN", "audit/00000001.log", "disk/0123456789abcdef/root/f", "base/0123456789abcdef/var/lib/f",
		"volumes/e3b0c44298fc1c14/data/f", "images/layers/" + sum + "/root/bin/f", "sandboxes/sb-1/log.0"} {
		if _, err := os.Stat(filepath.Join(to, name)); err != nil {
			t.Errorf("got error %v, want every file", err)
		}
	}
}
