//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// dyingHub is the argument with which the tests start this binary as a hub to kill.
const dyingHub = "dying-hub"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 {
		var err error
		switch os.Args[1] {
		case podShim:
			err = becomeContainer()
		case dyingHub:
			if err = runDyingHub(os.Stdin); err == nil {
				testenv.Hang()
			}
		default:
			runTests(m)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	runTests(m)
}

// runTests runs more concurrent tests than CPUs, because they mostly wait for kubelets.
func runTests(m *testing.M) {
	flag.Parse()
	if n, err := strconv.Atoi(flag.Lookup("test.parallel").Value.String()); err == nil && n == runtime.GOMAXPROCS(0) {
		flag.Set("test.parallel", strconv.Itoa(2*n))
	}
	testenv.Main(m)
}

// plan is what a hub does before it is killed.
type plan struct {
	Config kubernetes.Config
	Specs  []sandbox.Spec
	Burst  bool // create all at once
	// Snapshot takes a snapshot of a sandbox or, with Rollback, resets that sandbox to it.
	Snapshot, Rollback string
}

func runDyingHub(in io.Reader) error {
	var todo plan
	if err := json.NewDecoder(in).Decode(&todo); err != nil {
		return err
	}
	p, err := kubernetes.Open(context.Background(), todo.Config)
	if err != nil {
		return err
	}
	switch {
	case todo.Rollback != "":
		return p.Rollback(context.Background(), todo.Rollback, todo.Snapshot)
	case todo.Snapshot != "":
		_, err := p.Snapshot(context.Background(), todo.Snapshot, "first")
		return err
	}
	for _, spec := range todo.Specs {
		if todo.Burst {
			go p.Create(context.Background(), spec)
			continue
		}
		sb, err := p.Create(context.Background(), spec)
		if err == nil && strings.HasPrefix(spec.Name, "stopped") {
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
	return pipe, sync.OnceFunc(func() {
		cmd.Process.Kill()
		io.Copy(io.Discard, pipe)
		cmd.Wait()
	})
}

// programs are the programs of sandboxes by name; they are built once.
var programs = map[string]string{}

// TestKubernetes runs all tests with a simulated cluster.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	testenv.Engine(t)
	testenv.NeedRoot(t)
	dir := t.TempDir()
	for name, source := range map[string]string{"cove-container": "../../../cmd/cove-container", "payload": "../providertest/testdata/serve"} {
		programs[name] = filepath.Join(dir, name)
		testenv.Build(t, map[string]string{programs[name]: source})
	}
	for name, run := range map[string]func(*testing.T){"provider": testProvider, "guard": testGuard,
		"faults": testFaults, "role": testRole, "hub": testHub, "crowd": testCrowd, "replicas": testReplicas,
		"claims": testClaims, "snapshots": testSnapshots, "cuts": testCuts, "outbound": testOutbound} {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t) })
	}
}

// hubs counts the hubs of this process for unique names.
var hubs atomic.Int64

// newCluster returns a simulated cluster.
func newCluster(t *testing.T) *apiServer {
	t.Helper()
	return newAPIServer(t, programs)
}

func (s *apiServer) config(t *testing.T) kubernetes.Config {
	return kubernetes.Config{
		Dir: t.TempDir(), Access: kubernetes.Access{Server: "http://" + s.address, Token: token},
		Namespace: namespace, Name: fmt.Sprintf("hub-%d", hubs.Add(1)),
		Programs: programsImage, Installer: programsDir + "/cove-container", Command: []string{"/run/bin/payload"}, Image: tinyImage,
		ReadyTimeout: 3 * time.Minute, StopGrace: 2 * time.Second, ScheduleTimeout: 500 * time.Millisecond,
	}
}

var sandboxKinds = []string{"pods", "secrets", "persistentvolumeclaims"}

// left lists remaining objects of the sandboxes of a hub.
func (s *apiServer) left(hub string) []string { return s.of(hub, sandboxKinds...) }

func testProvider(t *testing.T) {
	s, store := newCluster(t), startStore(t)
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		return s.harness(t, func(c *kubernetes.Config) { c.Persistent, c.Snapshots = true, store.config() })
	})
}

func (s *apiServer) harness(t *testing.T, change func(*kubernetes.Config)) providertest.Harness {
	cfg := s.config(t)
	change(&cfg)
	return harnessOf(cfg, s.left)
}

// harnessOf returns the harness of a hub.
func harnessOf(cfg kubernetes.Config, left func(hub string) []string) providertest.Harness {
	pods := func() (n int) {
		for _, what := range left(cfg.Name) {
			if strings.HasPrefix(what, "pods/") {
				n++
			}
		}
		return n
	}
	return providertest.Harness{
		Crowd: 20, // each is several processes
		Open: func() (sandbox.Provider, error) {
			p, err := kubernetes.Open(context.Background(), cfg)
			if err != nil {
				return nil, err
			}
			return p, nil
		},
		Spec: func() sandbox.Spec { return sandbox.Spec{} },
		Left: func() []string { return left(cfg.Name) },
		CreateAndDie: func(t *testing.T, specs []sandbox.Spec) {
			out, kill := startDying(t, plan{Config: cfg, Specs: specs})
			defer kill()
			line := make([]byte, len("done\n"))
			if _, err := io.ReadFull(out, line); string(line) != "done\n" {
				t.Errorf("the other hub printed %q, %v", line, err)
			}
		},
		DieCreating: func(t *testing.T, spec sandbox.Spec) {
			before := pods()
			_, kill := startDying(t, plan{Config: cfg, Specs: []sandbox.Spec{spec}})
			defer kill()
			testenv.Poll(t, "the Pod of the new sandbox exists", func() bool { return pods() > before })
		},
	}
}
