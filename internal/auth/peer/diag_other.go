//go:build !linux

package peer

import (
	"errors"
	"net"
)

// User finds nobody: this system has no such table.
func User(net.Conn) (int, error) { return 0, errors.ErrUnsupported }

// Server finds nobody, either.
func Server(net.Conn) (int, error) { return 0, errors.ErrUnsupported }
