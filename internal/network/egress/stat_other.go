//go:build !linux

package egress

import "net"

// progress is unknown on this system: a tunnel counts when it has ended.
func progress(net.Conn) (sent, received int64) { return 0, 0 }
