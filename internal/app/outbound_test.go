package app

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
)

func TestOutboundProxy(t *testing.T) {
	if outbound(config.Aio{}) != nil {
		t.Error("a proxy without one configured")
	}
	cfg := config.Aio{ProxyServer: "proxy:3128", ProxyExclude: []string{"internal.example", "*.local"}}
	for url, want := range map[string]string{
		"http://a.example/": "http://proxy:3128", "https://internal.example/": "", "http://x.internal.example/": "", "http://b.local/": "",
	} {
		r, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := outbound(cfg)(r)
		if err != nil {
			t.Fatal(err)
		}
		if got == nil && want != "" || got != nil && got.String() != want {
			t.Errorf("%s: %v, want %s", url, got, want)
		}
	}
	cfg = config.Aio{ProxyServer: "http://proxy:1", ProxyInclude: []string{"only.example"}}
	r, _ := http.NewRequest("GET", "http://other.example", nil)
	if got, _ := outbound(cfg)(r); got != nil {
		t.Error("a host that is not included uses the proxy")
	}
}

func TestOwnAddress(t *testing.T) {
	deny := ownAddress(config.Aio{Listen: "127.0.0.1:8080"})
	for addr, want := range map[string]bool{"127.0.0.1:8080": true, "127.0.0.5:8080": true, "[::1]:8080": true, "0.0.0.0:8080": true, "127.0.0.1:3000": false, "93.184.216.34:8080": false} {
		if got := deny(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
	if ownAddress(config.Aio{Listen: "unix:/x"})(netip.MustParseAddrPort("127.0.0.1:80")) {
		t.Error("a socket has no port")
	}
}
