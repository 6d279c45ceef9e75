package app

import (
	"net/http"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
)

func TestSelectProxy(t *testing.T) {
	if selectProxy(config.Aio{Outlet: "127.0.0.1:8118"}) != nil {
		t.Error("got a proxy although none is configured, want nil")
	}
	for _, cfg := range []config.Aio{{ProxyServer: "proxy:3128"}, {Egress: "unix:/x"}, {ProxyMap: "a.example=1"}} {
		cfg.Outlet = "127.0.0.1:8118"
		for url, want := range map[string]string{
			"http://a.example/": "http://127.0.0.1:8118", "http://localhost:1/": "", "http://x.localhost/": "",
			"https://127.0.0.2/": "", "http://[::1]/": "",
		} {
			r, err := http.NewRequest("GET", url, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := selectProxy(cfg)(r)
			if err != nil || got == nil && want != "" || got != nil && got.String() != want {
				t.Errorf("%s: got %v and error %v, want %q", url, got, err, want)
			}
		}
	}
}
