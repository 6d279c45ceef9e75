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

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/secretstore"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// told collects what servers inside were told at their start.
type told struct {
	mu   sync.Mutex
	list []pool.Init
	fail bool
}

func (x *told) add(g *guestServer) {
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

func (x *told) last(t *testing.T, n int) pool.Init {
	t.Helper()
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.list) != n {
		t.Fatalf("told %d times, want %d", len(x.list), n)
	}
	return x.list[n-1]
}

// TestSecrets: a sandbox gets what it was promised, at every start, and nothing
// but the sandbox sees it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := secretstore.Open(secretstore.Config{Dir: filepath.Join(dir, "secrets")})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := certificate.OpenAuthority(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	l, auditDir := openAudit(t)
	var inside told
	with := setup{stores: stores{secrets: store, authority: authority, audit: l, auditDir: auditDir}, more: inside.add}
	r := newRig(t, with)
	anna, bert := asUser("anna"), asUser("bert")
	for name, body := range map[string]string{
		"token": `{"value":"hunter-env"}`,
		"cert":  `{"value":"hunter-file","mode":"file","target":"/home/gem/.cert"}`,
		"api":   `{"value":"hunter-broker","mode":"broker","hosts":["api.example.com"]}`,
	} {
		if a := r.do("PUT", "/api/v1/secret/"+name, body, anna...); a.Status != 200 || strings.Contains(a.Body, "hunter") {
			t.Fatalf("got %d %s, want 200", a.Status, a.Body)
		}
	}
	for _, path := range []string{"", "/token"} {
		if a := r.do("GET", "/api/v1/secret"+path, "", anna...); strings.Contains(a.Body, "hunter") || path == "" &&
			!strings.Contains(a.Body, "api.example.com") {
			t.Errorf("%s: %s", path, a.Body)
		}
	}
	if a := r.do("GET", "/api/v1/secret", "", bert...); a.Status != 200 || string(a.Data) != "[]" {
		t.Errorf(`got %v, want status 200 and data "[]"`, a.Body)
	}
	if a := r.do("POST", "/api/v1/sandbox", `{"secrets":["token"]}`, bert...); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}
	if a := r.do("DELETE", "/api/v1/secret/token", "", bert...); a.Status != 404 {
		t.Errorf("got %d %s, want 404", a.Status, a.Body)
	}

	o := r.create(`{"name":"a","env":{"X":"1"},"secrets":["token","api","cert"]}`, anna...)
	if strings.Join(o.Secrets, " ") != "api cert token" || o.Env[pool.EnvInit] != "" || o.Env["X"] != "1" {
		t.Errorf(`got %+v, want secrets "api cert token", X "1" and no %s`, o, pool.EnvInit)
	}
	in := inside.last(t, 1)
	if in.Env["token"] != "hunter-env" || in.Env["SSL_CERT_FILE"] != "/var/tmp/cove/ca.pem" || len(in.Files) != 2 ||
		string(in.Files[0].Content) != "hunter-file" || in.Files[0].Path != "/home/gem/.cert" ||
		!strings.Contains(string(in.Files[1].Content), string(authority.PEM())) {
		t.Errorf("%+v", in)
	}
	for k, v := range in.Env {
		if strings.Contains(v, "hunter-broker") {
			t.Errorf("%s is inside", k)
		}
	}
	sb, err := r.provider.Get(t.Context(), o.ID)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := json.Marshal(sb); strings.Contains(string(b), "hunter") {
		t.Errorf(`the provider's record has it: got %s, want no "hunter" in it`, b)
	}
	rules := r.hub.vault.Credentials(sb.Spec)
	if len(rules) != 1 || rules[0].Host != "api.example.com" || rules[0].Value.Reveal() != "Bearer hunter-broker" {
		t.Errorf(`got %+v, want 1 rule, first host "api.example.com" and first value "Bearer hunter-broker"`, rules)
	}

	// At the next start it is told again, whoever starts it.
	if a := r.do("POST", "/api/v1/sandbox/a/stop", "", anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	if a := r.do("GET", "/sandbox/a/x", "", anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	inside.last(t, 2)
	if a := r.do("POST", "/api/v1/sandbox/a/fork", `{"names":["b"]}`, anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	inside.last(t, 3)

	// Brokered ones follow at once, also after the hub was started anew.
	if a := r.do("DELETE", "/api/v1/secret/token", "", anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	r.close()
	r.open(with)
	if rules := r.hub.vault.Credentials(sb.Spec); len(rules) != 1 {
		t.Errorf("got %+v, want 1 rule", rules)
	}
	if a := r.do("DELETE", "/api/v1/secret/api", "", anna...); a.Status != 200 {
		t.Fatalf("got %v, want status 200", a.Body)
	}
	if rules := r.hub.vault.Credentials(sb.Spec); len(rules) != 0 {
		t.Errorf("got %+v, want no rules", rules)
	}

	// What cannot be told is not there.
	inside.fail = true
	if a := r.do("POST", "/api/v1/sandbox", `{"name":"c","secrets":["cert"]}`, anna...); a.Status != 503 ||
		strings.Contains(a.Body, "hunter") {
		t.Errorf("got %d %s, want 503", a.Status, a.Body)
	}
	list, err := r.provider.List(t.Context(), sandbox.Filter{Name: "c"})
	if err != nil || len(list) != 0 || r.hub.quota.Usage("anna").Sandboxes != 2 {
		t.Errorf("got %+v %v %+v, want no entries and sandboxes 2", list, err, r.hub.quota.Usage("anna"))
	}
	for _, line := range lines(t, auditDir, auditlog.Filter{}) {
		if b, _ := json.Marshal(line); strings.Contains(string(b), "hunter") {
			t.Errorf(`got %s, want no "hunter" in it`, b)
		}
	}
}

// TestBrokeredSecretsGoOut: the sandbox's way out adds the value for the named
// host and no other, as the tenant changes it, also after the hub was started anew.
func TestBrokeredSecretsGoOut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	store, err := secretstore.Open(secretstore.Config{Dir: filepath.Join(dir, "secrets")})
	if err != nil {
		t.Fatal(err)
	}
	authority, err := certificate.OpenAuthority(filepath.Join(dir, "ca.pem"))
	if err != nil {
		t.Fatal(err)
	}
	world := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "got "+r.Header.Get("Authorization"))
	}))
	defer world.Close()
	var inside told
	with := setup{more: inside.add, stores: stores{secrets: store, authority: authority}, hub: Config{changeEgress: func(c *egress.Config) {
		c.Self = func() []netip.Addr { return nil }
		c.Resolve = func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}, nil
		}
		c.Dial = func(ctx context.Context, _ netip.AddrPort) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", world.Listener.Addr().String())
		}
	}}}
	r := newRig(t, with)
	set := func(value string) {
		t.Helper()
		if a := r.do("PUT", "/api/v1/secret/api",
			`{"value":"`+value+`","mode":"broker","hosts":["api.example.com"],"insecure":true}`); a.Status != 200 {
			t.Fatalf("got %v, want status 200", a.Body)
		}
	}
	// fetch is a request out of the sandbox whose way out was opened as the nth.
	fetch := func(n int, host string) string {
		t.Helper()
		testenv.Poll(t, "the way out is open", func() bool {
			r.provider.mu.Lock()
			defer r.provider.mu.Unlock()
			return len(r.provider.outlets) > n
		})
		r.provider.mu.Lock()
		outlet := r.provider.outlets[n].Addr().String()
		r.provider.mu.Unlock()
		tr := &http.Transport{
			Proxy: func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy") },
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "unix", outlet)
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
	check := func(n int, host, want string) {
		t.Helper()
		if got := fetch(n, host); got != want {
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
