package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/secretstore"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// initServers collects the requests that initialize the servers of sandboxes.
type initServers struct {
	mu   sync.Mutex
	list []pool.Init
	fail bool
}

func (x *initServers) add(g *guestServer) {
	g.mux.HandleFunc("POST /v1/sandbox/init", func(w http.ResponseWriter, r *http.Request) {
		x.mu.Lock()
		defer x.mu.Unlock()
		var in pool.Init
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil || x.fail {
			http.Error(w, "no", http.StatusTeapot)
			return
		}
		x.list = append(x.list, in)
		fmt.Fprint(w, `{"ready":true}`)
	})
}

func (x *initServers) last(t *testing.T, n int) pool.Init {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.list) != n {
		t.Fatalf("servers were initialized %d times, want %d", len(x.list), n)
	}
	return x.list[n-1]
}

// openSecrets opens a store of secrets and a certificate authority.
func openSecrets(t *testing.T) stores {
	t.Helper()
	dir := t.TempDir()
	store, err := secretstore.Open(secretstore.Config{Dir: filepath.Join(dir, "secrets")})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := certificate.OpenAuthority(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return stores{secrets: store, authority: ca}
}

// secretRig is a hub on which anna has a secret of each mode. All values begin with hunter.
type secretRig struct {
	*rig
	with       setup
	inside     *initServers
	anna, bert []string
}

func newSecretRig(t *testing.T) *secretRig {
	t.Helper()
	s := &secretRig{inside: &initServers{}, anna: asUser("anna"), bert: asUser("bert")}
	s.with = setup{stores: openSecrets(t), more: s.inside.add}
	s.with.stores.audit, s.with.stores.auditDir = openAudit(t)
	s.rig = newRig(t, s.with)
	for name, body := range map[string]string{
		"token": `{"value":"hunter-env"}`,
		"cert":  `{"value":"hunter-file","mode":"file","target":"/home/gem/.cert"}`,
		"api":   `{"value":"hunter-broker","mode":"broker","hosts":["api.example.com"]}`,
	} {
		if a := s.do("PUT", "/api/v1/secret/"+name, body, s.anna...); a.Status != 200 || strings.Contains(a.Body, "hunter") {
			t.Fatalf("got %d %s, want 200", a.Status, a.Body)
		}
	}
	return s
}

// checkNoSecrets fails if the audit log contains the value of a secret.
func (s *secretRig) checkNoSecrets() {
	s.t.Helper()
	for _, line := range lines(s.t, s.with.stores.auditDir, auditlog.Filter{}) {
		if b, _ := json.Marshal(line); strings.Contains(string(b), "hunter") {
			s.t.Errorf(`got %s, want no "hunter" in it`, b)
		}
	}
}

// Only the owner can see, use or delete a secret, and no reply contains its value.
func TestSecretBelongsToOwner(t *testing.T) {
	t.Parallel()
	s := newSecretRig(t)
	for _, path := range []string{"", "/token"} {
		if a := s.do("GET", "/api/v1/secret"+path, "", s.anna...); strings.Contains(a.Body, "hunter") || path == "" &&
			!strings.Contains(a.Body, "api.example.com") {
			t.Errorf("%s: %s", path, a.Body)
		}
	}
	if a := s.do("GET", "/api/v1/secret", "", s.bert...); a.Status != 200 || string(a.Data) != "[]" {
		t.Errorf(`got %v, want status 200 and data "[]"`, a.Body)
	}
	if a := s.do("POST", "/api/v1/sandbox", `{"secrets":["token"]}`, s.bert...); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	if a := s.do("DELETE", "/api/v1/secret/token", "", s.bert...); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	s.checkNoSecrets()
}

// createWithSecrets creates a sandbox with anna's secrets.
func (s *secretRig) createWithSecrets() lifecycle.Object {
	s.t.Helper()
	return s.create(`{"name":"a","env":{"X":"1"},"secrets":["token","api","cert"]}`, s.anna...)
}

// The server inside gets secrets; the provider and the reply do not.
func TestSandboxGetsSecrets(t *testing.T) {
	t.Parallel()
	s := newSecretRig(t)
	o := s.createWithSecrets()
	if strings.Join(o.Secrets, " ") != "api cert token" || o.Env[pool.EnvInit] != "" || o.Env["X"] != "1" {
		t.Errorf(`got %+v, want secrets "api cert token", X "1" and no %s`, o, pool.EnvInit)
	}
	in := s.inside.last(t, 1)
	if in.Env["token"] != "hunter-env" || in.Env["SSL_CERT_FILE"] != "/var/tmp/cove/ca.pem" || len(in.Files) != 2 ||
		string(in.Files[0].Content) != "hunter-file" || in.Files[0].Path != "/home/gem/.cert" ||
		!strings.Contains(string(in.Files[1].Content), string(s.with.stores.authority.PEM())) {
		t.Errorf("%+v", in)
	}
	for k, v := range in.Env {
		if strings.Contains(v, "hunter-broker") {
			t.Errorf("%s is inside", k)
		}
	}
	sb, err := s.provider.Get(t.Context(), o.ID)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(sb); strings.Contains(string(b), "hunter") {
		t.Errorf(`the provider's record has it: got %s, want no "hunter" in it`, b)
	}
	rules := s.hub.secrets.Credentials(sb.Spec)
	if len(rules) != 1 || rules[0].Host != "api.example.com" || rules[0].Value.Reveal() != "Bearer hunter-broker" {
		t.Errorf(`got %+v, want 1 rule, first host "api.example.com" and first value "Bearer hunter-broker"`, rules)
	}
	s.checkNoSecrets()
}

// Each start sends the secrets again, and each fork has its own.
func TestSecretsAreSentAtEachStart(t *testing.T) {
	t.Parallel()
	s := newSecretRig(t)
	s.createWithSecrets()
	if a := s.do("POST", "/api/v1/sandbox/a/stop", "", s.anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	if a := s.do("GET", "/sandbox/a/x", "", s.anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	s.inside.last(t, 2)
	if a := s.do("POST", "/api/v1/sandbox/a/fork", `{"names":["b"]}`, s.anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	s.inside.last(t, 3)
	s.checkNoSecrets()
}

// The deletion of a brokered secret takes effect immediately, also after the hub was restarted.
func TestDeletedSecretIsNotBrokered(t *testing.T) {
	t.Parallel()
	s := newSecretRig(t)
	sb, err := s.provider.Get(t.Context(), s.createWithSecrets().ID)
	if err != nil {
		t.Fatal(err)
	}
	if a := s.do("DELETE", "/api/v1/secret/token", "", s.anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	s.close()
	s.open(s.with)
	if rules := s.hub.secrets.Credentials(sb.Spec); len(rules) != 1 {
		t.Errorf("got %+v, want 1 rule", rules)
	}
	if a := s.do("DELETE", "/api/v1/secret/api", "", s.anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	if rules := s.hub.secrets.Credentials(sb.Spec); len(rules) != 0 {
		t.Errorf("got %+v, want no rules", rules)
	}
	s.checkNoSecrets()
}

// A sandbox whose server does not accept its secrets is deleted.
func TestSandboxWithoutItsSecretsIsDeleted(t *testing.T) {
	t.Parallel()
	s := newSecretRig(t)
	s.createWithSecrets()
	s.inside.fail = true
	if a := s.do("POST", "/api/v1/sandbox", `{"name":"c","secrets":["cert"]}`, s.anna...); a.Status != 503 ||
		strings.Contains(a.Body, "hunter") {
		t.Errorf("got %d %s, want 503", a.Status, a.Body)
	}
	list, err := s.provider.List(t.Context(), sandbox.Filter{Name: "c"})
	if err != nil || len(list) != 0 || s.hub.stores.quota.Usage("anna").Sandboxes != 1 {
		t.Errorf("got %+v %v %+v, want no entries and sandboxes 1", list, err, s.hub.stores.quota.Usage("anna"))
	}
	s.checkNoSecrets()
}

// fetchOut sends a request through the nth egress proxy that was opened, and returns the
// response.
func (r *rig) fetchOut(n int, host string) string {
	t := r.t
	t.Helper()
	poll(t, "the egress proxy is open", func() bool { return r.provider.opened() > n })
	r.provider.mu.Lock()
	proxy := r.provider.egress[n].Addr().String()
	r.provider.mu.Unlock()
	tr := &http.Transport{
		Proxy: func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy") },
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", proxy)
		},
	}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+host+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := tr.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return string(b)
}

// world makes sandboxes reach a server under all names. It replies with a header of the request.
func world(t *testing.T, header string) func(*egress.Config) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "got "+r.Header.Get(header))
	}))
	t.Cleanup(server.Close)
	return func(c *egress.Config) {
		c.Self = func() []netip.Addr { return nil }
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
		}
		c.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", server.Listener.Addr().String())
		}
	}
}

// TestSecretIsBrokered: the egress proxy adds the current value for the named host and no other,
// also after the hub was restarted.
func TestSecretIsBrokered(t *testing.T) {
	t.Parallel()
	var inside initServers
	with := setup{more: inside.add, stores: openSecrets(t), hub: Config{changeEgress: world(t, "Authorization")}}
	r := newRig(t, with)
	set := func(value string) {
		t.Helper()
		if a := r.do("PUT", "/api/v1/secret/api",
			`{"value":"`+value+`","mode":"broker","hosts":["api.example.com"],"insecure":true}`); a.Status != 200 {
			t.Fatalf("got %v, want status 200", a.Body)
		}
	}
	check := func(n int, host, want string) {
		t.Helper()
		if got := r.fetchOut(n, host); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	set("hunter1")
	r.create(`{"name":"a","secrets":["api"]}`)
	check(0, "api.example.com", "got Bearer hunter1")
	check(0, "other.example.com", "got ")
	set("hunter2")
	check(0, "api.example.com", "got Bearer hunter2")
	r.create(`{"name":"b"}`)
	check(1, "api.example.com", "got ")
	if a := r.do("DELETE", "/api/v1/sandbox/b", ""); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	r.close()
	r.open(with)
	check(0, "api.example.com", "got Bearer hunter2")
	if a := r.do("DELETE", "/api/v1/secret/api", ""); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	check(0, "api.example.com", "got ")
}
