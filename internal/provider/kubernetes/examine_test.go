//go:build linux

package kubernetes_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
)

// TestExamineWithout: the reason why a cluster cannot be used is reported.
func TestExamineWithout(t *testing.T) {
	t.Parallel()
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		refuse(w, http.StatusUnauthorized, "Unauthorized")
	}))
	defer refusing.Close()
	for want, server := range map[string]string{"does not answer": gone.URL,
		"does not accept the credentials": refusing.URL, "invalid address": "nowhere"} {
		ctx, cancel := context.WithCancel(t.Context())
		if server == gone.URL {
			cancel() // it would try again for a while
		}
		usable, list := kubernetes.Examine(ctx, kubernetes.Config{Dir: t.TempDir(), Namespace: "default",
			Programs: "p", Access: kubernetes.Access{Server: server}})
		cancel()
		if usable || len(list) != 1 || list[0].OK || !strings.Contains(list[0].What, want) || list[0].Fix == "" {
			t.Errorf("%s: got %v, %+v, want one finding with a fix", want, usable, list)
		}
	}
}

// tokenOf returns a token of a service account other than that of the hub.
func (k *real) tokenOf(account string) string {
	k.t.Helper()
	var request struct{ Status struct{ Token string } }
	if err := k.Do(k.t.Context(), http.MethodPost, "/api/v1/namespaces/cove/serviceaccounts/"+account+"/token",
		map[string]any{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}, &request); err != nil {
		k.t.Fatal(err)
	}
	return request.Status.Token
}

// testRealExamine: the permissions and features of the cluster are reported for every user, without changes to it.
func testRealExamine(k *real) {
	examine := func(change func(*kubernetes.Config)) (bool, string) {
		cfg := k.config()
		change(&cfg)
		usable, list := kubernetes.Examine(k.t.Context(), cfg)
		lines := []string{}
		for _, f := range list {
			mark := "missing: "
			if f.OK {
				mark = "ok: "
			}
			lines = append(lines, mark+f.What)
		}
		return usable, strings.Join(lines, "\n")
	}
	as := func(account string) func(*kubernetes.Config) {
		token := k.tokenOf(account)
		return func(c *kubernetes.Config) { c.Access.Cert, c.Access.Key, c.Access.Token = nil, nil, token }
	}
	store := startStore(k.t)
	accepts := `ok: namespace "cove-sandboxes" accepts sandboxes with isolation container`
	for who, want := range map[string]struct {
		change func(*kubernetes.Config)
		usable bool
		lines  []string
	}{
		"the administrator": {func(*kubernetes.Config) {}, true,
			[]string{"ok: Kubernetes v", "ok: rights in namespace",
				`ok: Pod Security level of namespace "cove-sandboxes": restricted`, accepts,
				"(kubernetes_user_namespaces, hostUsers: false): ",
				"ok: RuntimeClasses (kubernetes_runtime_classes): gvisor", "missing: snapshots and forks: no store is configured"}},
		"the hub":    {as("cove"), true, []string{"ok: rights in namespace", accepts, "cannot list the nodes"}},
		"a stranger": {as("default"), false, []string{"missing: rights in namespace", "missing: namespace"}},
		"with port forwarding": {func(c *kubernetes.Config) { as("cove")(c); c.Reach = kubernetes.ReachAPI }, false,
			[]string{`missing: rights in namespace "cove-sandboxes": get pods/portforward, create pods/portforward` + "\n"}},
		"with root": {func(c *kubernetes.Config) { c.Root = true }, false, []string{"missing: namespace", "violates PodSecurity"}},
		"without the namespace": {func(c *kubernetes.Config) { c.Namespace = "absent" }, false,
			[]string{`missing: namespace "absent" does not exist`}},
		"with a store": {func(c *kubernetes.Config) { c.Snapshots = store.config() }, true,
			[]string{"ok: snapshot store http://127.0.0.1:", "/bucket/cove-sandboxes/hub-"}},
		"with a foreign store": {func(c *kubernetes.Config) {
			c.Snapshots = store.config()
			c.Snapshots.SecretKey = "another"
		}, true, []string{"missing: snapshot store http://127.0.0.1:", "write: ", "403 SignatureDoesNotMatch"}},
		"with an absent class": {func(c *kubernetes.Config) { c.RuntimeClasses = []string{"absent"} }, true,
			[]string{accepts, "missing: isolation absent"}},
	} {
		usable, got := examine(want.change)
		for _, line := range want.lines {
			if !strings.Contains(got, line) {
				k.t.Errorf("%s: got\n%s\nwant %s", who, got, line)
			}
		}
		if usable != want.usable {
			k.t.Errorf("%s: usable %v, want %v:\n%s", who, usable, want.usable, got)
		}
	}
	// Without any rights, exactly those of the role are reported.
	_, got := examine(as("default"))
	_, after, _ := strings.Cut(got, `rights in namespace "cove-sandboxes": `)
	line, _, _ := strings.Cut(after, "\n")
	asked, allowed := strings.Split(line, ", "), roleRights(k.t)
	slices.Sort(asked)
	if !slices.Equal(asked, allowed) {
		k.t.Errorf("requires\n%s\nthe role allows\n%s", strings.Join(asked, "\n"), strings.Join(allowed, "\n"))
	}
	if left := store.objects(); len(left) != 0 {
		k.t.Errorf("%q are left in the store", left)
	}
	var left objects
	if err := k.Do(k.t.Context(), http.MethodGet, "/api/v1/namespaces/"+k.ns+"/pods", nil, &left); err != nil {
		k.t.Error(err)
	}
	for _, p := range left.Items {
		if p.Metadata.Name == "cove-doctor" {
			k.t.Error("a Pod was created")
		}
	}
}
