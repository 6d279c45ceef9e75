// Package providertest is the test of the promises of sandbox.Provider. Every
// provider runs the same suite and hooks in with a Harness. It owns what it
// creates and refuses to pass a provider that leaves anything behind.
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

// Harness is one state (a folder, an engine, a namespace) for one test.
type Harness struct {
	// Open opens the provider under test on the state, also while the test ends.
	Open func() (sandbox.Provider, error)
	// Spec returns a spec whose program is the server of package payload, with
	// everything else left to the provider.
	Spec func() sandbox.Spec
	// Crowd is how many sandboxes are created at once; default 100.
	Crowd int
	// CreateAndDie opens the provider in a place that dies as by kill -9 (a
	// process, if there are processes) after it has created specs and then
	// called Pause on those named "paused…" and Stop on those named "stopped…".
	CreateAndDie func(t *testing.T, specs []sandbox.Spec)
	// DieCreating is the same, but it dies while the create of spec, which never
	// becomes ready, is under way.
	DieCreating func(t *testing.T, spec sandbox.Spec)
	// Left names what the provider's sandboxes have left on the machine:
	// processes, mounts, limits, files, sockets.
	Left func() []string
}

// patience is how long anything that must happen may take on a busy machine.
const patience = 60 * time.Second

type testCase struct {
	name string
	run  func(*suite)
}

// Run runs the suite. Each case gets a harness of its own.
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

// RunSnapshots runs the part of the suite about snapshots alone, for a provider with more than one kind of them.
func RunSnapshots(t *testing.T, harness func(t *testing.T) Harness) {
	run(t, harness, []testCase{
		{"snapshot", testSnapshot},
		{"snapshot in every state", testSnapshotStates},
		{"rollback", testRollback},
		{"fork", testFork},
		{"fork that fails", testForkFails},
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

// suite is one case under way.
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

// finish deletes everything, also after a failure, and demands that nothing is left.
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

// never is a spec that does not become ready in time.
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

// must calls one of the methods that take an ID.
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

// empty demands that no sandbox is left and that the machine is clean.
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
	return &http.Client{Transport: tr, Timeout: patience}
}

func (s *suite) ask(id, path string) string {
	s.Helper()
	body, err := s.try(id, path)
	if err != nil {
		s.Fatal(err)
	}
	return body
}

// try asks without ending the test, for goroutines of their own.
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
