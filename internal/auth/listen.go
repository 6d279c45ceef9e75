package auth

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
)

// CheckListen rejects an address that is not private if no credential is configured, unless
// insecure is set.
func CheckListen(listen string, c Config, insecure bool) error {
	if c.HasCredentials() || insecure || Private(listen) {
		return nil
	}
	names := c.Variables
	if len(names) == 0 {
		names = []string{"JWT_PUBLIC_KEY", "AUTH_TOKEN", "AIO_API_KEY", "SANDBOX_API_KEY"}
	}
	return fmt.Errorf("cannot listen on %s: other machines can reach it and authentication is not configured; "+
		"set one of %s, listen on 127.0.0.1, or pass --insecure to allow access without authentication",
		listen, strings.Join(names, ", "))
}

// Private reports whether only this machine can reach the address: a Unix socket, a loopback
// address or localhost. Other names are not private, because they would have to be resolved.
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
