package kernel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Port numbers of a kernel, relative to its first. On ipc sockets they end the file names.
const (
	shellPort = iota + 1
	iopubPort
	stdinPort
	controlPort
	heartPort
)

const (
	// maxSocketPath is the maximum path length of a Unix socket.
	maxSocketPath = 107
	// maxFirst limits the ports, so that the paths of sockets stay short.
	maxFirst = 1000
	// dialEvery is the pause between attempts to connect to a starting kernel.
	dialEvery = 5 * time.Millisecond
)

// connection is the private folder of a kernel and the shared secret.
type connection struct {
	dir string
	key []byte
	// first is the offset of the ports. It differs between kernels, because other Jupyter
	// clients detect a replaced kernel by its ports.
	first int
}

// newConnection creates the folder and the connection file below base.
func newConnection(base, kernelName string) (*connection, error) {
	dir, err := os.MkdirTemp(base, "kernel-") // mode 0700
	if err != nil {
		return nil, fmt.Errorf("create the kernel's folder: %w", err)
	}
	p := &connection{dir: dir, key: []byte(rand.Text() + rand.Text()), first: 10 * mathrand.IntN(maxFirst)}
	if err := p.write(kernelName); err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

func (p *connection) write(kernelName string) error {
	if path := p.socket(heartPort); len(path) > maxSocketPath {
		return fmt.Errorf("socket path %q is longer than %d bytes; choose a folder with a shorter path", path, maxSocketPath)
	}
	b, err := json.Marshal(map[string]any{
		"transport": "ipc", "ip": filepath.Join(p.dir, "k"),
		"shell_port": p.first + shellPort, "iopub_port": p.first + iopubPort, "stdin_port": p.first + stdinPort,
		"control_port": p.first + controlPort, "hb_port": p.first + heartPort,
		"key": string(p.key), "signature_scheme": "hmac-sha256", "kernel_name": kernelName,
	})
	if err != nil {
		return fmt.Errorf("encode the connection file: %w", err)
	}
	if err := os.WriteFile(p.file(), b, 0o600); err != nil {
		return fmt.Errorf("write the connection file: %w", err)
	}
	return nil
}

func (p *connection) file() string { return filepath.Join(p.dir, "connection.json") }

// socket returns the path of a socket. Kernels that name it otherwise are found by otherSocket.
func (p *connection) socket(port int) string {
	return filepath.Join(p.dir, "k-"+strconv.Itoa(p.first+port))
}

// otherSocket returns the path at which kernels listen that treat ipc addresses as those of TCP, such as R's.
func (p *connection) otherSocket(port int) string {
	return filepath.Join(p.dir, "k:"+strconv.Itoa(p.first+port))
}

func (p *connection) remove() { os.RemoveAll(p.dir) }

// channels are the connections to a kernel.
type channels struct {
	shell, iopub, stdin, control, heart *socket
}

// connect connects to all sockets of a kernel, which may not exist yet. It stops when ctx
// ends or the process exits.
func (p *connection) connect(ctx context.Context, exited <-chan struct{}) (c channels, err error) {
	var id [16]byte
	rand.Read(id[:])
	// The kernel sends stdin messages to the identity of the shell socket.
	identity := hex.EncodeToString(id[:])
	for _, s := range []struct {
		to   **socket
		port int
		kind string
		name string
	}{
		{&c.iopub, iopubPort, "SUB", ""},
		{&c.shell, shellPort, "DEALER", identity},
		{&c.stdin, stdinPort, "DEALER", identity},
		{&c.control, controlPort, "DEALER", identity},
		{&c.heart, heartPort, "REQ", ""},
	} {
		if *s.to, err = p.dialUntil(ctx, exited, s.port, s.kind, s.name); err != nil {
			c.close()
			return channels{}, err
		}
	}
	return c, nil
}

func (p *connection) dialUntil(ctx context.Context, exited <-chan struct{}, port int, kind, identity string) (*socket, error) {
	pause := time.NewTicker(dialEvery)
	defer pause.Stop()
	for {
		for _, path := range []string{p.socket(port), p.otherSocket(port)} {
			if s, err := dial(ctx, path, kind, identity); err == nil {
				return s, nil
			}
		}
		select {
		case <-exited:
			return nil, errors.New("the kernel exited before it was ready")
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the kernel's sockets: %w", context.Cause(ctx))
		case <-pause.C:
		}
	}
}

func (c channels) close() {
	for _, s := range []*socket{c.shell, c.iopub, c.stdin, c.control, c.heart} {
		if s != nil {
			s.close()
		}
	}
}
