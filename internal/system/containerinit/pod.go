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
)

// InstallVerb makes the program copy those beside it into a folder.
const InstallVerb = "install"

// Names in HubDir of the identity of a container with a tunnel.
const (
	CertName = "tls.crt"
	KeyName  = "tls.key"
)

// Egress is the socket for outgoing connections of a container with a tunnel.
const Egress = ControlDir + "/" + EgressName

// Tunnel is where the hub gets in.
type Tunnel struct {
	Listen string `json:"listen"` // host:port
	Hub    string `json:"hub"`    // the pin of its key
	// Ready is a host:port that is open while the server is ready, for who may only look: it
	// says nothing else.
	Ready string `json:"ready,omitempty"`

	server *entrance.Entrance
}

// serve serves the hub, and programs inside that want out.
func (t *Tunnel) serve(d *disk, fill func(io.Reader) error) error {
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
	out, err := isolate.ListenUnix(dir, EgressName, 0o666)
	if err != nil {
		return err
	}
	in, err := net.Listen("tcp", t.Listen)
	if err != nil {
		return errors.Join(err, out.Close())
	}
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

// Pauses between looks at the server: one that starts, and one that is ready.
const (
	startTick = 500 * time.Millisecond
	readyTick = 10 * time.Second
)

// showReady keeps a port open while the server is ready, until ctx ends. A node can look at it at no
// cost, unlike with a program that it starts in the container every time.
func (t *Tunnel) showReady(ctx context.Context, p Probe, start, ready time.Duration) {
	var l net.Listener
	var work sync.WaitGroup
	defer work.Wait()
	for {
		pause := start
		err := p.ask(t.dial)
		if err == nil && l == nil {
			if l, err = net.Listen("tcp", t.Ready); err == nil { // else the port is taken, and may be free later
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

// probeTime bounds one probe.
const probeTime = 5 * time.Second

// ask sends the request by hand: an HTTP client would double the size of this program, of
// which every sandbox has one.
func (p Probe) ask(dial func(ctx context.Context, port int) (net.Conn, error)) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTime)
	defer cancel()
	c, err := dial(ctx, p.Port)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(probeTime))
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n", p.Path); err != nil {
		return err
	}
	status := make([]byte, len("HTTP/1.1 200 "))
	if _, err := io.ReadFull(c, status); err != nil {
		return err
	}
	if !bytes.HasPrefix(status, []byte("HTTP/1.")) || !bytes.HasSuffix(status, []byte(" 200 ")) {
		return fmt.Errorf("%s answers %q", p.Path, status)
	}
	return nil
}

// install copies the programs of the folder of this one.
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

// defaultPath is that of images that set none.
const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// inherit completes the plan with the environment and the folder of the image.
func (p *Plan) inherit(image []string) {
	env, path := []string{}, defaultPath
	for _, pair := range image {
		name, value, _ := strings.Cut(pair, "=")
		switch {
		case name == "PATH":
			path = value
		case strings.HasPrefix(name, "KUBERNETES_"): // of the cluster, not of the image
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

// Usage is what a container uses, as its control groups say; -1 is unknown.
type Usage struct {
	CPU      time.Duration `json:"cpu"`
	Memory   int64         `json:"memory"`
	Pids     int64         `json:"pids"`
	OOMKills int64         `json:"oom_kills"`
}

func (u Usage) encode() []byte {
	return fmt.Appendf(nil, `{"cpu":%d,"memory":%d,"pids":%d,"oom_kills":%d}`, u.CPU, u.Memory, u.Pids, u.OOMKills)
}

// cgroupDir is where a container sees its own control groups.
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
	// Files that could be dropped at any time do not count.
	if u.Memory > 0 && cache > 0 && cache < u.Memory {
		u.Memory -= cache
	}
	return u
}

// readNumber reads a file that holds a number, or the line of a key.
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
