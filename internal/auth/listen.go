package auth

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// CheckListen refuses an address that others can reach while nothing is
// configured to sign in with, unless the operator insists.
func CheckListen(listen string, c Config, insecure bool) error {
	if c.HasCredentials() || insecure || Private(listen) {
		return nil
	}
	names := c.Variables
	if len(names) == 0 {
		names = []string{"JWT_PUBLIC_KEY", "AUTH_TOKEN", "AIO_API_KEY"}
	}
	return fmt.Errorf("refuse to listen on %s: others can reach it and no sign-in is configured; set one of %s, listen on 127.0.0.1, or pass --insecure to let everybody in",
		listen, strings.Join(names, ", "))
}

// Private reports whether only this machine can reach the address: a unix socket, a
// loopback address or localhost. A name that would have to be looked up is not private.
func Private(listen string) bool {
	if strings.HasPrefix(listen, "unix:") {
		return true
	}
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	return strings.EqualFold(host, "localhost")
}
