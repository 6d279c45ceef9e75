//go:build !linux

package peer

import (
	"errors"
	"net"
)

// User is not supported on this system.
func User(net.Conn) (int, error) { return 0, errors.ErrUnsupported }

// Server is not supported on this system.
func Server(net.Conn) (int, error) { return 0, errors.ErrUnsupported }
