package socks

import (
	"bytes"
	"net"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestClientAndServer(t *testing.T) {
	t.Parallel()
	for _, host := range []string{"example.com", "192.0.2.1", "2001:db8::1"} {
		client, server := net.Pipe()
		done := make(chan string, 1)
		go func() {
			defer server.Close()
			first := make([]byte, 1)
			server.Read(first)
			target, port, err := Accept(server)
			if err != nil || port != 443 {
				done <- "port or error is wrong"
				return
			}
			Answer(server, OK)
			done <- target
		}()
		err := Connect(client, host, 443, "", "")
		if got := <-done; err != nil || got != host {
			t.Errorf("got %q and error %v, want %q", got, err, host)
		}
		client.Close()
	}
}

func TestRefusalContainsTheReason(t *testing.T) {
	t.Parallel()
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		defer server.Close()
		server.Read(make([]byte, 1))
		if _, _, err := Accept(server); err == nil {
			Answer(server, Denied)
		}
	}()
	if err := Connect(client, "example.com", 80, "", ""); err == nil || err.Error() != "the SOCKS server refused the connection: not allowed" {
		t.Errorf("got %v, want the refusal", err)
	}
}

func FuzzSocksRequest(f *testing.F) {
	f.Add([]byte{5, 1, 0, 1, 127, 0, 0, 1, 0, 80})
	f.Add([]byte{5, 1, 0, 3, 3, 'a', '.', 'b', 0, 80})
	f.Add([]byte{5, 1, 0, 4})
	f.Fuzz(func(t *testing.T, b []byte) {
		target, port, _, err := readRequest(bytes.NewReader(b))
		if err == nil && (port < 0 || port > 65535 || len(target) > 255) {
			t.Errorf("got %q and port %d, want a short name and a valid port", target, port)
		}
	})
}
