package workbench_test

import (
	"archive/zip"
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/workbench"
)

// standInLab is a module that is started as JupyterLab is, and replies when it works.
const standInLab = `import http.server, socketserver, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b"[]" if self.path == "/api/sessions" else b"the lab that was installed"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass

class Server(socketserver.ThreadingUnixStreamServer):
    def get_request(self):
        return super().get_request()[0], ("", 0)

Server(next(a for a in sys.argv if a.startswith("--ServerApp.sock=")).split("=", 1)[1], Handler).serve_forever()
`

// wheel is a Python package with these files.
func wheel(t *testing.T, name, version string, files map[string]string) []byte {
	t.Helper()
	info := name + "-" + version + ".dist-info/"
	all := map[string]string{
		name + "/__init__.py": "", info + "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		info + "METADATA": fmt.Sprintf("Metadata-Version: 2.1\nName: %s\nVersion: %s\n", name, version),
	}
	for file, content := range files {
		all[name+"/"+file] = content
	}
	record := info + "RECORD,,\n"
	for file := range all {
		record += file + ",,\n"
	}
	all[info+"RECORD"] = record
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for file, content := range all {
		w, err := z.Create(file)
		must(t, err)
		_, err = w.Write([]byte(content))
		must(t, err)
	}
	must(t, z.Close())
	return b.Bytes()
}

// index serves a Python index with the versions of the recipe. One of them is missing while the file lacks exists.
func index(t *testing.T, lacks string) string {
	t.Helper()
	recipe, err := os.ReadFile("recipe/jupyterlab.sh")
	must(t, err)
	text := string(recipe)
	version := regexp.MustCompile(`version=([0-9.]+)`).FindStringSubmatch(text)[1]
	found := regexp.MustCompile(`"([a-z_]+)==([0-9.]+)"`).FindAllStringSubmatch(strings.ReplaceAll(text, "$version", version), -1)
	if len(found) != 4 {
		t.Fatalf("the recipe names %v, want 4 packages", found)
	}
	m := http.NewServeMux()
	for _, f := range found {
		name, version := f[1], f[2]
		files := map[string]string{}
		if name == "jupyterlab" {
			files = map[string]string{"labapp.py": "", "__main__.py": standInLab}
		}
		file, content := name+"-"+version+"-py3-none-any.whl", wheel(t, name, version, files)
		m.HandleFunc("GET /simple/"+strings.ReplaceAll(name, "_", "-")+"/", func(w http.ResponseWriter, r *http.Request) {
			if _, err := os.Stat(lacks); err == nil && name == "jupyter_client" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprintf(w, `<a href="/%s">%[1]s</a>`, file)
		})
		m.HandleFunc("GET /"+file, func(w http.ResponseWriter, _ *http.Request) { w.Write(content) })
	}
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	return s.URL + "/simple"
}

// TestInstallLab: the recipe of JupyterLab creates a Python environment from an index, and the program in it starts. If the
// recipe fails, it explains the reason and removes all files.
func TestInstallLab(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "bash", "python3")
	lacks := filepath.Join(t.TempDir(), "lacks")
	b := newBench(t, func(c *workbench.Config) { c.Components = []string{filepath.Join(c.Home, "components")} },
		"PIP_INDEX_URL="+index(t, lacks), "PIP_RETRIES=0")
	in := workbench.InstallIn{Name: "jupyterlab", Wait: true}

	must(t, os.WriteFile(lacks, nil, 0o600))
	if _, err := b.Install(t.Context(), in); codeOf(err) != op.Unavailable || !strings.Contains(err.Error(), "jupyter_client") {
		t.Errorf("an index that lacks a package: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(b.dir, "home/components/*")); len(left) != 0 {
		t.Errorf("files were not removed: %v", left)
	}
	must(t, os.Remove(lacks))

	c, err := b.Install(t.Context(), in)
	if err != nil || c.State != "idle" {
		t.Fatalf("got %+v, %v", c, err)
	}
	dir := filepath.Join(b.dir, "home", "components", "jupyterlab")
	if pip, _ := filepath.Glob(filepath.Join(dir, "lib/python3*/site-packages/pip")); len(pip) != 0 {
		t.Errorf("unneeded files were not removed: %v", pip)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm()&0o055 != 0o055 {
		t.Errorf("other users cannot use it: %v, %v", info.Mode(), err)
	}
	if all, _ := filepath.Glob(filepath.Join(b.dir, "home", "components", "*")); !slices.Equal(all, []string{dir}) {
		t.Errorf("there are files besides the component: %v", all)
	}
	if res, body := b.get("/jupyter/lab/tree/x.ipynb"); res.StatusCode != http.StatusOK || body != "the lab that was installed" {
		t.Errorf("after the installation: %d %s", res.StatusCode, body)
	}
}
