package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/test/cluster"
)

// dyingHub is the argument with which the tests start this binary as a hub to kill.
const dyingHub = "dying-hub"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == dyingHub {
		if err := runDyingHub(os.Stdin); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		testenv.Hang()
	}
	testenv.Main(m)
}

// plan is what a hub does before it is killed.
type plan struct {
	Config docker.Config
	Specs  []sandbox.Spec
	Burst  bool // create all at once
}

func runDyingHub(in io.Reader) error {
	var todo plan
	if err := json.NewDecoder(in).Decode(&todo); err != nil {
		return err
	}
	p, err := docker.Open(context.Background(), todo.Config)
	if err != nil {
		return err
	}
	if todo.Burst {
		for _, spec := range todo.Specs {
			go p.Create(context.Background(), spec)
		}
		return nil
	}
	for _, spec := range todo.Specs {
		sb, err := p.Create(context.Background(), spec)
		switch {
		case err != nil:
		case strings.HasPrefix(spec.Name, "paused"):
			err = p.Pause(context.Background(), sb.ID)
		case strings.HasPrefix(spec.Name, "stopped"):
			err = p.Stop(context.Background(), sb.ID)
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("done")
	return nil
}

// startDying starts a hub with a plan; kill kills it.
func startDying(t *testing.T, does plan) (out io.Reader, kill func()) {
	t.Helper()
	todo, err := json.Marshal(does)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", dyingHub)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(todo), os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	return pipe, func() {
		cmd.Process.Kill()
		io.Copy(io.Discard, pipe)
		cmd.Wait()
	}
}

// rig is a private engine with an image, and the programs of sandboxes.
type rig struct {
	*cluster.Engine
	programs map[string]string
	outlived bool // by its containers, when it is started again
}

const tinyImage = "cove-test/tiny:1"

func newRig(t *testing.T, e *cluster.Engine) rig {
	t.Helper()
	r := rig{Engine: e, programs: map[string]string{}}
	dir := t.TempDir()
	for name, source := range map[string]string{"cove-container": "../../../cmd/cove-container", "payload": "../providertest/testdata/serve"} {
		r.programs[name] = filepath.Join(dir, name)
		testenv.Build(t, map[string]string{r.programs[name]: source})
	}
	r.Run(t, tinyRoot(t, ""), "import", "-", tinyImage)
	return r
}

// tinyRoot is a root filesystem with a user and a shell, different for each mark.
func tinyRoot(t *testing.T, mark string) io.Reader {
	t.Helper()
	testenv.Need(t, "busybox")
	path, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	shell, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, f := range []struct {
		name, text string
		owner      int
	}{
		{"bin/sh", string(shell), 0},
		{"etc/passwd", "root:x:0:0::/root:/bin/sh\ngem:x:1000:1000::/home/gem:/bin/sh\n", 0}, {"etc/group", "root:x:0:\ngem:x:1000:\n", 0},
		{"home/", "", 0}, {"home/gem/", "", 1000}, {"tmp/", "", 1000}, {"run/", "", 0}, {"etc/mark", mark, 0},
	} {
		h := &tar.Header{Name: f.name, Mode: 0o755, Size: int64(len(f.text)), Uid: f.owner, Gid: f.owner, Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, f.text)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

func (r rig) config(t *testing.T) docker.Config {
	return docker.Config{
		Dir: t.TempDir(), Host: "unix://" + r.Socket, Programs: r.programs, Command: []string{"/run/bin/payload"}, Image: tinyImage,
		ReadyTimeout: 3 * time.Minute, StopGrace: 2 * time.Second,
	}
}

// left lists remaining objects of the sandboxes of a state folder.
func (r rig) left(t *testing.T, cfg docker.Config) (left []string) {
	left, _ = filepath.Glob(filepath.Join(cfg.Dir, "containers", "*"))
	label := "label=io.cove.hub=" + docker.Instance(cfg)
	for _, list := range [][]string{
		{"ps", "-aq", "--filter", label}, {"images", "-aq", "--filter", label}, {"volume", "ls", "-q", "--filter", label},
	} {
		left = append(left, strings.Fields(r.Run(t, nil, list...))...)
	}
	return left
}

// TestDocker runs all tests on one engine.
func TestDocker(t *testing.T) {
	t.Parallel()
	r := newRig(t, cluster.StartDocker(t))
	t.Run("provider", func(t *testing.T) { testProvider(t, r) })
	t.Run("guard", func(t *testing.T) { testGuard(t, r) })
	t.Run("outbound", func(t *testing.T) { testOutbound(t, r) })
}

// TestPodman runs all tests on the service of Podman.
func TestPodman(t *testing.T) {
	t.Parallel()
	r := newRig(t, cluster.StartPodman(t))
	r.outlived = true
	t.Run("provider", func(t *testing.T) { testProvider(t, r) })
	t.Run("guard", func(t *testing.T) { testGuard(t, r) })
	t.Run("outbound", func(t *testing.T) { testOutbound(t, r) })
}

func testProvider(t *testing.T, r rig) {
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		cfg := r.config(t)
		return providertest.Harness{
			Crowd: 20, // each is a container, of which this machine starts a few in a second
			Open: func() (sandbox.Provider, error) {
				p, err := docker.Open(context.Background(), cfg)
				if err != nil {
					return nil, err
				}
				return p, nil
			},
			Spec: func() sandbox.Spec { return sandbox.Spec{} },
			Left: func() []string { return r.left(t, cfg) },
			CreateAndDie: func(t *testing.T, specs []sandbox.Spec) {
				out, kill := startDying(t, plan{Config: cfg, Specs: specs})
				defer kill()
				line := make([]byte, len("done\n"))
				if _, err := io.ReadFull(out, line); string(line) != "done\n" {
					t.Errorf("the other hub said %q, %v", line, err)
				}
			},
			DieCreating: func(t *testing.T, spec sandbox.Spec) {
				_, kill := startDying(t, plan{Config: cfg, Specs: []sandbox.Spec{spec}})
				defer kill()
				testenv.Poll(t, "the container of the new sandbox starts", func() bool {
					return strings.TrimSpace(r.Run(t, nil, "ps", "-q", "--filter", "label=io.cove.name="+spec.Name)) != ""
				})
			},
		}
	})
}
