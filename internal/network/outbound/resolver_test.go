package outbound

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/socks"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// newResolver allows the names below ok.test, and counts lookups.
func newResolver() (*Resolver, *[]string) {
	var mu sync.Mutex
	asked := &[]string{}
	return &Resolver{Names: &Names{}, Lookup: func(_ context.Context, name string) error {
		mu.Lock()
		defer mu.Unlock()
		*asked = append(*asked, name)
		switch {
		case strings.HasSuffix(name, "ok.test"):
			return nil
		case strings.HasPrefix(name, "slow."):
			return &RefusedError{socks.TTLExpired}
		case strings.HasPrefix(name, "away."):
			return errors.New("the hub does not respond")
		case strings.HasPrefix(name, "absent."):
			return &RefusedError{socks.HostUnreachable}
		}
		return &RefusedError{socks.Denied}
	}}, asked
}

func query(t testing.TB, name string, kind dnsmessage.Type, class dnsmessage.Class) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: class}}}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// describe returns the code and the answers of a response.
func describe(t testing.TB, reply []byte) string {
	t.Helper()
	var m dnsmessage.Message
	if err := m.Unpack(reply); err != nil {
		t.Fatal(err)
	}
	if m.ID != 7 || !m.Response {
		t.Errorf("got header %+v", m.Header)
	}
	out := fmt.Sprint(int(m.RCode))
	for _, a := range m.Answers {
		switch body := a.Body.(type) {
		case *dnsmessage.AResource:
			out += " " + netip.AddrFrom4(body.A).String()
		case *dnsmessage.AAAAResource:
			out += " " + netip.AddrFrom16(body.AAAA).String()
		case *dnsmessage.PTRResource:
			out += " " + body.PTR.String()
		}
	}
	return out
}

func TestAnswers(t *testing.T) {
	const noError, formatError, serverFailure, nameError, notImplemented, refused = "0", "1", "2", "3", "4", "5"
	const in = dnsmessage.ClassINET
	r, asked := newResolver()
	for _, c := range []struct {
		name  string
		kind  dnsmessage.Type
		class dnsmessage.Class
		want  string
		asks  bool
	}{
		{"a.ok.test.", dnsmessage.TypeA, in, noError + " 198.18.0.1", true},
		{"B.Ok.Test.", dnsmessage.TypeA, in, noError + " 198.18.0.2", true},
		{"a.ok.test.", dnsmessage.TypeA, in, noError + " 198.18.0.1", true}, // the rules may have changed
		{"a.ok.test.", dnsmessage.TypeAAAA, in, noError, true},
		{"a.ok.test.", 65, in, noError, false}, // HTTPS
		{"a.ok.test.", 64, in, noError, false}, // SVCB
		{"a.ok.test.", dnsmessage.TypeMX, in, noError, false},
		{"a.ok.test.", dnsmessage.TypeALL, in, noError, false},
		{"c2VjcmV0.tunnel.test.", dnsmessage.TypeTXT, in, noError, false},
		{"c2VjcmV0.tunnel.test.", 10, in, noError, false}, // NULL
		{"bad.test.", dnsmessage.TypeA, in, nameError, true},
		{"bad.test.", dnsmessage.TypeAAAA, in, nameError, true},
		{"absent.test.", dnsmessage.TypeA, in, nameError, true},
		{"slow.test.", dnsmessage.TypeA, in, serverFailure, true},
		{"away.test.", dnsmessage.TypeA, in, serverFailure, true},
		{".", dnsmessage.TypeA, in, nameError, false},
		{"localhost.", dnsmessage.TypeA, in, noError + " 127.0.0.1", false},
		{"x.localhost.", dnsmessage.TypeAAAA, in, noError + " ::1", false},
		{"localhost.", dnsmessage.TypeTXT, in, noError, false},
		{"2.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, in, noError + " b.ok.test.", false},
		{"9.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, in, nameError, false},
		{"8.8.8.8.in-addr.arpa.", dnsmessage.TypePTR, in, nameError, false},
		{"x.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, in, nameError, false},
		{"8.b.d.0.1.0.0.2.ip6.arpa.", dnsmessage.TypePTR, in, nameError, false},
		{"version.bind.", dnsmessage.TypeTXT, dnsmessage.ClassCHAOS, refused, false},
	} {
		before := len(*asked)
		if got := describe(t, r.Answer(t.Context(), query(t, c.name, c.kind, c.class))); got != c.want {
			t.Errorf("%s %v: got %q, want %q", c.name, c.kind, got, c.want)
		}
		if asks := len(*asked) > before; asks != c.asks {
			t.Errorf("%s %v: got asked %v, want %v", c.name, c.kind, asks, c.asks)
		}
	}
	update := query(t, "a.ok.test.", dnsmessage.TypeA, in)
	update[2] = 5 << 3
	if got := describe(t, r.Answer(t.Context(), update)); got != notImplemented {
		t.Errorf("update: got %q, want %q", got, notImplemented)
	}
	two := query(t, "a.ok.test.", dnsmessage.TypeA, in)
	two[5] = 2
	if got := describe(t, r.Answer(t.Context(), two)); got != formatError {
		t.Errorf("two questions: got %q, want %q", got, formatError)
	}
	response := query(t, "a.ok.test.", dnsmessage.TypeA, in)
	response[2] |= 0x80
	if got := r.Answer(t.Context(), response); got != nil {
		t.Errorf("a response: got %q, want no reply", got)
	}
	if got := r.Answer(t.Context(), response[:7]); got != nil {
		t.Errorf("a truncated query: got %q, want no reply", got)
	}
}

// TestServe queries over UDP and TCP with Go's resolver.
func TestServe(t *testing.T) {
	r, _ := newResolver()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	streams, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var work sync.WaitGroup
	work.Go(func() { r.ServePackets(t.Context(), packets) })
	work.Go(func() { r.ServeStreams(t.Context(), streams) })
	t.Cleanup(func() { packets.Close(); streams.Close(); work.Wait() })
	for network, addr := range map[string]string{"udp": packets.LocalAddr().String(), "tcp": streams.Addr().String()} {
		client := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}}
		ips, err := client.LookupNetIP(t.Context(), "ip", "a.ok.test.")
		if err != nil || len(ips) != 1 || ips[0] != netip.MustParseAddr("198.18.0.1") {
			t.Errorf("%s: got %v, %v, want 198.18.0.1", network, ips, err)
		}
		_, err = client.LookupNetIP(t.Context(), "ip", "bad.test.")
		if e, ok := errors.AsType[*net.DNSError](err); !ok || !e.IsNotFound {
			t.Errorf("%s: got %v, want a name that does not exist", network, err)
		}
	}
}

// TestNamesAreBounded: an evicted name has no address, and its address represents no other name.
func TestNamesAreBounded(t *testing.T) {
	var n Names
	first := n.Address("first.test")
	kept := n.Address("kept.test")
	seen := map[netip.Addr]bool{first: true, kept: true}
	for i := range 10 * maxNames {
		n.Address("kept.test")
		a := n.Address(fmt.Sprintf("%d.test", i))
		if seen[a] || !Synthetic(a) {
			t.Fatalf("name %d got the address %v, which was used or is not synthetic", i, a)
		}
		seen[a] = true
	}
	if name, ok := n.Name(first); ok {
		t.Errorf("an evicted name: got %q, want none", name)
	}
	if name, _ := n.Name(kept); name != "kept.test" {
		t.Errorf("a used name: got %q, want kept.test", name)
	}
	if len(n.byName) > maxNames || len(n.byAddr) > maxNames || n.recent.Len() > maxNames {
		t.Errorf("got %d names, want at most %d", len(n.byName), maxNames)
	}
	for range 2 * addressCount {
		a := n.Address(fmt.Sprint(n.last))
		if !Synthetic(a) || a == netip.MustParseAddr("198.18.0.0") || a == netip.MustParseAddr("198.19.255.255") {
			t.Fatalf("got %v", a)
		}
	}
}

func TestRequest(t *testing.T) {
	for _, want := range []Request{
		{Connect, "a.test", 65535, "curl"}, {Lookup, strings.Repeat("x", 255), 0, ""}, {Connect, "2001:db8::1", 1, strings.Repeat("p", 255)},
	} {
		b, err := want.marshal()
		if err != nil || b[0] != Magic {
			t.Fatal(b, err)
		}
		r := bytes.NewReader(append(b[1:], "next"...))
		got, err := Read(r)
		rest, _ := io.ReadAll(r)
		if err != nil || got != want || string(rest) != "next" {
			t.Errorf("got %+v, %v and %q, want %+v and the next bytes", got, err, rest, want)
		}
		for n := range len(b) - 1 {
			if _, err := Read(bytes.NewReader(b[1 : n+1])); err == nil {
				t.Errorf("%d bytes: got no error", n)
			}
		}
	}
	for _, bad := range []Request{{Kind: Connect}, {Kind: Lookup, Host: strings.Repeat("x", 256)}} {
		if _, err := bad.marshal(); err == nil {
			t.Errorf("%+v: got no error", bad)
		}
	}
	for _, b := range []string{"\x00\x00\x01\x01a\x00", "\x04\x00\x01\x01a\x00", "\x01\x00\x01\x00\x00"} {
		if r, err := Read(strings.NewReader(b)); err == nil {
			t.Errorf("%q: got %+v, want an error", b, r)
		}
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(query(f, "a.ok.test.", dnsmessage.TypeA, dnsmessage.ClassINET))
	f.Add(query(f, "1.0.18.198.in-addr.arpa.", dnsmessage.TypePTR, dnsmessage.ClassINET))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, _ := newResolver()
		reply := r.Answer(t.Context(), b)
		if reply == nil {
			return
		}
		var m dnsmessage.Message
		if err := m.Unpack(reply); err != nil || !m.Response || len(m.Answers) > 1 || len(reply) > len(b)+2*255+64 {
			t.Errorf("%q: got the response %+v, %v", b, m, err)
		}
	})
}
