package egress

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const token = "Bearer tok-5f1c9e77a0"

// hidden is a value for tests.
type hidden string

func (h hidden) Reveal() string { return string(h) }
func (hidden) String() string   { return "[hidden]" }

func newAuthority(t *testing.T) *certificate.Authority {
	t.Helper()
	a, err := certificate.OpenAuthority(filepath.Join(t.TempDir(), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request is a request that a server outside received.
type request struct {
	host, path, body string
	auth             []string
	header, trailer  http.Header
}

// world is servers outside, and a sandbox's proxy with a credential for
// named.test.
type world struct {
	*rig
	real, ours *certificate.Authority // of the hosts themselves, and of the hub
	log        safeBuffer

	mu   sync.Mutex
	seen []request
	// Set before the first request: answer is called when the request has been read,
	// stream reads it itself.
	answer, stream http.HandlerFunc

	secure, plain string // ports
}

type safeBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func newWorld(t *testing.T, change ...func(*Config)) *world {
	t.Helper()
	w := &world{real: newAuthority(t), ours: newAuthority(t)}
	secure := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	secure.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return w.real.Certificate(hello.ServerName)
	}}
	quiet(secure)
	secure.StartTLS()
	plain := httptest.NewUnstartedServer(http.HandlerFunc(w.serve))
	quiet(plain)
	plain.Start()
	t.Cleanup(secure.Close)
	t.Cleanup(plain.Close)
	w.secure, w.plain = port(t, secure.URL), port(t, plain.URL)
	cfg := Config{
		Network: open, Private: loopback, Authority: w.ours, Roots: w.real.Pool(), Credentials: w.credentials(),
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&cfg)
	}
	t.Cleanup(func() { w.secretStaysSecret(t) })
	w.rig = newRig(t, cfg)
	for _, name := range []string{"named.test", "other.test", "sub.named.test", "notnamed.test"} {
		w.names[name] = []string{"127.0.0.1"}
	}
	return w
}

// quiet drops messages about handshakes that fail on purpose.
func quiet(s *httptest.Server) {
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
}

func (w *world) credentials() []Credential {
	return []Credential{
		{Host: "named.test:" + w.secure, Header: "authorization", Value: hidden(token)},
		{Host: "named.test:" + w.secure, Header: "X-Api-Key", Value: hidden("key-5f1c9e77a0")},
		{Host: "named.test:" + w.plain, Header: "Authorization", Value: hidden(token), Insecure: true},
	}
}

func (w *world) serve(rw http.ResponseWriter, r *http.Request) {
	if w.stream != nil {
		w.stream(rw, r)
		return
	}
	body, _ := io.ReadAll(r.Body)
	w.mu.Lock()
	w.seen = append(w.seen, request{r.Host, r.URL.Path, string(body), r.Header.Values("Authorization"), r.Header.Clone(), r.Trailer.Clone()})
	w.mu.Unlock()
	if w.answer != nil {
		w.answer(rw, r)
		return
	}
	io.WriteString(rw, "fine")
}

func (w *world) requests() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

// secretStaysSecret checks all output of the proxy.
func (w *world) secretStaysSecret(t *testing.T) {
	all := w.log.String() + fmt.Sprintf("%+v %+v %+v", w.Records(), w.Stats(), w.credentials())
	if strings.Contains(all, "5f1c9e77a0") {
		t.Errorf("the output contains the value: %s, want it without \"5f1c9e77a0\"", all)
	}
	for _, r := range w.requests() {
		named := r.host == "named.test:"+w.secure || r.host == "named.test:"+w.plain
		if !named && strings.Contains(fmt.Sprint(r.header), "5f1c9e77a0") {
			t.Errorf("the value went to %s", r.host)
		}
	}
}

// trusting is a program in the sandbox that trusts some authorities.
func (w *world) trusting(t *testing.T, scheme string, who ...*certificate.Authority) *http.Client {
	c := w.client(t, scheme)
	pool := x509.NewCertPool()
	for _, a := range who {
		pool.AppendCertsFromPEM(a.PEM())
	}
	c.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: pool}
	return c
}

// dialogue sends bytes through a tunnel and returns the statuses of the responses.
func (w *world) dialogue(t *testing.T, to string, cfg *tls.Config, send string) (statuses []int, text string) {
	t.Helper()
	c := w.tunnel(t, to)
	defer c.Conn.Close()
	c.Conn.SetDeadline(time.Now().Add(time.Minute)) // rather than hang when an answer is missing
	var rw io.ReadWriter = direct{c}
	if cfg != nil {
		secured := tls.Client(direct{c}, cfg)
		if err := secured.Handshake(); err != nil {
			return nil, err.Error()
		}
		rw = secured
	}
	rw.Write([]byte(send))
	all := bufio.NewReader(rw)
	for {
		res, err := http.ReadResponse(all, nil)
		if err != nil {
			return statuses, text
		}
		b, err := io.ReadAll(res.Body)
		statuses, text = append(statuses, res.StatusCode), text+string(b)
		if err != nil || res.Close {
			return statuses, text
		}
	}
}

// direct writes without waiting for a flush.
type direct struct{ pipe }

func (d direct) Write(b []byte) (int, error) { return d.Conn.Write(b) }

// raw sends one request to the proxy unmodified.
func (w *world) raw(t *testing.T, send string) (int, string) {
	t.Helper()
	c, err := net.Dial("unix", w.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, send)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, err.Error()
	}
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}
