package e2e

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// tenants starts a hub with tenants and returns it with the operator's key.
func tenants(t *testing.T, with []string, args ...string) *hub {
	t.Helper()
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir(), with: with}
	h.begin(t, append([]string{"--tenants"}, args...)...)
	b, err := os.ReadFile(filepath.Join(h.State, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	h.key = strings.TrimSpace(string(b))
	return h.as(h.key)
}

// as returns the same hub with another key.
func (h *hub) as(key string) *hub {
	other := *h
	other.key, other.env = key, []string{"COVE_URL=" + h.URL, "COVE_API_KEY=" + key}
	return &other
}

// tenant creates a key.
func (h *hub) tenant(t *testing.T, name, role string) *hub {
	t.Helper()
	var key struct {
		Secret string `json:"secret"`
	}
	if err := json.Unmarshal([]byte(h.must(t, "key", "add", name, "--role", role)), &key); err != nil || key.Secret == "" {
		t.Fatalf("got %v, %v, want a secret", err, key)
	}
	return h.as(key.Secret)
}

// Two tenants of a hub are isolated from each other.
func TestTenants(t *testing.T) {
	t.Parallel()
	admin := tenants(t, nil)
	ann, bob, looker := admin.tenant(t, "ann", "user"), admin.tenant(t, "bob", "user"), admin.tenant(t, "ann", "viewer")
	ann.must(t, "create", "a")
	ann.must(t, "exec", "a", "echo ann > note")
	if _, errs, code := bob.cove(t, "", "exec", "a", "cat note"); code != 5 {
		t.Errorf("sandbox of another tenant: %d %s, want code 5", code, errs)
	}
	bob.must(t, "create", "a")
	if out, _, _ := bob.cove(t, "", "exec", "a", "cat note"); strings.Contains(out, "ann") {
		t.Error("got one sandbox, want two with the same name")
	}
	if out := looker.must(t, "get", "a"); !strings.Contains(out, `"user": "ann"`) {
		t.Errorf("got %q, want containing %q", out, `"user": "ann"`)
	}
	for _, verb := range [][]string{{"create", "b"}, {"exec", "a", "true"}, {"rm", "a"}, {"key", "list"}} {
		if _, errs, code := looker.cove(t, "", verb...); code != 4 {
			t.Errorf("a viewer can run %v: %d %s, want code 4", verb, code, errs)
		}
	}

	// A link gives access to one sandbox until it is revoked.
	var link struct{ ID, URL string }
	if err := json.Unmarshal([]byte(ann.must(t, "share", "create", "a", "--minutes", "5")), &link); err != nil {
		t.Fatal(err)
	}
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	open := func(address string) int {
		res, err := browser.Get(address)
		if err != nil {
			t.Fatal(err)
		}
		status, _ := read(t, res)
		return status
	}
	if got := open(link.URL); got != 200 {
		t.Errorf("the link: %d, want 200", got)
	}
	if got := open(admin.URL + "/api/v1/sandbox"); got != 401 {
		t.Errorf("with the link's cookie the list: %d, want 401", got)
	}
	ann.must(t, "share", "revoke", link.ID)
	if got := open(link.URL); got == 200 {
		t.Error("a revoked link works")
	}

	// Snapshots, forks and rollback work separately for each tenant.
	ann.must(t, "snapshot", "create", "a", "good")
	ann.must(t, "exec", "a", "echo broken > note; rm -rf ~/.local/none")
	if out := ann.must(t, "diff", "a"); !strings.Contains(out, "/home/gem/note") || strings.Contains(out, ".local") {
		t.Errorf("got %q, want containing \"/home/gem/note\"", out)
	}
	ann.must(t, "fork", "a", "--names", "twin")
	ann.must(t, "rollback", "a", "good")
	for name, want := range map[string]string{"a": "ann\n", "twin": "broken\n"} {
		if out := ann.must(t, "exec", name, "cat note"); out != want {
			t.Errorf("%s: %q, want %v", name, out, want)
		}
	}
	if out := bob.must(t, "snapshot", "list"); strings.Contains(out, "good") {
		t.Errorf("got %q, want without \"good\"", out)
	}

	admin.must(t, "audit", "verify")
	if out := admin.must(t, "audit", "tail"); !strings.Contains(out, "sandbox_create") || !strings.Contains(out, "bob") {
		t.Errorf("%.2000s, want containing \"sandbox_create\", containing \"bob\"", out)
	}
}

// findNeedle is a Python program that searches files, environments, command lines and memory for a
// text. Its two halves are arguments.
const findNeedle = `
import os, sys
needle = (%q + %q).encode()
found = []
for root in ("/home", "/tmp", "/run", "/etc", "/var", "/dev/shm"):
    for folder, _, names in os.walk(root):
        for name in names:
            try:
                with open(os.path.join(folder, name), "rb") as f:
                    if needle in f.read(8 << 20): found.append(os.path.join(folder, name))
            except OSError: pass
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid(): continue
    for part in ("environ", "cmdline"):
        try:
            if needle in open(f"/proc/{pid}/{part}", "rb").read(): found.append(f"{pid} {part}")
        except OSError: pass
    try:
        regions = open(f"/proc/{pid}/maps").read().splitlines()
        memory = open(f"/proc/{pid}/mem", "rb", 0)
    except OSError: continue
    for line in regions:
        if " rw" not in line: continue
        first, last = (int(x, 16) for x in line.split()[0].split("-"))
        try:
            memory.seek(first)
            if needle in memory.read(min(last - first, 256 << 20)): found.append(f"{pid} memory")
        except (OSError, OverflowError, ValueError): pass
print("found", found)
`

// Programs in the sandbox can use a brokered secret, but the secret is not in the sandbox.
func TestBrokeredSecret(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "curl", "python3")
	const value = "s3cr3t-Zq81xWv5-of-the-test"
	ca, cert := authority(t)
	serve := func() (*httptest.Server, func() []string) {
		var seen testList
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			seen.add(r.Header.Get("Authorization"))
			fmt.Fprintln(w, "hello")
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
		s.StartTLS()
		t.Cleanup(s.Close)
		return s, seen.all
	}
	named, atNamed := serve()
	other, atOther := serve()
	port := func(s *httptest.Server) string { return s.URL[strings.LastIndexByte(s.URL, ':')+1:] }

	h := tenants(t, []string{"SSL_CERT_FILE=" + ca}, "--private-networks", "127.0.0.1/32")
	ann := h.tenant(t, "ann", "user")
	if _, errs, code := ann.cove(t, value, "secret", "set", "api", "--mode", "broker", "--host",
		"localhost:"+port(named), "--value-format", "Bearer %s"); code != 0 {
		t.Fatalf("got %q, want code 0", errs)
	}
	ann.must(t, "create", "a", "--secrets", "api")
	const fetch = "curl -sS --noproxy '' "
	if out := ann.must(t, "exec", "a", fetch+"https://localhost:"+port(named)+"/x"); out != "hello\n" {
		t.Errorf("%q, want %q", out, "hello\n")
	}
	ann.cove(t, "", "exec", "a", fetch+"-k https://localhost:"+port(other)+"/x")
	ann.cove(t, "", "exec", "a", fetch+"-k -H 'Host: localhost:"+port(named)+"' https://localhost:"+port(other)+"/x")
	if got := atNamed(); len(got) != 1 || got[0] != "Bearer "+value {
		t.Errorf("the named host got %q, want one call with the credential", got)
	}
	if got := strings.Join(atOther(), ""); len(atOther()) == 0 || strings.Contains(got, value) {
		t.Errorf("another host got %q of %d calls, want at least 1 call without %q", got, len(atOther()), value)
	}

	// A search in the sandbox does not find it in files, environments, command lines, or the memory of
	// readable processes. The program joins the two halves, so that it does not find itself.
	look := fmt.Sprintf(findNeedle, value[:8], value[8:])
	if out, errs, code := ann.cove(t, look, "exec", "-i", "a", "--", "python3", "-"); code != 0 || out != "found []\n" {
		t.Errorf("%d %q %q, want code 0, %q", code, out, errs, "found []\n")
	}
	for _, args := range [][]string{{"logs", "a"}, {"get", "a"}, {"secret", "list"}, {"network", "show", "a"}} {
		if out := ann.must(t, args...); strings.Contains(out, value) {
			t.Errorf("cove %v shows the secret, want output without %q", args, value)
		}
	}
	if strings.Contains(h.log.String(), value) {
		t.Errorf("the hub's log contains the secret, want a log without %q", value)
	}
	filepath.WalkDir(filepath.Join(h.State, "audit"), func(path string, d os.DirEntry, err error) error {
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(value)) {
			t.Errorf("%s contains the secret", path)
		}
		return nil
	})
}

// testList is filled by servers and read by the test.
type testList struct{ output }

func (l *testList) add(s string) { fmt.Fprintln(&l.output, s) }

func (l *testList) all() []string {
	text := strings.TrimSuffix(l.output.String(), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// authority creates a certificate for localhost and a file with its CA.
func authority(t *testing.T) (file string, cert tls.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return file, tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
