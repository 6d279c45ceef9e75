package containerinit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/entrance"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

// InstallVerb is the verb that copies the programs in this program's folder to another folder.
const InstallVerb = "install"

// The files in HubDir with the identity of a container with a tunnel.
const (
	CertName = "tls.crt"
	KeyName  = "tls.key"
)

// Egress is the socket for outgoing connections of a container with a tunnel.
const Egress = ControlDir + "/" + EgressName

// Tunnel is the endpoint for the hub.
type Tunnel struct {
	Listen string `json:"listen"` // host:port
	Hub    string `json:"hub"`    // the pin of its key
	// Ready is a host:port that is open while the server is ready. Its connections are closed
	// without data, so a client learns nothing else.
	Ready string `json:"ready,omitempty"`

	server *entrance.Entrance
	open   func(context.Context) (net.Conn, error) // an outgoing connection
}

// serve serves the hub, and the outgoing connections of programs inside.
func (t *Tunnel) serve(d *diskService, fill func(io.Reader) error) error {
	cfg := tunnel.ServerConfig{Hub: t.Hub, Dial: t.dial,
		Stats: func() []byte { return readUsage(cgroupDir).encode() }, Save: d.save, Fill: fill, Suspend: d.suspend}
	var err error
	if cfg.Cert, err = os.ReadFile(filepath.Join(HubDir, CertName)); err != nil {
		return err
	}
	if cfg.Key, err = os.ReadFile(filepath.Join(HubDir, KeyName)); err != nil {
		return err
	}
	s, err := tunnel.NewServer(cfg)
	if err != nil {
		return err
	}
	dir, err := os.Open(ControlDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	out, err := unixsocket.Listen(dir, EgressName, 0o666)
	if err != nil {
		return err
	}
	in, err := net.Listen("tcp", t.Listen)
	if err != nil {
		return errors.Join(err, out.Close())
	}
	t.open = s.Open
	go s.ServeOutgoing(out)
	go s.Serve(in)
	return nil
}

// dial connects to a port on either loopback address, because servers differ, or to the
// server if port is 0.
func (t *Tunnel) dial(ctx context.Context, port int) (net.Conn, error) {
	var d net.Dialer
	if port == 0 {
		c, err := t.server.Dial(ctx)
		if err != nil {
			return nil, err // not a nil pointer in an interface
		}
		return c, nil
	}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		if six, second := d.DialContext(ctx, "tcp", net.JoinHostPort("::1", strconv.Itoa(port))); second == nil {
			return six, nil
		}
	}
	return c, err
}

// Intervals of the readiness probe: until the server is ready, and afterwards.
const (
	startTick = 500 * time.Millisecond
	readyTick = 10 * time.Second
)

// showReady keeps a port open while the server is ready, until ctx ends. For a node this probe costs
// nothing, unlike a program that it starts in the container every time.
func (t *Tunnel) showReady(ctx context.Context, p Probe, start, ready time.Duration) {
	var l net.Listener
	var work sync.WaitGroup
	defer work.Wait()
	for {
		pause := start
		err := p.send(t.dial)
		if err == nil && l == nil {
			if l, err = net.Listen("tcp", t.Ready); err == nil { // otherwise the port is in use, and may be free later
				open := l
				work.Go(func() { closeAll(open) })
			}
		} else if err != nil && l != nil {
			l.Close()
			l = nil
		}
		if l != nil {
			pause = ready
		}
		select {
		case <-ctx.Done():
			if l != nil {
				l.Close()
			}
			return
		case <-time.After(pause):
		}
	}
}

// closeAll accepts connections only to close them, until the listener is closed.
func closeAll(l net.Listener) {
	for {
		c, err := l.Accept()
		switch {
		case err == nil:
			c.Close()
		case errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(startTick) // most likely out of descriptors
		}
	}
}

// Probe is a request to the server.
type Probe struct {
	Port int    `json:"port,omitempty"`
	Path string `json:"path,omitempty"`
}

// probeTimeout bounds one probe.
const probeTimeout = 5 * time.Second

// send sends the request without an HTTP client, which would double the size of this program,
// and every sandbox has one.
func (p Probe) send(dial func(ctx context.Context, port int) (net.Conn, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	c, err := dial(ctx, p.Port)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(probeTimeout))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n", p.Path); err != nil {
		return err
	}
	status := make([]byte, len("HTTP/1.1 200 "))
	if _, err := io.ReadFull(c, status); err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.")) || !bytes.HasSuffix(status, []byte(" 200 ")) {
		return fmt.Errorf("%s returned %q", p.Path, status)
	}
	return nil
}

// install copies the programs in this program's folder.
func install(target string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	dir := filepath.Dir(self)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() {
			continue
		}
		if err := copyProgram(filepath.Join(target, e.Name()), filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func copyProgram(target, source string) error {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Chmod(0o755), to.Close())
}

// defaultPath is the PATH for images without one.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// inherit completes the plan with the environment and the folder of the image.
func (p *Plan) inherit(image []string) {
	env, path := []string{}, defaultPath
	for _, pair := range image {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case name == "PATH":
			path = value
		case strings.HasPrefix(name, "KUBERNETES_"): // from the cluster, not from the image
		case !slices.ContainsFunc(p.Env, func(own string) bool { return strings.HasPrefix(own, name+"=") }):
			env = append(env, pair)
		}
	}
	if !slices.ContainsFunc(p.Env, func(own string) bool { return strings.HasPrefix(own, "PATH=") }) {
		env = append(env, "PATH="+strings.Join(append(slices.Clone(p.Path), path), ":"))
	}
	if dir, err := os.Getwd(); err == nil && p.Workdir == "" && dir != "/" {
		p.Workdir = dir
	}
	if p.Workdir == "" {
		p.Workdir = isolate.Home
	} else if !slices.ContainsFunc(p.Env, func(own string) bool { return strings.HasPrefix(own, "WORKSPACE=") }) {
		env = append(env, "WORKSPACE="+p.Workdir)
	}
	p.Env = append(env, p.Env...)
}

// Usage is the resource usage of a container, as reported by its control groups; -1 is unknown.
type Usage struct {
	CPU      time.Duration `json:"cpu"`
	Memory   int64         `json:"memory"`
	Pids     int64         `json:"pids"`
	OOMKills int64         `json:"oom_kills"`
}

func (u Usage) encode() []byte {
	return fmt.Appendf(nil, `{"cpu":%d,"memory":%d,"pids":%d,"oom_kills":%d}`, u.CPU, u.Memory, u.Pids, u.OOMKills)
}

// cgroupDir is where a container's control groups are mounted.
const cgroupDir = "/sys/fs/cgroup"

// readUsage reads control groups of either version.
func readUsage(dir string) Usage {
	u := Usage{CPU: -1, Memory: -1, Pids: -1, OOMKills: -1}
	var cache int64
	if micro := readNumber(dir, "cpu.stat", "usage_usec"); micro >= 0 {
		u.CPU = time.Duration(micro) * time.Microsecond
		u.Memory, cache = readNumber(dir, "memory.current", ""), readNumber(dir, "memory.stat", "inactive_file")
		u.Pids, u.OOMKills = readNumber(dir, "pids.current", ""), readNumber(dir, "memory.events", "oom_kill")
	} else {
		u.CPU = time.Duration(readNumber(dir, "cpuacct/cpuacct.usage", ""))
		u.Memory, cache = readNumber(dir, "memory/memory.usage_in_bytes", ""), readNumber(dir, "memory/memory.stat", "total_inactive_file")
		u.Pids = readNumber(dir, "pids/pids.current", "")
	}
	// Reclaimable cache does not count.
	if u.Memory > 0 && cache > 0 && cache < u.Memory {
		u.Memory -= cache
	}
	return u
}

// readNumber reads a file that contains a number, or the line of a key.
func readNumber(dir, name, key string) int64 {
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return -1
	}
	for line := range bytes.Lines(data) {
		fields := strings.Fields(string(line))
		if key == "" && len(fields) == 1 || len(fields) == 2 && fields[0] == key {
			if n, err := strconv.ParseInt(fields[len(fields)-1], 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}
