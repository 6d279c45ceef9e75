// Package socket connects the hub and a sandbox through the Unix sockets in a folder of the sandbox:
//
//	control          connects to TCP ports and to a server inside, through init
//	run/aio.sock     the server of the sandbox, if the hub has created its socket
//	out/egress.sock  outgoing connections
//
// The folders run and out are visible inside and read-only there, so that programs inside cannot replace a socket. They
// are in a tmpfs, not on the filesystem of the disks. A server that creates its socket uses a folder that exists only
// inside, and is reached through init. Data of the sandbox is not trusted.
package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

// Paths inside sandboxes.
const (
	serverDir  = "/run/aio"
	egressDir  = "/run/cove"
	ServerPath = control.ServerSocket
	EgressPath = egressDir + "/" + egressName
)

// Names in the folder of a sandbox.
const (
	controlName = "control"
	runName     = "run"
	outName     = "out"
	serverName  = "aio.sock"
	egressName  = "egress.sock"
)

func serverFolder(dir string) string { return filepath.Join(dir, runName) }

// ServerSocket returns the path of the server's socket, if the hub has created it.
func ServerSocket(dir string) string { return filepath.Join(dir, runName, serverName) }

func egressFolder(dir string) string { return filepath.Join(dir, outName) }

// serverDirSize bounds the folder of a server that creates its socket, in bytes.
const serverDirSize = 1 << 20

// Show makes the folders visible inside.
func Show(dir string, cfg *isolate.Config) {
	if cfg.Listen != nil {
		cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: serverFolder(dir)}, Target: serverDir, ReadOnly: true})
	} else {
		cfg.Tmpfs = append(cfg.Tmpfs, isolate.Tmpfs{Target: serverDir, Mode: 0o755, Size: serverDirSize,
			UID: cfg.Process.UID, GID: cfg.Process.GID})
	}
	cfg.Binds = append(cfg.Binds, isolate.Bind{Source: isolate.Dir{Path: egressFolder(dir)}, Target: egressDir, ReadOnly: true})
}

// MakeFolders creates the folders of a sandbox. All users inside can enter the visible ones, independently of the umask.
func MakeFolders(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, d := range []string{serverFolder(dir), egressFolder(dir)} {
		err := os.Mkdir(d, 0o755)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err = errors.Join(err, os.Chmod(d, 0o755)); err != nil {
			return err
		}
	}
	return nil
}

// Listen creates the sockets of a starting sandbox: the control socket and, if wanted, the socket of its server.
func Listen(dir string, wantServer bool) (control, server *os.File, err error) {
	if err := MakeFolders(dir); err != nil {
		return nil, nil, err
	}
	run, err := os.Open(serverFolder(dir))
	if err != nil {
		return nil, nil, err
	}
	defer run.Close()
	if err := os.Remove(ServerSocket(dir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	own, err := os.Open(dir)
	if err != nil {
		return nil, nil, err
	}
	defer own.Close()
	if control, err = listen(own, controlName); err != nil || !wantServer {
		return control, nil, err
	}
	if server, err = listen(run, serverName); err != nil {
		return nil, nil, errors.Join(err, control.Close())
	}
	return control, server, nil
}

func listen(dir *os.File, name string) (*os.File, error) {
	l, err := unixsocket.Listen(dir, name, 0o600)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.File()
}

// ListenEgress creates the socket for outgoing connections of a sandbox. The folders must exist. Only the init of
// the sandbox, whose PID is given, may pass connections of programs.
func ListenEgress(dir string, init func() int) (net.Listener, error) {
	out, err := os.Open(egressFolder(dir))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	// All users inside may use it. Outside, the parent folders are private.
	l, err := unixsocket.Listen(out, egressName, 0o666)
	if err != nil {
		return nil, err
	}
	return &egressListener{l, init}, nil
}

// Save makes the init of a sandbox write its processes to a folder; see control.Save.
func Save(ctx context.Context, dir, image string) error {
	own, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer own.Close()
	to, err := os.Open(image)
	if err != nil {
		return err
	}
	defer to.Close()
	return control.Save(ctx, own, controlName, to)
}

// Freeze makes the init of a sandbox suspend or continue its processes; see control.Freeze.
func Freeze(ctx context.Context, dir string, on bool) error {
	own, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer own.Close()
	return control.Freeze(ctx, own, controlName, on)
}

// Dialer connects to sandboxes. The zero value is ready to use.
type Dialer struct{ idle idle }

// Close closes idle connections.
func (d *Dialer) Close() { d.idle.close() }

// Endpoint returns the address of a TCP port of a sandbox, or of its server if port is 0.
func (d *Dialer) Endpoint(dir string, sb sandbox.Sandbox, port int) sandbox.Endpoint {
	if port == 0 {
		port = sb.Spec.Server.Port
	}
	inside := func(ctx context.Context) (net.Conn, error) {
		own, err := os.Open(dir)
		if err != nil {
			return nil, err
		}
		defer own.Close()
		return control.Dial(ctx, own, controlName, port)
	}
	if port != 0 {
		return sandbox.Endpoint{Address: fmt.Sprintf("%s port %d", sb.ID, port), Dial: inside}
	}
	return sandbox.Endpoint{Address: "unix:" + ServerSocket(dir), Dial: func(ctx context.Context) (net.Conn, error) {
		if c := d.idle.take(sb.ID); c != nil {
			return c, nil
		}
		if !tree.Exists(ServerSocket(dir)) {
			return inside(ctx)
		}
		run, err := os.Open(serverFolder(dir))
		if err != nil {
			return nil, err
		}
		defer run.Close()
		c, err := unixsocket.Dial(ctx, run, serverName)
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return c, nil
	}}
}
