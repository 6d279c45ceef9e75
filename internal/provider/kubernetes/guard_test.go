//go:build linux

package kubernetes_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// hub is a provider under test.
type hub struct {
	*kubernetes.Provider
	t    *testing.T
	s    *apiServer // nil on a real cluster
	cfg  kubernetes.Config
	left func(hub string) []string
}

func newHub(t *testing.T, s *apiServer, change func(*kubernetes.Config)) *hub {
	h := &hub{t: t, s: s, cfg: s.config(t), left: s.left}
	if change != nil {
		change(&h.cfg)
	}
	h.open()
	t.Cleanup(h.clean)
	return h
}

func (h *hub) open() {
	h.t.Helper()
	p, err := kubernetes.Open(context.Background(), h.cfg)
	if err != nil {
		h.t.Fatal(err)
	}
	h.Provider = p
}

// clean deletes everything, also after a failure, and demands that nothing is left.
func (h *hub) clean() {
	ctx := context.Background()
	all, err := h.List(ctx, sandbox.Filter{})
	for _, sb := range all {
		err = errors.Join(err, h.Delete(ctx, sb.ID))
	}
	volumes, more := h.Volumes(ctx, "")
	err = errors.Join(err, more)
	for _, v := range volumes {
		err = errors.Join(err, h.DeleteVolume(ctx, v.Owner, v.Name))
	}
	if err := errors.Join(err, h.Close()); err != nil {
		h.t.Error(err)
	}
	h.wantClean()
}

func (h *hub) wantClean() {
	h.t.Helper()
	if left := h.left(h.cfg.Name); len(left) > 0 {
		h.t.Errorf("left behind: %q", left)
	}
}

func (h *hub) create(spec sandbox.Spec) sandbox.Sandbox {
	h.t.Helper()
	sb, err := h.Create(h.t.Context(), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	return sb
}

// sh runs a command of the shell inside.
func (h *hub) sh(id, command string) (string, error) { return run(h.t, h.Provider, id, command) }

func run(t testing.TB, p *kubernetes.Provider, id, command string) (string, error) {
	ep, err := p.Endpoint(t.Context(), id, 0)
	if err != nil {
		return "", err
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return ep.Dial(ctx)
	}}
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Post("http://sandbox/run", "", strings.NewReader(command))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return string(out), err
}

func (h *hub) wantOutput(id, command, want string) {
	h.t.Helper()
	if got, err := h.sh(id, command); got != want {
		h.t.Errorf("%s: got %q, %v, want %q", command, got, err, want)
	}
}

func (h *hub) wantState(id string, want sandbox.State) {
	h.t.Helper()
	testenv.Poll(h.t, fmt.Sprintf("%s is %s", id, want), func() bool {
		sb, err := h.Get(h.t.Context(), id)
		return err == nil && sb.State == want
	})
}

// cases run on one cluster each, since they break it.
func each(t *testing.T, change func(*kubernetes.Config), cases map[string]func(*hub)) {
	for name, run := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(newHub(t, newCluster(t), change))
		})
	}
}

func testGuard(t *testing.T) {
	each(t, func(c *kubernetes.Config) { c.Reach = kubernetes.ReachAPI }, map[string]func(*hub){"from outside": testOutside})
	each(t, nil, map[string]func(*hub){
		"walls": testWalls, "volumes": testSharedVolumes, "claims": testClaim, "other client": testOtherClient,
		"address of another": testReusedAddress, "no such image": testNoImage, "no room": testNoRoom, "quota": testQuota,
	})
}

func testFaults(t *testing.T) {
	each(t, nil, map[string]func(*hub){
		"hub killed in a burst": testBurst, "Pod removed by hand": testRemoved, "watch cut and expired": testWatchCut,
		"errors of the API server": testErrors, "answers lost": testLostAnswers,
	})
	each(t, func(c *kubernetes.Config) { c.Persistent = true },
		map[string]func(*hub){"API server restarts": testRestart, "drained": testDrained,
			"late report": testLateReport, "claims that linger": testLingeringClaims})
	each(t, nil, map[string]func(*hub){"another hub": testTakeover})
}

// testWalls: programs have no cluster credentials and no network access.
func testWalls(h *hub) {
	sb := h.create(sandbox.Spec{Name: "walls", Owner: "ann@example.com", Env: map[string]string{"SECRET": "s3cret"},
		Resources: sandbox.Resources{MemoryLimit: 64 << 20, CPULimit: 500, Files: 500}})
	for command, want := range map[string]string{
		"id -u": "1000\n",
		"grep -e ^CapEff -e ^CapPrm /proc/self/status | tr -d 'CapEfrmP:\\t\\n0'": "",
		"grep ^NoNewPrivs /proc/self/status":                                      "NoNewPrivs:\t1\n",
		"ls /sys/class/net 2>/dev/null; cat /proc/net/route | wc -l":              "1\n",
		"touch /run/cove/x /run/bin/x 2>&1 | grep -c Read-only":                   "2\n",
		"hostname":                 "walls\n",
		"ulimit -n":                "500\n",
		"echo $FROM":               "image\n",
		"env | grep -c KUBERNETES": "0\n[exit status 1]",
		"ls /run/cove":             "plan.json\ntls.crt\ntls.key\n",
		"ls -d /var/run/secrets 2>&1 | grep -c 'No such'": "1\n",
	} {
		h.wantOutput(sb.ID, command, want)
	}
	pod, err := h.s.get("pods", sb.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, never := range []string{"hostPath", "s3cret", "hostNetwork", "hostPID", "ann@example.com\":"} {
		if text := fmt.Sprint(pod); strings.Contains(text, never) {
			h.t.Errorf("the Pod contains %s: %s", never, text)
		}
	}
	spec := pod["spec"].(doc)
	wantEqual(h.t, "token of a service account", spec["automountServiceAccountToken"], false)
	wantEqual(h.t, "Pod security", spec["securityContext"], doc{"runAsNonRoot": true, "runAsUser": 1000,
		"runAsGroup": 1000, "fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": doc{"type": "RuntimeDefault"},
		"sysctls": []any{doc{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}}})
	for _, kind := range []string{"initContainers", "containers"} {
		c := spec[kind].([]any)[0].(doc)
		wantEqual(h.t, kind, c["securityContext"], doc{"privileged": false, "allowPrivilegeEscalation": false,
			"runAsNonRoot": true, "runAsUser": 1000, "capabilities": doc{"drop": []any{"ALL"}}})
		wantEqual(h.t, "limits", c["resources"].(doc)["limits"], doc{"cpu": "500m", "memory": "67108864", "ephemeral-storage": "10737418240"})
	}
	policy, err := h.s.get("networkpolicies", "cove-sandboxes-"+h.cfg.Name)
	if err != nil {
		h.t.Fatal(err)
	}
	if !selects("io.cove.hub="+h.cfg.Name+",io.cove.kind=sandbox", labelsOf(pod)) {
		h.t.Errorf("the policy does not select a Pod with labels %v", labelsOf(pod))
	}
	wantEqual(h.t, "policy", policy["spec"], doc{
		"podSelector": doc{"matchLabels": doc{"io.cove.hub": h.cfg.Name, "io.cove.kind": "sandbox"}},
		"policyTypes": []any{"Ingress", "Egress"}, "egress": []any{},
		"ingress": []any{doc{"from": []any{doc{"namespaceSelector": doc{},
			"podSelector": doc{"matchLabels": doc{"io.cove.role": "hub"}}}}, "ports": []any{doc{"protocol": "TCP", "port": 7443}}}},
	})
	// Limits change live.
	if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Resources.MemoryLimit = 128 << 20; return nil }); err != nil {
		h.t.Fatal(err)
	}
	pod, _ = h.s.get("pods", sb.ID)
	wantEqual(h.t, "limits", pod["spec"].(doc)["containers"].([]any)[0].(doc)["resources"].(doc)["limits"].(doc)["memory"], "134217728")
}

func wantEqual(t *testing.T, what string, got, want any) {
	t.Helper()
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("%s: got %s, want %s", what, g, w)
	}
}

func testSharedVolumes(h *hub) {
	with := func(owner, target string, readOnly bool) sandbox.Sandbox {
		h.t.Helper()
		return h.create(sandbox.Spec{Owner: owner, Volumes: []sandbox.Volume{{Name: "data", Target: target, ReadOnly: readOnly}}})
	}
	writer, reader, other := with("ann", "/home/gem/data", false), with("ann", "/data", true), with("bob", "/data", false)
	h.wantOutput(writer.ID, "echo hello >/home/gem/data/file && echo ok", "ok\n")
	h.wantOutput(reader.ID, "cat /data/file; touch /data/x 2>&1 | grep -c Read-only", "hello\n1\n")
	h.wantOutput(other.ID, "ls -A /data", "")
}

// testClaim: a warm sandbox is claimed with one patch of its record, which fails if another hub was faster.
func testClaim(h *hub) {
	sb := h.create(sandbox.Spec{Name: "warm", Owner: "pool"})
	got, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Name, s.Owner = "mine", "ann"; return nil })
	if err != nil || got.Spec.Owner != "ann" {
		h.t.Fatalf("got %+v, %v", got, err)
	}
	testenv.Poll(h.t, "the Pod names its owner", func() bool {
		pod, err := h.s.get("pods", sb.ID)
		return err == nil && metaOf(pod)["annotations"].(doc)["io.cove.owner"] == "ann"
	})
	h.wantOutput(sb.ID, "echo hello", "hello\n")
	// Foreign labels are ignored; a foreign record causes a conflict.
	meddle := func(change doc) {
		h.s.mu.Lock()
		defer h.s.mu.Unlock()
		h.s.store("secrets", "MODIFIED", merge(clone(h.s.objects["secrets"][sb.ID]), change).(doc))
	}
	rename := func(name string) error {
		_, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Name = name; return nil })
		return err
	}
	meddle(doc{"metadata": doc{"labels": doc{"x": "y"}}})
	if err := rename("still-mine"); err != nil {
		h.t.Error(err)
	}
	before, _ := h.s.get("secrets", sb.ID)
	meddle(doc{"data": doc{"record.json": "e30="}})
	if err := rename("not-mine"); !errors.Is(err, sandbox.ErrInUse) {
		h.t.Errorf("got %v, want %v", err, sandbox.ErrInUse)
	}
	meddle(doc{"data": before["data"]})
}

// testOtherClient: clients of a Pod's port without the hub's key get nothing.
func testOtherClient(h *hub) {
	sb := h.create(sandbox.Spec{})
	pod, err := h.s.get("pods", sb.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	c, err := net.Dial("tcp", pod["status"].(doc)["podIP"].(string)+":7443")
	if err != nil {
		h.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	io.WriteString(c, "GET /readyz HTTP/1.1\r\nHost: sandbox\r\n\r\n")
	if reply, _ := io.ReadAll(c); strings.Contains(string(reply), "200") {
		h.t.Errorf("got %q, want nothing", reply)
	}
	h.wantOutput(sb.ID, "echo hello", "hello\n")
}

// testReusedAddress: a cluster can give the address of a deleted Pod to a Pod of another owner. The hub connects only to the Pod
// that it created.
func testReusedAddress(h *hub) {
	ann, bob := h.create(sandbox.Spec{Name: "a", Owner: "ann"}), h.create(sandbox.Spec{Name: "b", Owner: "bob"})
	h.wantOutput(bob.ID, "echo of-bob >/home/gem/who; cat /home/gem/who", "of-bob\n")
	status := func(id string) doc {
		h.t.Helper()
		pod, err := h.s.get("pods", id)
		if err != nil {
			h.t.Fatal(err)
		}
		return maps.Clone(pod["status"].(doc))
	}
	mine, moved := status(ann.ID), status(ann.ID)
	moved["podIP"] = status(bob.ID)["podIP"]
	h.s.setStatus("pods", ann.ID, moved)
	testenv.Poll(h.t, "ann's sandbox is not reached", func() bool {
		out, err := h.sh(ann.ID, "cat /home/gem/who 2>&1")
		if strings.Contains(out, "of-bob") {
			h.t.Fatalf("got %q, want none of bob", out)
		}
		return err != nil
	})
	h.wantOutput(bob.ID, "cat /home/gem/who", "of-bob\n")
	h.s.setStatus("pods", ann.ID, mine)
	testenv.Poll(h.t, "ann's sandbox is reached again", func() bool { out, _ := h.sh(ann.ID, "echo back"); return out == "back\n" })
}

func (h *hub) wantRefused(spec sandbox.Spec, want error, words ...string) {
	h.t.Helper()
	_, err := h.Create(h.t.Context(), spec)
	if !errors.Is(err, want) {
		h.t.Errorf("got %v, want %v", err, want)
	}
	for _, word := range words {
		if err == nil || !strings.Contains(err.Error(), word) {
			h.t.Errorf("got %v, want %q in it", err, word)
		}
	}
	h.wantClean()
}

func testNoImage(h *hub) {
	h.wantRefused(sandbox.Spec{Image: "cove-test/none:1"}, sandbox.ErrInvalid, "cove-test/none:1", "ErrImagePull")
}

// testNoRoom: a create on a full cluster returns the scheduling error after the timeout.
func testNoRoom(h *hub) {
	h.s.kubelet.setFull(true)
	h.wantRefused(sandbox.Spec{}, sandbox.ErrExhausted, "Insufficient memory")
	h.s.kubelet.setFull(false)
	h.create(sandbox.Spec{})
}

func testQuota(h *hub) {
	h.s.fail(func(r *http.Request) int {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/pods") {
			return http.StatusForbidden
		}
		return 0
	}, nil)
	_, err := h.Create(h.t.Context(), sandbox.Spec{})
	if err == nil || !strings.Contains(err.Error(), "create Pod: injected") {
		h.t.Errorf("got %v, want the message of the API server", err)
	}
	h.s.fail(nil, nil)
	h.wantClean()
}

// testBurst: after kill -9 of a hub in the middle of many creates, the next finds whole
// sandboxes only, and nothing else is left.
func testBurst(h *hub) {
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	todo := plan{Config: h.cfg, Burst: true}
	for i := range 50 {
		todo.Specs = append(todo.Specs, sandbox.Spec{Name: fmt.Sprintf("burst-%d", i)})
	}
	_, kill := startDying(h.t, todo)
	defer kill()
	running := func() (n int) {
		for _, name := range h.s.of(h.cfg.Name, "secrets") {
			if s, err := h.s.get("secrets", strings.TrimPrefix(name, "secrets/")); err == nil && strings.Contains(recordOf(s), `"state":"running"`) {
				n++
			}
		}
		return n
	}
	for n := range 3 { // each within the patience of Poll
		testenv.Poll(h.t, fmt.Sprintf("%d sandboxes are running", n+1), func() bool { return running() > n })
	}
	kill()
	ready := running() // or more: the API server may still be busy with the last requests
	h.open()
	all, err := h.List(h.t.Context(), sandbox.Filter{})
	if err != nil || len(all) < ready {
		h.t.Errorf("got %d sandboxes, %v, want the %d that were ready", len(all), err, ready)
	}
	for _, sb := range all {
		if sb.State != sandbox.Running {
			h.t.Errorf("%s is %s", sb.Spec.Name, sb.State)
			continue
		}
		h.wantOutput(sb.ID, "echo hello", "hello\n")
	}
	for _, kind := range []string{"pods", "secrets"} {
		if got := h.s.of(h.cfg.Name, kind); len(got) != len(all) {
			h.t.Errorf("%d %s, want %d", len(got), kind, len(all))
		}
	}
}

// testRemoved: deleting a Pod externally removes its sandbox.
func testRemoved(h *hub) {
	sb, closed := h.create(sandbox.Spec{}), h.create(sandbox.Spec{})
	h.removePod(sb.ID)
	testenv.Poll(h.t, "the sandbox is removed", func() bool {
		_, err := h.Get(h.t.Context(), sb.ID)
		return errors.Is(err, sandbox.ErrNotFound)
	})
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.removePod(closed.ID)
	testenv.Poll(h.t, "its Pod is removed", func() bool { return len(h.s.of(h.cfg.Name, "pods")) == 0 })
	h.open()
	if all, err := h.List(h.t.Context(), sandbox.Filter{}); err != nil || len(all) != 0 {
		h.t.Errorf("got %v, %v, want none", all, err)
	}
}

// removePod removes a Pod as kubectl does.
func (h *hub) removePod(name string) {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.s.remove("pods", name, doc{"gracePeriodSeconds": float64(1)})
}

// testDrained: a Pod that a drained node has lost leaves the home, with which it is started again.
func testDrained(h *hub) {
	sb := h.create(sandbox.Spec{})
	h.wantOutput(sb.ID, "echo kept >/home/gem/file && echo ok", "ok\n")
	h.removePod(sb.ID)
	h.wantState(sb.ID, sandbox.Failed)
	if err := h.Start(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	h.wantOutput(sb.ID, "cat /home/gem/file", "kept\n")
	if err := h.Stop(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	if got := h.s.of(h.cfg.Name, "pods"); len(got) != 0 {
		h.t.Errorf("a stopped sandbox has %q", got)
	}
}

// testLateReport: a ready sandbox is usable before its node reports it as running. Calls that need the report
// wait for it, and a stop grants the full grace period.
func testLateReport(h *hub) {
	release := h.s.kubelet.reportLater()
	sb := h.create(sandbox.Spec{Command: []string{"/bin/sh", "-c", "echo said; exec /run/bin/payload"}})
	h.wantOutput(sb.ID, "echo here", "here\n")
	type result struct {
		out []byte
		err error
	}
	logs := make(chan result, 1)
	go func() {
		out, err := h.Logs(context.Background(), sb.ID, 1000)
		logs <- result{out, err}
	}()
	h.wantOutput(sb.ID, "echo still here", "still here\n")
	release()
	if r := <-logs; r.err != nil || string(r.out) != "said\n" {
		h.t.Errorf("the logs are %q, error %v; want %q", r.out, r.err, "said\n")
	}
	release = h.s.kubelet.reportLater()
	defer release()
	other := h.create(sandbox.Spec{})
	if err := h.Stop(h.t.Context(), other.ID); err != nil {
		h.t.Fatal(err)
	}
	if got := h.s.kubelet.lastGrace(); got != h.cfg.StopGrace {
		h.t.Errorf("the program had %v to end, want %v", got, h.cfg.StopGrace)
	}
}

// testLingeringClaims: a home and a volume do not exist after their deletion has returned, although the
// cluster keeps claims for a while. So another volume
// can have the name at once.
func testLingeringClaims(h *hub) {
	h.s.keepClaims(3)
	sb := h.create(sandbox.Spec{Owner: "ann", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}}})
	if err := h.Delete(h.t.Context(), sb.ID); err != nil {
		h.t.Fatal(err)
	}
	if got := h.s.of(h.cfg.Name, sandboxKinds...); len(got) != 1 || !strings.HasSuffix(got[0], "-data") {
		h.t.Errorf("got %q, want the volume alone", got)
	}
	for range 2 {
		if err := h.DeleteVolume(h.t.Context(), "ann", "data"); err != nil {
			h.t.Fatal(err)
		}
		if _, err := h.CreateVolume(h.t.Context(), "ann", "data"); err != nil {
			h.t.Fatal(err)
		}
	}
}

// testWatchCut: changes during an interrupted watch are detected, also if the cluster has
// forgotten it.
func testWatchCut(h *hub) {
	for range 2 {
		sb := h.create(sandbox.Spec{})
		h.s.cutWatches()
		h.s.forget()
		h.s.kubelet.fail(sb.ID)
		h.wantState(sb.ID, sandbox.Failed)
		got, err := h.Get(h.t.Context(), sb.ID)
		if err != nil || !strings.Contains(got.Message, "137") {
			h.t.Errorf("got %+v, %v, want the exit status 137", got, err)
		}
	}
	h.create(sandbox.Spec{})
}

// testRestart: an unreachable API server delays calls and breaks nothing.
func testRestart(h *hub) {
	sb, ends := h.create(sandbox.Spec{}), h.create(sandbox.Spec{})
	address := h.s.address
	h.s.stop()
	h.wantOutput(sb.ID, "echo hello", "hello\n") // an existing sandbox needs no API server
	made := make(chan error, 1)
	go func() { _, err := h.Create(context.Background(), sandbox.Spec{Name: "patient"}); made <- err }()
	h.s.kubelet.fail(ends.ID)
	h.s.start(address)
	if err := <-made; err != nil {
		h.t.Errorf("create while the API server restarts: %v", err)
	}
	h.wantState(ends.ID, sandbox.Failed)
	if err := h.Start(h.t.Context(), ends.ID); err != nil {
		h.t.Fatal(err)
	}
	h.wantOutput(ends.ID, "echo hello", "hello\n")
}

// sometimes fails every few requests, with several codes.
func sometimes(methods ...string) func(*http.Request) int {
	var n atomic.Int64
	return func(r *http.Request) int {
		if !slices.Contains(methods, r.Method) {
			return 0
		}
		codes := []int{0, http.StatusTooManyRequests, 0, http.StatusInternalServerError, 0, http.StatusServiceUnavailable, 0}
		return codes[n.Add(1)%int64(len(codes))]
	}
}

// testErrors: transient errors are retried.
func testErrors(h *hub) {
	h.s.fail(sometimes("GET", "POST", "PUT", "PATCH", "DELETE"), nil)
	for i := range 3 {
		sb := h.create(sandbox.Spec{Name: fmt.Sprintf("box-%d", i), Owner: "ann", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}}})
		h.wantOutput(sb.ID, "echo hello", "hello\n")
		if err := h.Delete(h.t.Context(), sb.ID); err != nil {
			h.t.Error(err)
		}
	}
	h.s.fail(nil, nil)
}

// testLostAnswers: a lost response does not repeat the change, and the change is not attributed to
// another hub.
func testLostAnswers(h *hub) {
	h.s.fail(nil, sometimes("POST", "PUT", "PATCH", "DELETE"))
	for i := range 3 {
		sb := h.create(sandbox.Spec{Name: fmt.Sprintf("box-%d", i)})
		if _, err := h.Update(h.t.Context(), sb.ID, func(s *sandbox.Spec) error { s.Name += "-claimed"; return nil }); err != nil {
			h.t.Error(err)
		}
		if _, err := h.CreateVolume(h.t.Context(), "ann", fmt.Sprintf("volume-%d", i)); err != nil {
			h.t.Error(err)
		}
		h.wantOutput(sb.ID, "echo hello", "hello\n")
		if err := h.Delete(h.t.Context(), sb.ID); err != nil {
			h.t.Error(err)
		}
	}
	h.s.fail(nil, nil)
}

// testTakeover: a hub with another state folder is rejected while this hub runs, takes over when it
// stops, and stops when it is replaced.
func testTakeover(h *hub) {
	h.create(sandbox.Spec{Name: "kept"})
	other := h.cfg
	other.Dir = h.t.TempDir()
	if p, err := kubernetes.Open(h.t.Context(), other); !errors.Is(err, sandbox.ErrInUse) {
		h.t.Fatalf("got %v, %v, want %v", p, err, sandbox.ErrInUse)
	}
	// A clean shutdown frees the lease immediately; after a kill it must expire.
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	out, kill := startDying(h.t, plan{Config: h.cfg, Specs: []sandbox.Spec{{Name: "from-another"}}})
	defer kill()
	if _, err := io.ReadFull(out, make([]byte, len("done\n"))); err != nil {
		h.t.Fatal(err)
	}
	kill()
	h.cfg = other
	h.open()
	if all, err := h.List(h.t.Context(), sandbox.Filter{States: []sandbox.State{sandbox.Running}}); err != nil || len(all) != 2 {
		h.t.Errorf("got %v, %v, want both sandboxes", all, err)
	}
	lease := "cove-hub-" + h.cfg.Name
	h.s.mu.Lock()
	h.s.store("leases", "MODIFIED", merge(clone(h.s.objects["leases"][lease]), doc{"spec": doc{"holderIdentity": "intruder"}}).(doc))
	h.s.mu.Unlock()
	testenv.Poll(h.t, "the hub notices that it was replaced", func() bool {
		_, err := h.List(h.t.Context(), sandbox.Filter{})
		return errors.Is(err, sandbox.ErrClosed)
	})
	if err := h.Close(); err != nil {
		h.t.Error(err)
	}
	if o, err := h.s.get("leases", lease); err != nil || o["spec"].(doc)["holderIdentity"] != "intruder" {
		h.t.Errorf("got %v, %v, want the lease of the other hub unchanged", o, err)
	}
	h.s.mu.Lock()
	h.s.drop("leases", lease)
	h.s.mu.Unlock()
	h.open()
}

func recordOf(s doc) string {
	text, _ := s["data"].(doc)["record.json"].(string)
	raw, _ := base64.StdEncoding.DecodeString(text)
	return string(raw)
}

// testOutside: a hub outside the cluster reaches sandboxes through the API server alone, and the network
// accepts no connections.
func testOutside(h *hub) {
	sb := h.create(sandbox.Spec{})
	h.wantOutput(sb.ID, `head -c 300000 /dev/zero | tr '\0' x`, strings.Repeat("x", 300_000))
	ep, err := h.Endpoint(h.t.Context(), sb.ID, 9)
	if err != nil {
		h.t.Fatal(err)
	}
	if c, err := ep.Dial(h.t.Context()); err == nil {
		c.Close()
		h.t.Error("dialed a port without a server")
	}
	l, err := h.Egress(h.t.Context(), sb.ID)
	if err != nil {
		h.t.Fatal(err)
	}
	defer l.Close()
	received := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			received <- err.Error()
			return
		}
		defer c.Close()
		line, _ := bufio.NewReader(c).ReadString('\n')
		received <- line
	}()
	if ep, err = h.Endpoint(h.t.Context(), sb.ID, 0); err != nil {
		h.t.Fatal(err)
	}
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return ep.Dial(ctx)
	}}
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Get("http://sandbox/egress")
	if err != nil {
		h.t.Fatal(err)
	}
	resp.Body.Close()
	if got := <-received; got != "hello from inside\n" {
		h.t.Errorf("got %q from inside", got)
	}
	policy, err := h.s.get("networkpolicies", "cove-sandboxes-"+h.cfg.Name)
	if err != nil {
		h.t.Fatal(err)
	}
	wantEqual(h.t, "ingress", policy["spec"].(doc)["ingress"], []any{})
	// Without a disk that outlives the Pod, there is nothing to stop.
	for what, call := range map[string]func(context.Context, string) error{"stop": h.Stop, "start": h.Start,
		"pause": h.Pause, "resume": h.Resume} {
		if err := call(h.t.Context(), sb.ID); !errors.Is(err, sandbox.ErrUnsupported) {
			h.t.Errorf("%s: got %v, want %v", what, err, sandbox.ErrUnsupported)
		}
	}
	h.s.kubelet.fail(sb.ID)
	h.wantState(sb.ID, sandbox.Failed)
}
