package e2e

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// registries serve a Debian repository, a Python index and an npm registry, each with
// packages that the test builds. They listen on localhost of this machine, which the hub must allow.
// Programs in the sandbox that bypass the proxy for localhost must be configured not to.
func registries(t *testing.T) (setup string) {
	t.Helper()
	testenv.Need(t, "dpkg-deb", "npm")
	var files sync.Map
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Use the decoded path: npm escapes the slash in a scoped name, and apt requests ./Packages.
		if serve, ok := files.Load(strings.ReplaceAll(r.URL.Path, "/./", "/")); ok {
			serve.(func(http.ResponseWriter))(w)
			return
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(s.Close)
	url := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	serve := func(path, kind string, content []byte) {
		files.Store(path, func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", kind)
			w.Write(content)
		})
	}
	var index strings.Builder
	for name, deb := range debianPackages(t) {
		file := name + ".deb"
		fmt.Fprintf(&index, "%sFilename: ./%s\nSize: %d\nSHA256: %x\n\n", deb.control, file, len(deb.content), sha256.Sum256(deb.content))
		serve("/debian/"+file, "application/octet-stream", deb.content)
	}
	serve("/debian/Packages", "text/plain", []byte(index.String()))
	wheel := pythonWheel(t)
	serve("/simple/covepkg/", "text/html",
		fmt.Appendf(nil, `<a href="/covepkg-1.0-py3-none-any.whl#sha256=%x">covepkg-1.0-py3-none-any.whl</a>`, sha256.Sum256(wheel)))
	serve("/covepkg-1.0-py3-none-any.whl", "application/octet-stream", wheel)
	for name, command := range map[string]string{"covepkg": "covenpm", "@anthropic-ai/claude-code": "claude",
		"@openai/codex": "codex", "opencode-ai": "opencode"} {
		tarball := npmTarball(t, name, command)
		sum := sha512.Sum512(tarball)
		version := map[string]any{"name": name, "version": "1.0.0", "bin": map[string]string{command: "cli.js"},
			"dist": map[string]string{"tarball": url + "/tarball/" + command, "integrity": "sha512-" + base64.StdEncoding.EncodeToString(sum[:])}}
		document, err := json.Marshal(map[string]any{"name": name, "dist-tags": map[string]string{"latest": "1.0.0"},
			"versions": map[string]any{"1.0.0": version}})
		if err != nil {
			t.Fatal(err)
		}
		serve("/"+name, "application/json", document)
		serve("/tarball/"+command, "application/octet-stream", tarball)
	}
	return "unset no_proxy NO_PROXY; export PIP_INDEX_URL=" + url + "/simple UV_INDEX_URL=" + url +
		"/simple NPM_CONFIG_REGISTRY=" + url + " DEBIAN_FRONTEND=noninteractive REPOSITORY=" + url + "/debian; set -e; "
}

type debianPackage struct {
	control string
	content []byte
}

// debianPackages builds a package with a daemon, and one with scripts that depends on it.
func debianPackages(t *testing.T) map[string]debianPackage {
	t.Helper()
	const script = "#!/bin/sh\nset -e\n"
	trees := map[string]map[string]string{
		"cove-daemon": {
			"DEBIAN/control": "Package: cove-daemon\nVersion: 1.0\nArchitecture: all\nMaintainer: " +
				"Nobody <nobody@example.com>\nDescription: a daemon\n",
			"DEBIAN/postinst": script +
				"adduser --system --group --home /var/lib/cove-daemon cove-daemon\nupdate-rc.d cove-daemon " +
				"defaults >/dev/null\ninvoke-rc.d cove-daemon start || exit $?\n",
			"DEBIAN/prerm": script + "invoke-rc.d cove-daemon stop || exit $?\n",
			"usr/sbin/cove-daemon": "#!/usr/bin/python3\nimport " +
				"http.server\nhttp.server.HTTPServer(('127.0.0.1', 7070), http.server.SimpleHTTPRequestHandler).serve_forever()\n",
			"etc/init.d/cove-daemon": script +
				"### BEGIN INIT INFO\n# Provides: cove-daemon\n# Required-Start:\n# Required-Stop:\n# " +
				"Default-Start: 2 3 4 5\n# Default-Stop: 0 1 6\n### END INIT INFO\ncase $1 in\nstart) " +
				"start-stop-daemon --start --background --make-pidfile --pidfile /run/cove-daemon.pid --chuid " +
				"cove-daemon --startas /usr/sbin/cove-daemon ;;\nstop) start-stop-daemon --stop --oknodo --pidfile /run/cove-daemon.pid ;;\nesac\n",
			"etc/default/cove-daemon":   "OPTIONS=\n",
			"usr/share/doc/cove/readme": "hello\n",
		},
		"cove-small": {
			"DEBIAN/control": "Package: cove-small\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody " +
				"<nobody@example.com>\nDescription: a script without needs\n",
			"DEBIAN/postinst":    script + "echo postinst \"$1\" >> /var/log/cove-small\n",
			"usr/bin/cove-small": "#!/bin/sh\necho small runs\n",
		},
		"cove-script": {
			"DEBIAN/control": "Package: cove-script\nVersion: 2.0\nArchitecture: all\nDepends: " +
				"cove-daemon\nMaintainer: Nobody <nobody@example.com>\nDescription: scripts\n",
			"DEBIAN/conffiles": "/etc/cove-script.conf\n",
			"DEBIAN/preinst":   script + "echo preinst \"$1\" >> /var/log/cove-script\n",
			"DEBIAN/postinst": script +
				"echo postinst \"$1\" >> /var/log/cove-script\nupdate-alternatives --install /usr/bin/cove-tool " +
				"cove-tool /usr/bin/cove-script 10\nldconfig\nchown daemon:daemon /usr/bin/cove-script\nchmod u+s /usr/bin/cove-script\n",
			"DEBIAN/postrm":             script + "update-alternatives --remove cove-tool /usr/bin/cove-script\n",
			"etc/cove-script.conf":      "x\n",
			"usr/bin/cove-script":       "#!/bin/sh\necho script runs\n",
			"usr/lib/cove-script/empty": "",
		},
	}
	packages := map[string]debianPackage{}
	for name, files := range trees {
		dir := filepath.Join(t.TempDir(), name)
		for path, text := range files {
			at := filepath.Join(dir, path)
			mode := os.FileMode(0o644)
			if strings.HasPrefix(text, "#!") {
				mode = 0o755
			}
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), mode); err != nil {
				t.Fatal(err)
			}
		}
		out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--root-owner-group", "-Znone", "--build", dir).CombinedOutput()
		if err != nil {
			t.Fatalf("dpkg-deb: %v: %s", err, out)
		}
		content, err := os.ReadFile(dir + ".deb")
		if err != nil {
			t.Fatal(err)
		}
		packages[name] = debianPackage{files["DEBIAN/control"], content}
	}
	return packages
}

// pythonWheel builds a package with a command.
func pythonWheel(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	const info = "covepkg-1.0.dist-info/"
	record := ""
	for _, f := range [][2]string{
		{"covepkg/__init__.py", "def main():\n    print('python runs')\n"},
		{info + "METADATA", "Metadata-Version: 2.1\nName: covepkg\nVersion: 1.0\n"},
		{info + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"},
		{info + "entry_points.txt", "[console_scripts]\ncovepy = covepkg:main\n"},
	} {
		w, err := z.Create(f[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte(f[1]))
		record += fmt.Sprintf("%s,sha256=%s,%d\n", f[0], base64.RawURLEncoding.EncodeToString(sum[:]), len(f[1]))
	}
	w, err := z.Create(info + "RECORD")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(record + info + "RECORD,,\n")); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// npmTarball builds a package with a command.
func npmTarball(t *testing.T, name, command string) []byte {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	for _, f := range [][2]string{
		{"package/package.json", fmt.Sprintf(`{"name":%q,"version":"1.0.0","bin":{%q:"cli.js"}}`, name, command)},
		{"package/cli.js", "#!/usr/bin/env node\nconsole.log('node runs')\n"},
	} {
		if err := w.WriteHeader(&tar.Header{Name: f[0], Mode: 0o755, Size: int64(len(f[1]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(f[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := gz.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
