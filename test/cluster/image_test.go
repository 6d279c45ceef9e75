package cluster_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

const slimImage = "cove-sandbox:slim"

const hubImage = "cove-hub:latest"

// buildImages builds the images as their file says, on a base that has the packages already.
func buildImages(t *testing.T, e *cluster.Engine) {
	t.Helper()
	base := importBase(t, e)
	dir := t.TempDir()
	for _, name := range []string{"Dockerfile", "install.sh", "entrypoint.sh", "packages/slim", "packages/full"} {
		copyFile(t, filepath.Join("../../deploy", name), filepath.Join(dir, "deploy", name))
	}
	for _, name := range []string{"aio", "aio-markdown", "cove", "cove-container"} {
		copyFile(t, filepath.Join(programs, name), filepath.Join(dir, "bin", name))
	}
	for target, image := range map[string]string{"slim": slimImage, "hub": hubImage} {
		e.Run(t, nil, "build", "-q", "-f", filepath.Join(dir, "deploy/Dockerfile"), "--target", target, "--build-arg", "BASE="+base, "--build-arg", "PROGRAMS=prebuilt", "-t", image, dir)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// importBase imports Debian with the packages of the slim image, which is made once and kept.
func importBase(t *testing.T, e *cluster.Engine) (ref string) {
	t.Helper()
	list, err := os.ReadFile("../../deploy/packages/slim")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("rootfs.sh")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(append(list, script...))
	key := hex.EncodeToString(sum[:6])
	ref = "cove-base:" + key
	if strings.TrimSpace(e.Run(t, nil, "images", "-q", ref)) != "" {
		return ref
	}
	testenv.Need(t, "debootstrap")
	tar := filepath.Join(filepath.Dir(e.Dir), "debian-"+key+".tar")
	if _, err := os.Stat(tar); err != nil {
		out, err := exec.Command("bash", append([]string{"rootfs.sh", tar}, strings.Fields(string(list))...)...).CombinedOutput()
		if err != nil {
			testenv.Lack(t, fmt.Sprintf("no base image, because Debian cannot be installed from here: %v: %s", err, out[max(0, len(out)-500):]))
		}
	}
	f, err := os.Open(tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e.Run(t, f, "import", "-", ref)
	return ref
}

// box is a container of the image.
type box struct {
	t      *testing.T
	e      *cluster.Engine
	name   string
	client *http.Client
}

// runBox starts a container and waits until it is ready.
func runBox(t *testing.T, e *cluster.Engine, port int, args ...string) *box {
	t.Helper()
	b := &box{t: t, e: e, name: fmt.Sprintf("image-%d", port)}
	args = append([]string{"run", "-d", "--name", b.name, "--security-opt", "seccomp=../../deploy/seccomp.json", "-p", fmt.Sprintf("127.0.0.1:%d:8080", port)}, args...)
	e.Run(t, nil, append(args, slimImage)...)
	t.Cleanup(func() { e.Run(t, nil, "rm", "-f", b.name) })
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return e.Dial(fmt.Sprintf("127.0.0.1:%d", port))
	}}
	b.client = &http.Client{Transport: tr, Timeout: time.Minute}
	testenv.Poll(t, "the sandbox is ready", func() bool {
		resp, err := b.client.Get("http://localhost:8080/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return b
}

// call posts to the sandbox and returns the data of its reply.
func (b *box) call(path string, in any) map[string]any {
	b.t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := b.client.Post("http://localhost:8080"+path, "application/json", bytes.NewReader(body))
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	var out struct{ Data map[string]any }
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(text, &out) != nil {
		b.t.Fatalf("%s: got %s, %q, %v", path, resp.Status, text, err)
	}
	return out.Data
}

// wantOutput runs commands in the sandbox.
func (b *box) wantOutput(commands map[string]string) {
	b.t.Helper()
	for command, want := range commands {
		got := b.call("/v1/bash/exec", map[string]any{"command": command})
		if got["stdout"] != want {
			b.t.Errorf("%s: got %v, want %q", command, got, want)
		}
	}
}

// TestImage builds the images and drives that of the sandbox as its users do.
func TestImage(t *testing.T) {
	t.Parallel()
	e := cluster.StartDocker(t)
	buildImages(t, e)
	t.Run("of the hub", func(t *testing.T) {
		for program, want := range map[string]string{"/usr/local/bin/cove": "cove", "/usr/local/lib/cove/aio": "aio"} {
			if got := e.Run(t, nil, "run", "--rm", "--network", "none", "--entrypoint", program, hubImage, "version"); !strings.HasPrefix(got, want+" ") {
				t.Errorf("%s: got %q, want its version", program, got)
			}
		}
	})
	t.Run("as root", func(t *testing.T) {
		began := time.Now()
		b := runBox(t, e, 8081, "--health-interval", "1s", "-e", "WORKSPACE=/data/space", "-e", "TZ=Asia/Singapore", "-e", "RUN_HOOK_INIT=echo hooked >/tmp/hook")
		t.Logf("ready after %v (public image, with its browser: 3.7 s); memory %s (769 to 895 MiB); size %s", time.Since(began).Round(time.Millisecond),
			strings.TrimSpace(e.Run(t, nil, "stats", "--no-stream", "--format", "{{.MemUsage}}", b.name)), strings.TrimSpace(e.Run(t, nil, "images", "--format", "{{.Size}}", slimImage)))
		b.wantOutput(map[string]string{
			"id -un; pwd; date +%Z": "gem\n/data/space\n+08\n", "sudo id -u": "0\n", "cat /tmp/hook": "hooked\n",
			"python3 -c 'print(6*7)'": "42\n", "git --version | cut -c1-11; rg --version | head -c 7; node -e 'console.log(1)'": "git version\nripgrep1\n",
			"ps -o user= -p 1": "root\n",
		})
		b.call("/v1/file/write", map[string]any{"file": "/data/space/a.txt", "content": "hello"})
		b.wantOutput(map[string]string{"cat a.txt": "hello"})
		if resp, err := b.client.Get("http://localhost:8080/v1/sandbox"); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("health check of the public compose file: got %v, %v", resp, err)
		} else {
			resp.Body.Close()
		}
		testenv.Poll(t, "the engine finds it healthy", func() bool {
			return e.Run(t, nil, "inspect", "-f", "{{.State.Health.Status}}", b.name) == "healthy\n"
		})
	})
	t.Run("other user", func(t *testing.T) {
		b := runBox(t, e, 8082, "-e", "USER=ann", "-e", "USER_UID=1234", "-e", "USER_GID=1235")
		b.wantOutput(map[string]string{"id -un; id -u; id -g; touch x && echo ok": "ann\n1234\n1235\nok\n"})
	})
	t.Run("uid 1000 and a read-only root", func(t *testing.T) {
		b := runBox(t, e, 8083, "--user", "1000:1000", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
			"--tmpfs", "/tmp", "--tmpfs", "/run", "--tmpfs", "/home/gem:uid=1000,gid=1000,exec")
		b.wantOutput(map[string]string{"id -u; touch ~/x && echo ok; touch /etc/x 2>&1 | grep -c Read-only": "1000\nok\n1\n"})
	})
	t.Run("credentials", func(t *testing.T) {
		b := runBoxWithKey(t, e, 8084, "sesame")
		for key, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, "sesame": http.StatusOK} {
			req, err := http.NewRequest(http.MethodGet, "http://localhost:8080/v1/sandbox", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-AIO-API-Key", key)
			resp, err := b.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("key %q: got %s, want %d", key, resp.Status, want)
			}
		}
	})
	t.Run("SIGTERM runs the hooks", func(t *testing.T) {
		b := runBox(t, e, 8085, "-v", "image-hooks:/kept")
		t.Cleanup(func() { e.Run(t, nil, "rm", "-f", b.name); e.Run(t, nil, "volume", "rm", "-f", "image-hooks") })
		b.wantOutput(map[string]string{"sudo chown gem /kept; echo ok": "ok\n"})
		b.call("/v1/sandbox/hooks", map[string]any{"name": "bye", "command": "echo bye >/kept/bye"})
		b.call("/v1/bash/exec", map[string]any{"command": "nohup sleep 1000 >/dev/null 2>&1 & echo"})
		e.Run(t, nil, "stop", "-t", "10", b.name) // seconds until SIGKILL, which would be exit status 137
		if got := e.Run(t, nil, "inspect", "-f", "{{.State.ExitCode}}", b.name); got != "0\n" {
			t.Errorf("exit status: got %q, want 0: it did not end within 10 s", got)
		}
		if got := e.Run(t, nil, "run", "--rm", "--network", "none", "-v", "image-hooks:/kept", slimImage, "cat", "/kept/bye"); got != "bye\n" {
			t.Errorf("what the hook wrote: got %q, want bye", got)
		}
	})
	t.Run("hub", func(t *testing.T) { testHub(t, e) })
}

// runBoxWithKey starts a container with credentials; /healthz needs none.
func runBoxWithKey(t *testing.T, e *cluster.Engine, port int, key string) *box {
	t.Helper()
	name := fmt.Sprintf("image-%d", port)
	e.Run(t, nil, "run", "-d", "--name", name, "-e", "SANDBOX_API_KEY="+key, "-p", fmt.Sprintf("127.0.0.1:%d:8080", port), slimImage)
	t.Cleanup(func() { e.Run(t, nil, "rm", "-f", name) })
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) {
		return e.Dial(fmt.Sprintf("127.0.0.1:%d", port))
	}}
	b := &box{t: t, e: e, name: name, client: &http.Client{Transport: tr, Timeout: time.Minute}}
	testenv.Poll(t, "the sandbox answers", func() bool {
		resp, err := b.client.Get("http://localhost:8080/healthz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return b
}
