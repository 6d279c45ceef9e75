package egress

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestCredentialsChangeAtRunTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *Config) { c.Credentials = nil })
	client := w.trusting(t, "http", w.ours, w.real)
	url := "https://named.test:" + w.secure + "/"
	ask := func(want string) {
		t.Helper()
		before := len(w.requests())
		// The connection of a program may be closed; it must send the request again.
		status, body, err := get(t, client, url)
		if err != nil {
			status, body, err = get(t, client, url)
		}
		if status != 200 {
			t.Fatalf("got %d %q, %v, want 200", status, body, err)
		}
		list := w.requests()
		if got := strings.Join(list[len(list)-1].auth, "|"); len(list) != before+1 || got != want {
			t.Errorf("carried %q, want %q", got, want)
		}
	}
	set := func(list ...Credential) {
		t.Helper()
		if err := w.SetCredentials(list); err != nil {
			t.Fatal(err)
		}
	}
	cred := Credential{Host: "named.test:" + w.secure, Header: "Authorization", Value: hidden(token)}
	other := Credential{Host: "other.test:" + w.secure, Header: "Authorization", Value: hidden("x")}
	ask("")
	// An open tunnel that is not inspected would continue without the value.
	tunnel := w.tunnel(t, "named.test:"+w.secure)
	set(cred)
	if _, err := tunnel.ReadByte(); err == nil {
		t.Error("an unbrokered tunnel is still open")
	}
	ask(token)
	open := w.Stats().Allowed
	set(cred, other)
	ask(token)
	if got := w.Stats().Allowed; got != open {
		t.Errorf("a connection was cut that nothing has changed for, want %v", open)
	}
	rotated := cred
	rotated.Value = hidden("Bearer new")
	set(rotated)
	ask("Bearer new")
	if err := w.SetCredentials([]Credential{{Host: "*"}}); err == nil {
		t.Error("bad credentials were accepted")
	}
	ask("Bearer new")
	set()
	ask("")
	flows := func() int {
		w.Proxy.mu.Lock()
		defer w.Proxy.mu.Unlock()
		return len(w.flows)
	}
	testenv.Poll(t, "all flows end", func() bool { return flows() == 0 })
	// A late request does not restore a closed flow.
	set(cred)
	f := &flow{host: "named.test", port: far(t, w.secure), secure: true}
	w.attach(f)
	w.detach(f)
	if late := w.attach(f); len(late) != 1 || flows() != 0 {
		t.Errorf("%d flows remain, want none", flows())
	}
}

func far(t *testing.T, port string) int {
	t.Helper()
	n, err := parsePort(port)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRemovalCutsInFlightRequests: a request that waits for its response fails, over
// TLS and over plain HTTP, and is not complete.
func TestRemovalCutsInFlightRequests(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	arrived := make(chan struct{}, 2)
	w.answer = func(_ http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	}
	for _, url := range []string{"https://named.test:" + w.secure, "http://named.test:" + w.plain} {
		done := make(chan error, 1)
		client := w.trusting(t, "http", w.ours)
		go func() {
			status, _, err := get(t, client, url)
			if err == nil {
				err = fmt.Errorf("got status %d", status)
			}
			done <- err
		}()
		<-arrived
		if err := w.SetCredentials(nil); err != nil {
			t.Fatal(err)
		}
		if err := <-done; !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
			t.Errorf("%s: %v, want io.EOF or net.ErrClosed", url, err)
		}
		if err := w.SetCredentials(w.credentials()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestChangesUnderLoad: with concurrent changes, no other host receives the value
// (which newWorld checks at the end) and nothing remains.
func TestChangesUnderLoad(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	stop := make(chan struct{})
	var changing, asking sync.WaitGroup
	changing.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if err := w.SetCredentials(w.credentials()[:i%4]); err != nil {
				t.Error(err)
			}
		}
	})
	for i := range 4 {
		client := w.trusting(t, []string{"http", "socks5h"}[i%2], w.ours, w.real)
		asking.Go(func() {
			for range 10 {
				for _, host := range []string{"https://named.test:" + w.secure, "https://other.test:" + w.secure,
					"http://named.test:" + w.plain, "http://other.test:" + w.plain} {
					// Cut connections are part of it.
					if res, err := client.Get(host); err == nil {
						io.Copy(io.Discard, res.Body)
						res.Body.Close()
					}
				}
			}
		})
	}
	asking.Wait()
	close(stop)
	changing.Wait()
	w.Close()
	if len(w.flows)+len(w.links)+len(w.conns) != 0 || len(w.requests()) == 0 {
		t.Errorf("%d flows, %d links, %d connections remain; %d requests passed, want none and at least 1 request",
			len(w.flows), len(w.links), len(w.conns), len(w.requests()))
	}
}

// TestRulesHoldInsideTunnels: a host that is no longer allowed receives no request,
// although the program's connection to the proxy is still open.
func TestRulesHoldInsideTunnels(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	client := w.trusting(t, "http", w.ours)
	url := "https://named.test:" + w.secure
	if status, body, err := get(t, client, url); status != 200 {
		t.Fatalf("got %d %q, %v, want 200", status, body, err)
	}
	if err := w.Set(sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"other.test"}}); err != nil {
		t.Fatal(err)
	}
	if status, body, err := get(t, client, url); err == nil && status < 400 {
		t.Errorf("got %d %q, want a refusal", status, body)
	}
	if n := len(w.requests()); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
}
