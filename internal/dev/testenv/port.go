package testenv

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// Ports from firstPort on are below the range from which the kernel selects ephemeral ports.
const (
	firstPort = 20000
	ports     = 12000
)

var taken atomic.Int64

// FreePort returns a port of 127.0.0.1 that nothing listens on. Unlike one that the kernel chose,
// no other process gets it by chance before its user listens there.
func FreePort(t testing.TB) int {
	t.Helper()
	for range ports {
		// Concurrent processes begin in different places.
		port := firstPort + int(int64(os.Getpid())*97+taken.Add(1))%ports
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}
