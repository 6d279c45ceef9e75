package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// liar is the server of a compromised sandbox: it reports false names and types, sends hostile archives, and redirects.
const liar = `
import http.server, io, json, sys, tarfile, urllib.parse
def pack(p):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        def add(name, kind=tarfile.REGTYPE, link="", mode=0o6755):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mode = kind, link, mode
            body = b"owned" if kind == tarfile.REGTYPE else b""
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
        if "dots" in p:
            add("x/../../.bashrc")
        elif "absolute" in p:
            add("/tmp/.bashrc")
        else:
            add("x", tarfile.DIRTYPE)
            add("x/.bashrc")
            add("x/.ssh/authorized_keys")
            add("x/up", tarfile.SYMTYPE, "../..")
            add("x/up/.profile")
            add("x/root", tarfile.SYMTYPE, "/")
            add("x/inside", tarfile.SYMTYPE, ".bashrc")
            add("x/hard", tarfile.LNKTYPE, "x/.bashrc")
            add("x/disk", tarfile.BLKTYPE)
            add("x/pipe", tarfile.FIFOTYPE)
    return out.getvalue()
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self, body, **headers):
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        p = urllib.parse.parse_qs(url.query).get("path", [""])[0]
        if url.path.endswith("/archive"):
            return self.answer(pack(p), Content_Disposition='attachment; filename=".bashrc"')
        self.answer(b"owned", Content_Disposition='attachment; filename=".bashrc"', Content_Type="application/octet-stream")
    def do_POST(self):
        p = json.loads(self.rfile.read(int(self.headers["Content-Length"]))).get("path", "")
        if p.startswith("away "):
            self.send_response(307)
            self.send_header("Location", p[5:])
            self.send_header("Content-Length", "0")
            return self.end_headers()
        self.answer(json.dumps({"success": True, "data": {"path": "/home/gem/.bashrc", "is_directory": "file" not in p}}).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
`

// serveLiar starts a hub with a sandbox "evil", whose server is hostile.
func serveLiar(t *testing.T) *hub {
	t.Helper()
	testenv.Need(t, "python3")
	b, err := json.Marshal([]map[string]any{{"name": "liar", "port": 8000, "ready_path": "/", "command": []string{"python3", "-c", liar}}})
	if err != nil {
		t.Fatal(err)
	}
	environments := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(environments, b, 0o600); err != nil {
		t.Fatal(err)
	}
	h := serveHub(t, "--environments", environments)
	h.must(t, "create", "evil", "--environment", "liar")
	return h
}

// makeHome creates the home folder of a user, in which commands run.
func makeHome(t *testing.T) string {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home")
	for name, text := range map[string]string{".bashrc": "mine", ".ssh/authorized_keys": "mine", "sub/note": "mine"} {
		file := filepath.Join(home, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(".ssh", filepath.Join(home, "link")); err != nil {
		t.Fatal(err)
	}
	return home
}

// readTree returns everything under the parent of a folder: contents of files, targets of links, and modes of other entries.
func readTree(t *testing.T, home string) map[string]string {
	t.Helper()
	tree, top := map[string]string{}, filepath.Dir(home)
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(home, path)
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case info.Mode()&fs.ModeSymlink != 0:
			tree[name], err = os.Readlink(path)
			tree[name] = "-> " + tree[name]
		case info.Mode().IsRegular() && info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) == 0:
			var b []byte
			b, err = os.ReadFile(path)
			tree[name] = string(b)
		default:
			tree[name] = info.Mode().String()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestClientWritesOnlyWhereItsArgumentsSay: the arguments of cove cp, not the sandbox, determine the name and location of files.
func TestClientWritesOnlyWhereItsArgumentsSay(t *testing.T) {
	t.Parallel()
	h := serveLiar(t)
	var stolen atomic.Int32
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Add(1) }))
	t.Cleanup(thief.Close)
	for _, c := range []struct {
		from, to string
		code     int
		folder   string // with the content of the archive
		file     string // with the content of a download
	}{
		{"report.txt", ".", 0, "report.txt", ""},
		{"/home/gem/report.txt", "sub", 0, "sub/report.txt", ""},
		{"report.txt/", "new", 0, "new", ""},
		{"report.txt", "a/b", 0, "a/b", ""},
		{"folder/.", "sub", 0, "sub", ""},
		{"file.txt", ".", 0, "", "file.txt"},
		{"file.txt", "sub/", 0, "", "sub/file.txt"},
		{"file.txt", "sub/note", 0, "", "sub/note"},
		{"report.txt", "sub/note", 1, "", ""},
		{"", ".", 2, "", ""},
		{"/", ".", 2, "", ""},
		{"..", ".", 2, "", ""},
		{"~", ".", 2, "", ""},
		{"file/..", ".", 2, "", ""},
		{"link", ".", 1, "", ""},
		{"dots", ".", 1, "", ""},
		{"absolute", "new", 1, "", ""},
		{"away " + thief.URL, ".", 1, "", ""},
		{"away /api/v1/sandbox", ".", 1, "", ""},
	} {
		t.Run(c.from+" to "+c.to, func(t *testing.T) {
			home := makeHome(t)
			want := readTree(t, home)
			if c.folder != "" {
				for _, name := range []string{".bashrc", ".ssh/authorized_keys", "hard", "up/.profile"} {
					want[filepath.Join(c.folder, name)] = "owned"
				}
				want[filepath.Join(c.folder, "inside")] = "-> .bashrc"
			}
			if c.file != "" {
				want[c.file] = "owned"
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, cove, "cp", "evil:"+c.from, c.to)
			cmd.Dir, cmd.Env = home, environment(t.TempDir(), h.env)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
				t.Fatal(err)
			}
			if code := cmd.ProcessState.ExitCode(); code != c.code {
				t.Errorf("got exit code %d and %s, want %d", code, &out, c.code)
			}
			if d := cmp.Diff(want, readTree(t, home)); d != "" {
				t.Errorf("%s\n%s", &out, d)
			}
			if c.folder != "" && strings.Count(out.String(), "skipped: ") != 4 {
				t.Errorf("got %s, want an error that names the two links to targets outside, the device and the pipe", &out)
			}
		})
	}
	if n := stolen.Load(); n > 0 {
		t.Errorf("got %d requests at another server, want none: a redirect was followed", n)
	}
}
