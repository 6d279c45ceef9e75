package local

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// item is an entry of an archive that somebody made by hand.
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
	z, err := zstd.NewWriter(&b)
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

// An archive that cove backup did not write is refused as a whole: nothing of it stays, and
// nothing outside of the state folder is touched.
func TestRestoreOfHostileArchives(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	link := func(name, target string) item {
		return item{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}, ""}
	}
	with := func(i item, key, value string) item {
		i.PAXRecords = map[string]string{key: value}
		return i
	}
	for name, c := range map[string]struct {
		archive *bytes.Buffer
		want    string
	}{
		"garbage":            {bytes.NewBufferString("garbage"), "not an archive that cove backup wrote"},
		"empty":              {&bytes.Buffer{}, "not an archive that cove backup wrote"},
		"no manifest":        {pack(t, file("hub/keys.json", "{}"), end), "it has no manifest"},
		"manifest of others": {pack(t, file(manifestName, "[]"), end), "cannot unmarshal"},
		"later format":       {pack(t, manifest(func(m *Manifest) { m.Format, m.Version = 2, "9.0" }), end), `it has format 2, written by version "9.0"; this program reads format 1`},
		"another user":       {pack(t, manifest(func(m *Manifest) { m.Root = !m.Root }), end), "restore it in the same way"},
		"no end":             {pack(t, manifest(nil), file("hub/keys.json", "{}")), "its end is missing"},
		"after the end":      {pack(t, manifest(nil), end, file("hub/keys.json", "{}")), "unexpected entry"},
		"absolute":           {pack(t, manifest(nil), file(outside+"/x", "x"), end), "unexpected entry"},
		"absolute in hub":    {pack(t, manifest(nil), file("layers/"+outside+"/x", "x"), end), "leaves its folder"},
		"parent":             {pack(t, manifest(nil), file("layers/../../x", "x"), end), "leaves its folder"},
		"parent in hub":      {pack(t, manifest(nil), file("hub/../x", "x"), end), "unexpected file"},
		"unknown section":    {pack(t, manifest(nil), file("programs/aio", "x"), end), "unexpected entry"},
		"socket of the hub":  {pack(t, manifest(nil), file("hub/hub.sock", "x"), end), "unexpected file"},
		"through a link":     {pack(t, manifest(nil), folder("layers/l"), link("layers/l/out", outside), file("layers/l/out/x", "x"), end), "is a link or is missing"},
		"over a link":        {pack(t, manifest(nil), folder("layers/l"), link("layers/l/out", outside+"/x"), file("layers/l/out", "x"), end), "file exists"},
		"link in hub":        {pack(t, manifest(nil), link("hub/keys.json", "/etc/passwd"), end), "neither a file nor a folder"},
		"hard link outside":  {pack(t, manifest(nil), folder("layers/l"), item{tar.Header{Name: "layers/l/x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}, ""}, end), "link to elsewhere"},
		"hard link up":       {pack(t, manifest(nil), folder("layers/l"), item{tar.Header{Name: "layers/l/x", Typeflag: tar.TypeLink, Linkname: "layers/../lock"}, ""}, end), "leaves its folder"},
		"device":             {pack(t, manifest(nil), folder("layers/l"), item{tar.Header{Name: "layers/l/sda", Typeflag: tar.TypeBlock, Devmajor: 8}, ""}, end), "unknown kind"},
		"character device":   {pack(t, manifest(nil), folder("layers/l"), item{tar.Header{Name: "layers/l/mem", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1}, ""}, end), "it is a device"},
		"twice":              {pack(t, manifest(nil), file("hub/keys.json", "1"), file("hub/keys.json", "2"), end), "file exists"},
		"negative size":      {pack(t, manifest(nil), folder("layers/l"), with(file("layers/l/x", ""), "COVE.size", "-1"), end), "invalid size"},
		"huge size":          {pack(t, manifest(nil), folder("layers/l"), with(file("layers/l/x", ""), "COVE.size", "9223372036854775807"), end), "unpack"},
		"stray part":         {pack(t, manifest(nil), folder("layers/l"), with(file("layers/l/x", "x"), "COVE.offset", "5"), end), "does not belong where it is"},
		"part past the end":  {pack(t, manifest(nil), folder("layers/l"), with(file("layers/l/x", ""), "COVE.size", "5"), with(file("layers/l/x", "x"), "COVE.offset", "5"), end), "does not belong where it is"},
		"attribute":          {pack(t, manifest(nil), folder("layers/l"), with(file("layers/l/x", ""), "SCHILY.xattr.security.ima", "x"), end), "unexpected attribute"},
		"foreign record":     {pack(t, manifest(nil), folder("sandboxes/sb-1"), file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-2"}}`), end), "it is the record of"},
		"no disk":            {pack(t, manifest(nil), folder("sandboxes/sb-1"), file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-1"}}`), end), "has no disk"},
		"layer elsewhere":    {pack(t, manifest(nil), folder("sandboxes/sb-1"), file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-1"},"layers":["../../x"]}`), end), "invalid layer"},
		"image elsewhere":    {pack(t, manifest(nil), folder("sandboxes/sb-1"), file("sandboxes/sb-1/state.json", `{"sandbox":{"id":"sb-1"},"layers":["0123456789abcdef"],"image":{"layers":["/etc"]}}`), end), "is not in its state folder"},
		"snapshot elsewhere": {pack(t, manifest(nil), file("snapshots/o/s.json", `{"snapshot":{"name":"s"},"layers":["0123456789abcdef"],"base":"../../etc"}`), end), "invalid base"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "state")
			_, err := Restore(t.Context(), RestoreConfig{Dir: dir, NoImage: true, Files: []string{"keys.json", "audit/head"}}, c.archive)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got error %v, want one with %q", err, c.want)
			}
			left, err := os.ReadDir(dir)
			if err != nil || len(left) != 1 || left[0].Name() != "lock" {
				t.Errorf("got %v and error %v in the state folder, want nothing but the lock", left, err)
			}
		})
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Errorf("got %v and error %v outside of the state folder, want nothing", left, err)
		}
	})
}

// A restore never replaces a state folder, and one that was interrupted is not taken for whole.
func TestRestoreIntoAUsedFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "keys.json"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(t.Context(), RestoreConfig{Dir: dir, NoImage: true}, pack(t, manifest(nil), end)); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("got error %v, want that the folder is not empty", err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "keys.json")); err != nil || string(b) != "mine" {
		t.Errorf("got %q and error %v, want what was there", b, err)
	}
	if err := os.WriteFile(filepath.Join(dir, restoringName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{Dir: dir, Init: []string{"/bin/false"}, NoImage: true}); err == nil || !strings.Contains(err.Error(), "was interrupted") {
		t.Errorf("got error %v, want that the restore was interrupted", err)
	}
	if err := Backup(t.Context(), BackupConfig{Dir: t.TempDir()}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "no hub has used") {
		t.Errorf("got error %v, want that there is nothing to back up", err)
	}
}
