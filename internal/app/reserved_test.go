package app

import (
	"net/netip"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
)

func TestIsOwnAddress(t *testing.T) {
	deny := isOwnAddress("127.0.0.1:8080")
	for addr, want := range map[string]bool{"127.0.0.1:8080": true, "127.0.0.5:8080": true, "[::1]:8080": true,
		"0.0.0.0:8080": true, "127.0.0.1:3000": false, "93.184.216.34:8080": false} {
		if got := deny(netip.MustParseAddrPort(addr)); got != want {
			t.Errorf("%s: got %v, want %v", addr, got, want)
		}
	}
	if isOwnAddress("unix:/x")(netip.MustParseAddrPort("127.0.0.1:80")) {
		t.Error("got a match for a Unix socket, which has no port")
	}
}

func TestIsReservedPort(t *testing.T) {
	c := config.Aio{Listen: "127.0.0.1:8080", Outlet: "127.0.0.1:3128", Door: "127.0.0.1:61080/word"}
	browser := func() []int { return []int{9222} }
	for port, want := range map[int]bool{8080: true, 9222: true, 3128: true, 61080: true, 3000: false} {
		if got := isReservedPort(c, browser)(port); got != want {
			t.Errorf("port %d: got %v, want %v", port, got, want)
		}
	}
	if c.Listen = ":80"; !isReservedPort(c)(80) {
		t.Error("port 80 of all addresses: got false, want true")
	}
}
