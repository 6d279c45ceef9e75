package outbound

import (
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func (o *outside) setPort(port int, address string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ports[port] = address
}

// listen serves raw connections on a port outside.
func (o *outside) listen(port int, serve func(net.Conn)) {
	o.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() { defer c.Close(); serve(c) })
		}
	})
	o.Cleanup(func() { l.Close(); work.Wait() })
	o.setPort(port, l.Addr().String())
}

// greet serves a protocol in which the server's first message is enough.
func (o *outside) greet(port int, text string) {
	o.listen(port, func(c net.Conn) {
		_, _ = io.WriteString(c, text)
		_ = c.(*net.TCPConn).CloseWrite() // and read the rest: a reset would discard the message
		_, _ = io.Copy(io.Discard, c)
	})
}

// serveWeb serves HTTP, HTTPS, WebSockets, gRPC and the registries of package managers, on ports 80 and 443.
func (o *outside) serveWeb() {
	o.Helper()
	wheel, err := os.ReadFile(testenv.Wheel(o.T, "thing.py", ""))
	if err != nil {
		o.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "web %s", r.Host) })
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) { _ = json.NewEncoder(w).Encode(r.Header) })
	mux.HandleFunc("/ws", serveWebSocket)
	mux.HandleFunc("/simple/thing/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = io.WriteString(w, `<a href="/thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>`)
	})
	mux.HandleFunc("/thing-1.0-py3-none-any.whl", func(w http.ResponseWriter, r *http.Request) { w.Write(wheel) })
	mux.HandleFunc("/npm/thing", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"name":"thing","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"thing","version":"1.0.0",`+
			`"dist":{"tarball":"http://web.ok.test/npm/thing.tgz"}}}}`)
	})
	mux.HandleFunc("/cargo/config.json", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"dl":"http://%s/cargo","api":"http://%s/cargo"}`, r.Host, r.Host)
	})
	mux.HandleFunc("/cargo/api/v1/crates", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"crates":[{"name":"thing","max_version":"1.0.0","description":"a thing"}],"meta":{"total":1}}`)
	})
	mux.HandleFunc("/go/thing.test/thing/@v/list", func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "v1.0.0\n") })
	mux.HandleFunc("/rpc.Service/Call", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		w.Write([]byte("\x00\x00\x00\x00\x05reply"))
		w.Header().Set("Grpc-Status", "0")
	})
	plain, secure := httptest.NewUnstartedServer(mux), httptest.NewUnstartedServer(mux)
	secure.EnableHTTP2 = true
	secure.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
		return o.real.Certificate(hello.ServerName)
	}}
	for _, s := range []*httptest.Server{plain, secure} {
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // some handshakes fail on purpose
	}
	plain.Start()
	secure.StartTLS()
	o.Cleanup(plain.Close)
	o.Cleanup(secure.Close)
	o.setPort(80, plain.Listener.Addr().String())
	o.setPort(443, secure.Listener.Addr().String())
}

// serveWebSocket sends one message.
func serveWebSocket(w http.ResponseWriter, r *http.Request) {
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n"+
		"\x81\x07message\x88\x00", base64.StdEncoding.EncodeToString(sum[:]))
	_, _ = io.Copy(io.Discard, c) // until the client closes
}

// serveProtocols serves protocols other than HTTP.
func (o *outside) serveProtocols() {
	o.listen(7, func(c net.Conn) { _, _ = io.Copy(c, c) })
	o.greet(22, "not ssh\r\n")
	o.greet(873, "@RSYNCD: 30.0\n@ERROR: no such module here\n")
	// An error packet: its length, number and code, and the state.
	o.greet(3306, "\x19\x00\x00\x00\xff\x10\x04#08004Too many clients")
	o.listen(5432, func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 8)); _, _ = io.WriteString(c, "N") })
	o.listen(6379, func(c net.Conn) {
		for buf := make([]byte, 512); ; {
			if n, err := c.Read(buf); n == 0 || err != nil {
				return
			}
			_, _ = io.WriteString(c, "+PONG\r\n")
		}
	})
}

// trust makes the authority of the servers available inside, and returns the assignments with which programs trust it.
func (o *outside) trust() string {
	o.Helper()
	const path = "/tmp/authority.pem"
	o.must("cat >" + path + " <<'E'\n" + string(o.real.PEM()) + "E\n")
	var env []string
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT",
		"CARGO_HTTP_CAINFO"} {
		env = append(env, name+"="+path)
	}
	return strings.Join(env, " ")
}
