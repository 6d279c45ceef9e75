package certificate

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func create(t *testing.T, domain string) Files {
	t.Helper()
	files, err := Create(filepath.Join(t.TempDir(), "tls"), domain)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func open(t *testing.T, files Files, log io.Writer) *Pair {
	t.Helper()
	p, err := Open(Config{CertFile: files.Cert, KeyFile: files.Key, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// greet performs a handshake for a name and returns its state.
func greet(t *testing.T, p *Pair, authority, name string) (tls.ConnectionState, error) {
	t.Helper()
	pool := x509.NewCertPool()
	b, err := os.ReadFile(authority)
	if err != nil || !pool.AppendCertsFromPEM(b) {
		t.Fatalf("read %q: %v", authority, err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", p.ServerConfig(func(name string) bool { return strings.HasPrefix(name, "49983-") }))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if far, err := l.Accept(); err == nil {
			far.(*tls.Conn).Handshake()
			far.Close()
		}
	}()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c := tls.Client(near, &tls.Config{RootCAs: pool, ServerName: name, NextProtos: []string{"h2", "http/1.1"}})
	err = c.Handshake()
	near.Close()
	<-done
	return c.ConnectionState(), err
}

func TestCreate(t *testing.T) {
	t.Parallel()
	files := create(t, "cove.localhost")
	var log bytes.Buffer
	p := open(t, files, &log)
	for _, name := range []string{"cove.localhost", "api.cove.localhost", "49983-sb0123456789abcdef.cove.localhost",
		"localhost", "127.0.0.1", "::1"} {
		want := "h2"
		if strings.HasPrefix(name, "49983-") {
			want = "http/1.1"
		}
		state, err := greet(t, p, files.Authority, name)
		if err != nil || state.NegotiatedProtocol != want {
			t.Errorf("%s: got %q and error %v, want %s", name, state.NegotiatedProtocol, err, want)
		}
	}
	for _, name := range []string{"a.b.cove.localhost", "example.com", "x.localhost", "10.0.0.1"} {
		if _, err := greet(t, p, files.Authority, name); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	if p.Host() != "cove.localhost" || p.CheckSubdomains("cove.localhost") != nil || p.CheckSubdomains("example.com") == nil {
		t.Errorf("got host %q, %v and %v, want cove.localhost and names below it only", p.Host(),
			p.CheckSubdomains("cove.localhost"), p.CheckSubdomains("example.com"))
	}
	if log.Len() > 0 {
		t.Errorf("got the log %s, want nothing", &log)
	}
	list, err := os.ReadDir(filepath.Dir(files.Cert))
	if err != nil || len(list) != 3 {
		t.Errorf("got files %v and error %v, want 3: the authority's key is not kept", list, err)
	}
	for path, want := range map[string]os.FileMode{filepath.Dir(files.Key): 0o700, files.Key: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: got mode %v and error %v, want %v", path, info.Mode(), err, want)
		}
	}
}

// TestOpenSSLAccepts: OpenSSL, which Python and Node.js use, has additional rules for chains and name constraints.
func TestOpenSSLAccepts(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "openssl")
	files := create(t, "sandbox.example.com")
	verify := func(name string) error {
		out, err := exec.Command("openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile",
			files.Authority, "-verify_hostname", name, files.Cert).CombinedOutput()
		if err != nil {
			t.Logf("%s: %s", name, out)
		}
		return err
	}
	if err := verify("3000-sb0.sandbox.example.com"); err != nil {
		t.Errorf("got %v, want a valid certificate", err)
	}
	if verify("www.example.com") == nil {
		t.Error("got a valid certificate for a name that is not below the domain")
	}
}

func TestCreateOverwritesNothing(t *testing.T) {
	t.Parallel()
	files := create(t, "cove.localhost")
	before, err := os.ReadFile(files.Key)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(filepath.Dir(files.Key), "cove.localhost"); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("got error %v, want one about a folder that is not empty", err)
	}
	if after, err := os.ReadFile(files.Key); err != nil || !bytes.Equal(before, after) {
		t.Errorf("got another key or error %v, want the same key", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(file, "cove.localhost"); err == nil {
		t.Error("got no error for a path that is a file, want one")
	}
	if left, err := os.ReadDir(filepath.Dir(filepath.Dir(files.Key))); err != nil || len(left) != 1 {
		t.Errorf("got %v and error %v, want no remaining files", left, err)
	}
}

func TestCreateRefusesDomains(t *testing.T) {
	t.Parallel()
	for _, domain := range []string{"", "localhost", "*.example.com", "Example.com", "a..b", "-a.b", "a.b-", "a b.c",
		"a.b:80", strings.Repeat("a.", 120) + "b", "a.b\n"} {
		if _, err := Create(filepath.Join(t.TempDir(), "tls"), domain); err == nil {
			t.Errorf("%q: got no error, want one", domain)
		}
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	old, next := create(t, "old.localhost"), create(t, "next.localhost")
	var log bytes.Buffer
	p := open(t, old, &log)
	put := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to+".new", b, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(to+".new", to); err != nil {
			t.Fatal(err)
		}
	}
	shows := func(want string) {
		t.Helper()
		for range 3 {
			greet(t, p, next.Authority, "x")
		}
		if got := p.Host(); got != want {
			t.Errorf("got the certificate of %s, want %s; log: %s", got, want, &log)
		}
	}
	shows("old.localhost")
	put(next.Cert, old.Cert) // the key is still the old one
	shows("old.localhost")
	if got := strings.Count(log.String(), "cannot reload"); got != 1 {
		t.Errorf("got %d errors in the log, want 1:\n%s", got, &log)
	}
	if p.Check() == nil {
		t.Error("got no error for files that do not match, want one")
	}
	put(next.Key, old.Key)
	shows("next.localhost")
	if _, err := greet(t, p, next.Authority, "a.next.localhost"); err != nil {
		t.Errorf("got %v after a reload, want none", err)
	}
	if err := os.Remove(old.Key); err != nil {
		t.Fatal(err)
	}
	shows("next.localhost")
	if err := os.WriteFile(old.Cert, []byte("garbage"), 0o600); err != nil {
		t.Fatal(err)
	}
	shows("next.localhost")
	if !strings.Contains(log.String(), "TLS certificate reloaded") {
		t.Errorf("got the log %s, want a line for the reload", &log)
	}
}

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	a, b := create(t, "a.localhost"), create(t, "b.localhost")
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct{ cert, key, want string }{
		"no certificate": {filepath.Join(dir, "none"), a.Key, "read the TLS certificate"},
		"no key":         {a.Cert, filepath.Join(dir, "none"), "read the TLS key"},
		"a folder":       {dir, a.Key, "not a regular file"},
		"a device":       {"/dev/zero", a.Key, "not a regular file"},
		"empty":          {empty, a.Key, "both must be PEM"},
		"swapped":        {a.Key, a.Cert, "both must be PEM"},
		"another's key":  {a.Cert, b.Key, "key must belong to it"},
	} {
		_, err := Open(Config{CertFile: c.cert, KeyFile: c.key, Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", what, err, c.want)
		}
	}
	if err := os.Chmod(a.Key, 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	open(t, a, &log)
	if !strings.Contains(log.String(), "can read the TLS key") {
		t.Errorf("got the log %q, want a warning about a key that every user can read", &log)
	}
}
