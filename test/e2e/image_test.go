package e2e

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// A sandbox starts from an image that was not made for Cove.
func TestSandboxFromAnImage(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "ldd")
	host := pushImage(t, "tiny:1", []string{"PATH=/bin", "FLAVOUR=tiny"},
		programFiles(t, "/bin/bash"), map[string]string{"etc/marker": "lower", "etc/gone": "x"},
		map[string]string{"etc/marker": "upper", "etc/.wh.gone": ""})

	h := serveHub(t, "--insecure-registries", host)
	for _, sandbox := range []string{"a", "b"} {
		h.must(t, "create", sandbox, "--image", host+"/tiny:1")
	}
	const look = `echo "$FLAVOUR $(</etc/marker)"; [ -e /etc/gone ] && echo not gone; [ -e /usr/bin/python3 ] && ` +
		`echo host; echo mine > /home/gem/note; echo $UID`
	if out := h.must(t, "exec", "a", look); out != "tiny upper\n1000\n" {
		t.Errorf("%q, want %q", out, "tiny upper\n1000\n")
	}
	if out := h.must(t, "exec", "b", "cd /home/gem; echo *"); strings.Contains(out, "note") {
		t.Errorf("two sandboxes of one image share a file: %q, want without \"note\"", out)
	}
	// Root, the user, its home and the sandbox's own programs are in every image.
	h.verify(t, "a",
		check{"sudo bash -c 'echo $UID $HOME > /made; echo $UID $HOME'; echo $(</made)", "0 /root\n0 /root"},
		check{"echo $HOSTNAME; [ -e ~/.bashrc ] && [ -d ~/workspace ] && command -v aio; while read line; do [[ " +
			"$line == gem:* ]] && echo $line; done < /etc/passwd", "a\n/run/bin/aio\ngem:x:1000:1000::/home/gem:/bin/sh"},
		check{"exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET /healthz HTTP/1.0\\r\\nHost: " +
			"localhost:8080\\r\\n\\r\\n' >&3; read -r line <&3; echo $line", "HTTP/1.0 200 OK…"})
	for _, bad := range []string{host + "/none:1", "tar:/etc/passwd", "oci:/", "127.0.0.1:1/x"} {
		if _, errs, code := h.cove(t, "", "create", "c", "--image", bad); code == 0 || errs == "" {
			t.Errorf("%s: %d %s, want a nonzero exit code and an error message", bad, code, errs)
		}
	}
}

// pushImage creates an image from layers, each a map of files by path. It serves the image in a
// registry and returns its address.
func pushImage(t *testing.T, ref string, env []string, layers ...map[string]string) (host string) {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	host = strings.TrimPrefix(server.URL, "http://")
	to, err := name.ParseReference(host+"/"+ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	image := empty.Image
	for _, files := range layers {
		body := tarOf(t, files)
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			t.Fatal(err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", "amd64"
	config.Config.Env = env
	config.Config.Cmd = []string{"/bin/bash"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(to, image); err != nil {
		t.Fatal(err)
	}
	return host
}

// programFiles are programs of the host with the libraries they need, by path in the image.
func programFiles(t *testing.T, paths ...string) map[string]string {
	t.Helper()
	out, err := exec.Command("ldd", paths...).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") && !strings.HasSuffix(word, ":") {
			paths = append(paths, word)
		}
	}
	files := map[string]string{}
	for _, p := range paths {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(p, "/")] = string(b)
	}
	return files
}

// Root in a sandbox can also install Debian packages in an image.
func TestAptInstallInAnImage(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "apt-get", "dpkg", "ldd")
	files := programFiles(t, "/bin/bash", "/bin/sh", "/bin/cat", "/bin/chmod", "/bin/chown", "/bin/mkdir", "/bin/rm",
		"/bin/mv", "/bin/tar", "/usr/bin/diff",
		"/usr/bin/apt-get", "/usr/lib/apt/methods/http", "/usr/lib/apt/methods/store", "/usr/bin/dpkg",
		"/usr/bin/dpkg-deb", "/usr/bin/dpkg-split", "/usr/bin/dpkg-query",
		"/sbin/start-stop-daemon", "/sbin/ldconfig")
	for _, table := range []string{"cputable", "ostable", "tupletable"} {
		b, err := os.ReadFile("/usr/share/dpkg/" + table)
		if err != nil {
			t.Fatal(err)
		}
		files["usr/share/dpkg/"+table] = string(b)
	}
	for _, empty := range []string{"var/lib/dpkg/status", "var/lib/dpkg/info/x", "var/lib/dpkg/updates/.keep",
		"var/lib/dpkg/triggers/x", "var/lib/apt/lists/x", "var/cache/apt/archives/x",
		"etc/apt/apt.conf.d/x", "etc/apt/preferences.d/x", "etc/dpkg/dpkg.cfg.d/x", "var/log/x", "tmp/x"} {
		files[empty] = ""
	}
	host := pushImage(t, "debian:1", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, files)
	h := serveHub(t, "--insecure-registries", host, "--private-networks", "127.0.0.1/32")
	h.must(t, "create", "alpha", "--image", host+"/debian:1")
	with := registries(t) + `echo "deb [trusted=yes] $REPOSITORY ./" > ~/test.list; ` +
		`apt="sudo apt-get -q -y -o Dir::Etc::SourceList=$HOME/test.list -o Dir::Etc::SourceParts=- -o ` +
		`Acquire::Retries=0 -o APT::Sandbox::User=root"; `
	h.verify(t, "alpha", check{with + "$apt update >/dev/null && { $apt install cove-small > ~/said 2>&1 || cat " +
		"~/said; } && cove-small && cat /var/log/cove-small && dpkg-query -W cove-small", "small runs\npostinst configure\ncove-small\t1.0"})
	h.must(t, "stop", "alpha")
	h.verify(t, "alpha", check{"cove-small", "small runs"})
}

func tarOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, body := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
