// Package providertest is the conformance suite of sandbox.Provider. Every provider runs it with a Harness. It owns the
// sandboxes that it creates, and fails if a provider leaves anything behind.
package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/providertest/payload"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Harness is the state (a folder, an engine, a namespace) of one test.
type Harness struct {
	// Open opens the provider under test. It is also called during the cleanup of the test.
	Open func() (sandbox.Provider, error)
	// Spec returns a spec that runs the server of package payload, with defaults for everything else.
	Spec func() sandbox.Spec
	// Crowd is the number of sandboxes that are created concurrently; default 100.
	Crowd int
	// CreateAndDie opens the provider in a process that creates specs, pauses those named "paused…", stops those named
	// "stopped…", and is then killed as by kill -9.
	CreateAndDie func(t *testing.T, specs []sandbox.Spec)
	// DieCreating opens the provider in a process that is killed while it creates a sandbox that never becomes ready.
	DieCreating func(t *testing.T, spec sandbox.Spec)
	// Left lists remaining objects of sandboxes on the machine: processes, mounts, limits, files, sockets.
	Left func() []string
}

// maxWait bounds every wait of the suite. It allows for a busy machine.
const maxWait = 60 * time.Second

type testCase struct {
	name string
	run  func(*suite)
}

// Run runs the suite. Each case gets a new harness.
func Run(t *testing.T, harness func(t *testing.T) Harness) {
	run(t, harness, []testCase{
		{"create", testCreate},
		{"names are optional", testUnnamed},
		{"bad specs", testBadSpecs},
		{"name collisions", testCollisions},
		{"get and list", testList},
		{"specs are copied", testCopies},
		{"update", testUpdate},
		{"endpoint", testEndpoint},
		{"abilities", testAbilities},
		{"logs", testLogs},
		{"stats", testStats},
		{"egress", testEgress},
		{"egress of a deleted sandbox", testEgressOfDeleted},
		{"delete", testDelete},
		{"delete in every state", testDeleteStates},
		{"delete while it is created", testDeleteCreating},
		{"pause and resume", testPause},
		{"stop and start", testStop},
		{"program ends", testExit},
		{"cancel during create", testCancel},
		{"never ready", testNeverReady},
		{"program ends before it is ready", testExitEarly},
		{"start that fails", testStartFails},
		{"a crowd at once", testCrowd},
		{"watch", testWatch},
		{"closed", testClosed},
		{"reopened after close", testReopen},
		{"reopened after kill -9", testAdopt},
		{"killed while creating", testHalfMade},
		{"two on one state", testTwo},
		{"diff", testDiff},
		{"volumes", testVolumes},
	})
	RunSnapshots(t, harness)
}

// RunSnapshots runs only the cases about snapshots, for providers with several kinds of snapshots.
func RunSnapshots(t *testing.T, harness func(t *testing.T) Harness) {
	run(t, harness, []testCase{
		{"snapshot", testSnapshot},
		{"snapshot in every state", testSnapshotStates},
		{"rollback", testRollback},
		{"fork", testFork},
		{"fork that fails", testForkFails},
		{"layers", testLayers},
	})
}

// RunPauses runs only the cases that pause sandboxes, for providers with several ways to do so.
func RunPauses(t *testing.T, harness func(t *testing.T) Harness) {
	run(t, harness, []testCase{
		{"pause and resume", testPause},
		{"delete in every state", testDeleteStates},
		{"reopened after kill -9", testAdopt},
		{"snapshot in every state", testSnapshotStates},
		{"fork", testFork},
	})
}

func run(t *testing.T, harness func(t *testing.T) Harness, cases []testCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := &suite{T: t, h: harness(t)}
			s.open()
			t.Cleanup(s.finish)
			c.run(s)
		})
	}
}

// suite is a running case.
type suite struct {
	*testing.T
	h Harness
	p sandbox.Provider
}

func (s *suite) open() {
	s.Helper()
	p, err := s.h.Open()
	if err != nil {
		s.Fatalf("open: %v", err)
	}
	s.p = p
}

func (s *suite) reopen() {
	s.Helper()
	if err := s.p.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	s.open()
}

// finish deletes everything, also after a failure, and fails if anything is left.
func (s *suite) finish() {
	s.Helper()
	ctx := context.Background()
	all, err := s.p.List(ctx, sandbox.Filter{})
	if errors.Is(err, sandbox.ErrClosed) {
		s.open()
		all, err = s.p.List(ctx, sandbox.Filter{})
	}
	if err != nil {
		s.Errorf("list: %v", err)
	}
	for _, sb := range all {
		if err := s.p.Delete(ctx, sb.ID); err != nil {
			s.Errorf("delete %s: %v", sb.Spec.Name, err)
		}
	}
	s.discard(ctx)
	if err := s.p.Close(); err != nil {
		s.Errorf("close: %v", err)
	}
	s.clean()
}

func (s *suite) clean() {
	s.Helper()
	var left []string
	if !testenv.Eventually(func() bool { left = s.h.Left(); return len(left) == 0 }) {
		s.Errorf("left behind: %q", left)
	}
}

func (s *suite) spec(name string) sandbox.Spec {
	spec := s.h.Spec()
	spec.Name = name
	return spec
}

// never returns a spec that does not become ready.
func (s *suite) never(name string, timeout time.Duration) sandbox.Spec {
	spec := s.spec(name)
	spec.Env = with(spec.Env, payload.Env, payload.Never)
	spec.Server.ReadyTimeout = timeout
	return spec
}

func with(m map[string]string, k, v string) map[string]string {
	out := map[string]string{k: v}
	for k, v := range m {
		if _, ok := out[k]; !ok {
			out[k] = v
		}
	}
	return out
}

func (s *suite) create(spec sandbox.Spec) sandbox.Sandbox {
	s.Helper()
	sb, err := s.p.Create(s.Context(), spec)
	if err != nil {
		s.Fatalf("create %q: %v", spec.Name, err)
	}
	return sb
}

func (s *suite) get(id string) sandbox.Sandbox {
	s.Helper()
	sb, err := s.p.Get(s.Context(), id)
	if err != nil {
		s.Fatalf("get %s: %v", id, err)
	}
	return sb
}

func (s *suite) byName(name string) sandbox.Sandbox {
	s.Helper()
	found := s.list(sandbox.Filter{Name: name})
	if len(found) != 1 {
		s.Fatalf("%d sandboxes are named %q, want 1", len(found), name)
	}
	return found[0]
}

func (s *suite) list(f sandbox.Filter) []sandbox.Sandbox {
	s.Helper()
	all, err := s.p.List(s.Context(), f)
	if err != nil {
		s.Fatalf("list: %v", err)
	}
	return all
}

// must calls a method that takes an ID.
func (s *suite) must(what string, call func(context.Context, string) error, id string) {
	s.Helper()
	if err := call(s.Context(), id); err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

func (s *suite) wantErr(what string, got, want error) {
	s.Helper()
	if !errors.Is(got, want) {
		s.Errorf("%s: got error %v, want %v", what, got, want)
	}
}

func (s *suite) wantState(id string, want sandbox.State) {
	s.Helper()
	if got := s.get(id).State; got != want {
		s.Errorf("state is %s, want %s", got, want)
	}
}

// empty fails if sandboxes or their objects are left.
func (s *suite) empty() {
	s.Helper()
	if all := s.list(sandbox.Filter{}); len(all) != 0 {
		s.Errorf("%d sandboxes are left: %v", len(all), all)
	}
	s.clean()
}

// client returns an HTTP client for a port inside.
func (s *suite) client(id string, port int) *http.Client {
	s.Helper()
	ep, err := s.p.Endpoint(s.Context(), id, port)
	if err != nil {
		s.Fatalf("endpoint: %v", err)
	}
	return dialing(ep)
}

func dialing(ep sandbox.Endpoint) *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
	return &http.Client{Transport: tr, Timeout: maxWait}
}

func (s *suite) ask(id, path string) string {
	s.Helper()
	body, err := s.try(id, path)
	if err != nil {
		s.Fatal(err)
	}
	return body
}

// try is ask without ending the test, for use in goroutines.
func (s *suite) try(id, path string) (string, error) {
	ep, err := s.p.Endpoint(s.Context(), id, 0)
	if err != nil {
		return "", err
	}
	return fetch(dialing(ep), http.MethodGet, path, "")
}

func (s *suite) put(id, path, body string) {
	s.Helper()
	if _, err := fetch(s.client(id, 0), http.MethodPut, path, body); err != nil {
		s.Fatal(err)
	}
}

func fetch(c *http.Client, method, path, body string) (string, error) {
	req, err := http.NewRequest(method, "http://sandbox"+path, bytes.NewBufferString(body))
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	defer c.CloseIdleConnections()
	out, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, out)
	}
	return string(out), err
}
