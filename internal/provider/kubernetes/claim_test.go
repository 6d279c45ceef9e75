//go:build linux

package kubernetes_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

const claimsPath = "../../../deploy/kubernetes/claims.yaml"

// claimRig is a hub that serves the claims of a namespace, whose sandboxes belong to ann.
type claimRig struct {
	t     *testing.T
	ns    string
	image string
	do    func(method, path string, in, out any) error
	start func() *realHub
	hub   *realHub
}

// plurals are the resources, by kind.
var plurals = map[string]string{
	"SandboxClaim":    "extensions.agents.x-k8s.io/v1beta1/namespaces/%s/sandboxclaims",
	"SandboxTemplate": "extensions.agents.x-k8s.io/v1beta1/namespaces/%s/sandboxtemplates",
	"SandboxWarmPool": "extensions.agents.x-k8s.io/v1beta1/namespaces/%s/sandboxwarmpools",
	"Sandbox":         "agents.x-k8s.io/v1beta1/namespaces/%s/sandboxes",
}

func (r *claimRig) path(kind, name string) string {
	return "/apis/" + fmt.Sprintf(plurals[kind], r.ns) + strings.TrimSuffix("/"+name, "/")
}

// put creates an object whose spec is YAML.
func (r *claimRig) put(kind, name, spec string) {
	r.t.Helper()
	var body any
	if err := yaml.Unmarshal([]byte(spec), &body); err != nil {
		r.t.Fatal(err)
	}
	group, _, _ := strings.Cut(plurals[kind], "/namespaces/")
	in := map[string]any{"apiVersion": group, "kind": kind, "metadata": map[string]any{"name": name,
		"namespace": r.ns, "labels": map[string]any{"io.cove.owner": "bob"}, "annotations": map[string]any{"cove/claim": "x"}}, "spec": body}
	if err := r.do(http.MethodPost, r.path(kind, ""), in, nil); err != nil {
		r.t.Fatal(err)
	}
}

func (r *claimRig) remove(kind, name string) {
	r.t.Helper()
	if err := r.do(http.MethodDelete, r.path(kind, name), map[string]any{}, nil); err != nil {
		r.t.Fatal(err)
	}
}

// claimState is the checked part of an object.
type claimState struct {
	Status struct {
		Conditions []struct{ Type, Status, Reason, Message string }
		Sandbox    struct{ Name string }
		Ready      int `json:"readyReplicas"`
	}
}

func (r *claimRig) get(kind, name string) (o claimState, err error) {
	err = r.do(http.MethodGet, r.path(kind, name), nil, &o)
	return o, err
}

// want waits until the condition Ready has a status and a reason, and returns its message.
func (r *claimRig) want(kind, name, status, reason string) (message string) {
	r.t.Helper()
	var last claimState
	defer func() {
		if r.t.Failed() {
			r.t.Logf("%s %s is %+v", kind, name, last)
		}
	}()
	testenv.Poll(r.t, kind+" "+name+" is "+reason, func() bool {
		o, err := r.get(kind, name)
		if err != nil {
			return false
		}
		last = o
		for _, c := range o.Status.Conditions {
			if c.Type == "Ready" && c.Status == status && c.Reason == reason {
				message = c.Message
				return true
			}
		}
		return false
	})
	return message
}

// sandboxes returns all sandboxes by owner and name.
func (r *claimRig) sandboxes() map[string]string {
	r.t.Helper()
	list, err := r.hub.List(r.t.Context(), client.ListOptions{User: "*"})
	if err != nil {
		r.t.Fatal(err)
	}
	out := map[string]string{}
	for _, sb := range list {
		out[sb.User+"/"+sb.Name] = sb.ID
	}
	return out
}

// template returns a SandboxTemplate that runs a shell, with additional fields of its Pod.
func (r *claimRig) template(name, more string) {
	r.put("SandboxTemplate", name, fmt.Sprintf(`
envVarsInjectionPolicy: Allowed
podTemplate:
  metadata: {labels: {team: red}}
  spec:
    restartPolicy: Never
    automountServiceAccountToken: false
    %s
    containers:
      - name: main
        image: %q
        env: [{name: GREETING, value: hello}]
        resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {memory: 256Mi}}
        securityContext: {allowPrivilegeEscalation: false, runAsUser: 1000, capabilities: {drop: [ALL]}}`, more, r.image))
}

// serveClaims contains the checks for every cluster.
func serveClaims(r *claimRig) {
	r.hub = r.start()
	r.template("plain", "")
	r.put("SandboxWarmPool", "fast", "{replicas: 1, sandboxTemplateRef: {name: plain}}")
	testenv.Poll(r.t, "a warm sandbox is ready", func() bool {
		o, err := r.get("SandboxWarmPool", "fast")
		return err == nil && o.Status.Ready == 1
	})
	r.put("SandboxClaim", "a", "{warmPoolRef: {name: fast}, env: [{name: NAME, value: ann}]}")
	if m := r.want("SandboxClaim", "a", "True", "DependenciesReady"); !strings.Contains(m, "/sandbox/sb-") {
		r.t.Errorf("got %q, want the address of the sandbox", m)
	}
	o, err := r.get("SandboxClaim", "a")
	all := r.sandboxes()
	if err != nil || o.Status.Sandbox.Name != "a" || len(all) != 1 || all["ann/a"] == "" {
		r.t.Fatalf("got %+v, %v and the sandboxes %v, want ann's sandbox a, independently of labels", o, err, all)
	}
	r.hub.wantOutput(all["ann/a"], "echo $GREETING $NAME; id -u", "hello ann\n1000\n")

	r.greedy()
	r.refused()
	r.quota()
	kept := r.restarted()
	r.expired()
	for _, name := range kept {
		r.remove("SandboxClaim", name)
	}
	r.put("Sandbox", "own", fmt.Sprintf("{podTemplate: {spec: {containers: [{name: main, image: %q}]}}}", r.image))
	r.want("Sandbox", "own", "True", "DependenciesReady")
	r.hub.wantOutput(r.sandboxes()["ann/own"], "echo hello", "hello\n")
	// A deleted sandbox of a claim is not replaced.
	if err := r.hub.Delete(r.t.Context(), r.sandboxes()["ann/own"]); err != nil {
		r.t.Fatal(err)
	}
	r.want("Sandbox", "own", "False", "SandboxMissing")
	r.remove("Sandbox", "own")
	r.remove("SandboxWarmPool", "fast")
	testenv.Poll(r.t, "nothing is left", func() bool { return len(r.sandboxes()) == 0 })
}

// greedy: a user who may create objects in a namespace cannot exceed the limit of warm sandboxes or exhaust the memory of the
// hub.
func (r *claimRig) greedy() {
	r.t.Helper()
	r.put("SandboxWarmPool", "greedy", "{replicas: 1000, sandboxTemplateRef: {name: plain}}")
	testenv.Poll(r.t, "the pools have as many as the limit allows", func() bool {
		o, err := r.get("SandboxWarmPool", "greedy")
		return err == nil && o.Status.Ready == 2 // the other pool has the third
	})
	r.remove("SandboxWarmPool", "greedy")
	r.put("SandboxClaim", "huge", "{warmPoolRef: {name: fast}, env: [{name: A, value: "+strings.Repeat("x", 900<<10)+"}]}")
	if m := r.want("SandboxClaim", "huge", "False", "InvalidTemplate"); !strings.Contains(m, "use at most") {
		r.t.Errorf("got %.200q, want one about its size", m)
	}
	r.remove("SandboxClaim", "huge")
}

// refused: unsupported claims are rejected in their status, and served when they become supported.
func (r *claimRig) refused() {
	r.t.Helper()
	r.put("SandboxClaim", "b", "{warmPoolRef: {name: slow}}")
	if m := r.want("SandboxClaim", "b", "False", "TemplateNotFound"); !strings.Contains(m, `no SandboxWarmPool "slow"`) {
		r.t.Errorf("got %q", m)
	}
	r.template("bad", "hostNetwork: true\n    volumes: [{name: host, hostPath: {path: /}}]")
	r.put("SandboxWarmPool", "slow", "{replicas: 0, sandboxTemplateRef: {name: bad}}")
	m := r.want("SandboxClaim", "b", "False", "InvalidTemplate")
	for _, want := range []string{"podTemplate.spec.hostNetwork", "podTemplate.spec.volumes"} {
		if !strings.Contains(m, want) {
			r.t.Errorf("got %q, want %s in it", m, want)
		}
	}
	r.remove("SandboxTemplate", "bad")
	r.template("bad", "") // and now it is good
	r.want("SandboxClaim", "b", "True", "DependenciesReady")
	r.put("SandboxClaim", "c", "{warmPoolRef: {name: slow}, env: [{name: GREETING, value: other}]}")
	if m := r.want("SandboxClaim", "c", "False", "InvalidTemplate"); !strings.Contains(m, "envVarsInjectionPolicy") {
		r.t.Errorf("got %q, want that the template does not allow it", m)
	}
	r.remove("SandboxClaim", "c")
}

// quota: claims count towards the quota of their user; a rejected claim is served when there is quota.
func (r *claimRig) quota() {
	r.t.Helper()
	r.put("SandboxClaim", "d", "{warmPoolRef: {name: slow}}")
	r.want("SandboxClaim", "d", "True", "DependenciesReady")
	r.put("SandboxClaim", "e", "{warmPoolRef: {name: slow}}")
	if m := r.want("SandboxClaim", "e", "False", "QuotaExceeded"); !strings.Contains(m, "3") {
		r.t.Errorf("got %q, want the limit in it", m)
	}
	r.remove("SandboxClaim", "d")
	r.want("SandboxClaim", "e", "True", "DependenciesReady")
	r.remove("SandboxClaim", "e")
	testenv.Poll(r.t, "the sandboxes of deleted claims are gone", func() bool { return len(r.sandboxes()) == 2 })
}

// restarted: a hub that was killed adopts the sandboxes of its claims, and deletes those without a claim.
func (r *claimRig) restarted() (kept []string) {
	r.t.Helper()
	before := r.sandboxes()
	r.hub.kill()
	r.remove("SandboxClaim", "b")
	r.put("SandboxClaim", "f", "{warmPoolRef: {name: slow}}")
	r.hub = r.start()
	r.want("SandboxClaim", "f", "True", "DependenciesReady")
	testenv.Poll(r.t, "the sandbox of the deleted claim is gone", func() bool { return r.sandboxes()["ann/b"] == "" })
	if after := r.sandboxes(); after["ann/a"] != before["ann/a"] || len(after) != 2 {
		r.t.Errorf("got %v, want a as in %v, and f", after, before)
	}
	r.hub.wantOutput(before["ann/a"], "echo $NAME", "ann\n")
	return []string{"a", "f"}
}

// expired: the sandbox of an expired claim is deleted, and the claim too if it requests that.
func (r *claimRig) expired() {
	r.t.Helper()
	soon := time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339)
	r.put("SandboxClaim", "g", fmt.Sprintf("{warmPoolRef: {name: slow}, lifecycle: {shutdownTime: %q, shutdownPolicy: Delete}}", soon))
	testenv.Poll(r.t, "the claim is gone", func() bool { _, err := r.get("SandboxClaim", "g"); return err != nil })
	r.put("SandboxClaim", "h", fmt.Sprintf("{warmPoolRef: {name: slow}, lifecycle: {shutdownTime: %q, shutdownPolicy: Retain}}", soon))
	r.want("SandboxClaim", "h", "False", "ClaimExpired")
	if all := r.sandboxes(); len(all) != 2 {
		r.t.Errorf("got %v, want no sandbox of an expired claim", all)
	}
	r.remove("SandboxClaim", "h")
}

// claimFlags returns the flags of a hub that serves claims.
func claimFlags(ns string) []string {
	return []string{"--tenants", "--kubernetes-claims", ns + "=ann", "--tenant-sandboxes", "3"}
}

// adminKey waits for the first key.
func adminKey(t *testing.T, state string) string {
	t.Helper()
	path := filepath.Join(state, "admin.key")
	testenv.Poll(t, "there is an administrator", func() bool { _, err := os.Stat(path); return err == nil })
	key, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(key))
}

func (h *realHub) signIn(state string) *realHub {
	h.t.Helper()
	h.connect(adminKey(h.t, state))
	return h
}

// testClaims: claims are served with the rights of claims.yaml, and audited.
func testClaims(t *testing.T) {
	bin := t.TempDir()
	testenv.Build(t, map[string]string{bin + "/cove": "../../../cmd/cove", bin + "/aio": "../../../cmd/aio"})
	s := newAPIServer(t, map[string]string{"aio": bin + "/aio", "cove-container": programs["cove-container"]})
	s.kubelet.installer(t)
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	r := &claimRig{t: t, ns: namespace, image: tinyImage, do: s.call}
	r.start = func() *realHub {
		return launchHub(t, s, bin, state, "listen.sock", append(claimFlags(namespace), "--pool", "0")...).signIn(state)
	}
	serveClaims(r)
	var log []byte
	files, _ := filepath.Glob(filepath.Join(state, "audit", "*"))
	for _, f := range files {
		part, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		log = append(log, part...)
	}
	if !bytes.Contains(log, []byte(`"op":"claim_create"`)) || !bytes.Contains(log, []byte(`"tenant":"ann"`)) {
		t.Errorf("the audit log has no entries about claims: %.2000s", log)
	}
	s.wantClaimRights(t)
}

// wantClaimRights compares the used rights with claims.yaml.
func (s *apiServer) wantClaimRights(t *testing.T) {
	t.Helper()
	var asked, allowed []string
	s.mu.Lock()
	for what := range s.asked {
		// The tests use these.
		if verb, _, _ := strings.Cut(what, " "); strings.Contains(what, "agents.x-k8s.io") && verb != "create" &&
			verb != "get" && !strings.HasSuffix(what, "templates") || strings.HasPrefix(what, "list ext") || strings.HasPrefix(what, "watch ext") {
			asked = append(asked, strings.Replace(what, "/v1beta1", "", 1))
		}
	}
	s.mu.Unlock()
	data, err := os.ReadFile(claimsPath)
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range m.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					allowed = append(allowed, verb+" "+rule.Groups[0]+"/"+resource)
				}
			}
		}
	}
	slices.Sort(asked)
	asked = slices.DeleteFunc(slices.Compact(asked), func(what string) bool { // also of the tests
		return what == "delete extensions.agents.x-k8s.io/sandboxwarmpools" || what == "delete extensions.agents.x-k8s.io/sandboxtemplates"
	})
	slices.Sort(allowed)
	if !slices.Equal(asked, allowed) {
		t.Errorf("the hub uses\n%s\nand claims.yaml allows\n%s", strings.Join(asked, "\n"), strings.Join(allowed, "\n"))
	}
}

// call sends a request as a user of the cluster.
func (s *apiServer) call(method, path string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "http://"+s.address+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s %w", method, path, data, err)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

// testRealClaims: a hub with only the rights of install.yaml and claims.yaml serves claims on a real cluster with the real
// definitions.
func testRealClaims(k *real) {
	const ns = "agents"
	files, _ := filepath.Glob("../../../.tools/agent-sandbox/crds/*.yaml")
	if len(files) != 4 {
		testenv.Lack(k.t, "needs the definitions of agent-sandbox (make deps)")
	}
	for _, file := range append(files, claimsPath) {
		data, err := os.ReadFile(file)
		if err != nil {
			k.t.Fatal(err)
		}
		k.applyAll(decodeObjects(k.t, string(data)))
	}
	r := &claimRig{t: k.t, ns: ns, image: realTiny, do: func(method, path string, in, out any) error {
		return k.Do(k.t.Context(), method, path, in, out)
	}}
	for kind := range plurals {
		k.Await(k.t, kind+" is defined", func() bool { return r.do(http.MethodGet, r.path(kind, ""), nil, nil) == nil })
	}
	var token struct{ Status struct{ Token string } }
	if err := k.Do(k.t.Context(), http.MethodPost, "/api/v1/namespaces/cove/serviceaccounts/cove/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": map[string]any{}}, &token); err != nil {
		k.t.Fatal(err)
	}
	bin := k.t.TempDir()
	testenv.Build(k.t, map[string]string{bin + "/cove": "../../../cmd/cove"})
	state, err := os.MkdirTemp("", "cove-hub-")
	if err != nil {
		k.t.Fatal(err)
	}
	k.t.Cleanup(func() { os.RemoveAll(state) })
	authority := filepath.Join(state, "ca.crt")
	if err := os.WriteFile(authority, k.Authority, 0o600); err != nil {
		k.t.Fatal(err)
	}
	config := fmt.Sprintf("current-context: test\ncontexts:\n- {name: test, context: {cluster: test, user: test, "+
		"namespace: %s}}\nclusters:\n- {name: test, cluster: {server: %q, certificate-authority: %q}}\nusers:\n- "+
		"{name: test, user: {token: %q}}\n", realNamespace, k.Server, authority, token.Status.Token)
	r.start = func() *realHub {
		return runHub(k.t, bin, state, "listen.sock", config, append(claimFlags(ns), "--kubernetes-name", "claims",
			"--default-image", realTiny, "--kubernetes-programs-image", realHubImage, "--pool", "0")...).signIn(state)
	}
	serveClaims(r)
}
