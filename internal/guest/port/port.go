// Package port lists the TCP ports that programs in the sandbox listen on, streams changes, and tunnels connections of callers
// to a port, or from a port to callers. It only reads /proc. It omits the sandbox's own ports, which cannot be previewed.
package port

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Config of the service.
type Config struct {
	Hidden func(port int) bool // whether a port is one of the sandbox's own ports
	Server int                 // process of the server, whose ports are internal
	Owned  func() []int        // other programs of the sandbox itself; their ports and those of their children are internal
	Proc   string              // default /proc
	Every  time.Duration       // interval between the checks of a stream; default 500 ms
}

// Service implements the operations.
type Service struct {
	cfg  Config
	life context.Context
	end  context.CancelFunc

	arrivals arrivals
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Hidden == nil {
		c.Hidden = func(int) bool { return false }
	}
	if c.Owned == nil {
		c.Owned = func() []int { return nil }
	}
	c.Proc, c.Every = cmp.Or(c.Proc, "/proc"), cmp.Or(c.Every, 500*time.Millisecond)
	s := &Service{cfg: c, arrivals: arrivals{waiting: map[string]*arrival{}}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	list := op.New(op.Spec{Name: "sandbox_list_ports", Route: "GET /v1/sandbox/ports", Tag: "sandbox", ReadOnly: true,
		Verb: "sandbox ports", Columns: []string{"port", "address", "pid", "process", "preview"},
		Doc: "List the ports that programs in the sandbox listen on, with process and command. A stream then " +
			"reports each port that opens or closes."}, s.List)
	one := op.New(op.Spec{Name: "sandbox_port", Route: "GET /v1/sandbox/ports/{port}", Tag: "sandbox", ReadOnly: true, NoTool: true,
		NoVerb: true, Doc: "Show whether a port is reserved for the sandbox: connections of other sandboxes to it are refused."}, s.Show)
	tunnel := op.Duplex(op.Spec{Name: "sandbox_tunnel", Route: "GET /v1/sandbox/ports/{port}/tunnel", Tag: "sandbox",
		Doc: "Connect to a TCP port in the sandbox over a WebSocket. Binary messages contain the bytes of the " +
			"connection, in both directions; the text message \"end\" closes one direction."}, s.Tunnel)
	listen := op.Duplex(op.Spec{Name: "sandbox_listen", Route: "GET /v1/sandbox/ports/{port}/listen", Tag: "sandbox",
		Doc: "Listen on a TCP port in the sandbox for the caller, over a WebSocket, until it is closed. The first text message " +
			"contains the port. Each further one contains the id of a connection of a program: connect to it with accept " +
			"within 30 seconds, or send the id to refuse it."}, s.Listen)
	accept := op.Duplex(op.Spec{Name: "sandbox_accept", Route: "GET /v1/sandbox/ports/{port}/accept", Tag: "sandbox",
		Doc: "Connect to a program whose connection was announced to the caller of listen. Messages are those of tunnel."}, s.Accept)
	return []op.Op{op.WithStream[op.None, Change](list, s.Watch), one, tunnel, listen, accept}
}

// Close ends all streams.
func (s *Service) Close() error { s.end(); return nil }

// Port is a port that a program listens on.
type Port struct {
	Port    int    `json:"port"`
	Address string `json:"address" doc:"Address that the program listens on; 0.0.0.0 and :: mean all addresses"`
	PID     *int   `json:"pid" doc:"Null if the process belongs to another user"`
	Process string `json:"process" doc:"Name of the program"`
	Command string `json:"command" doc:"Command line of the process"`
	Preview string `json:"preview" doc:"Path of the preview of the port on this server"`

	Internal bool `json:"internal" doc:"Whether the server of the sandbox or its browser listens on it, which pages do not show"`
}

// Change is an event of the stream.
type Change struct {
	Ports []Port `json:"ports,omitempty" doc:"In the event ports: all open ports"`
	Port  *Port  `json:"port,omitempty" doc:"In the events open and close: the port"`
}

// List returns the ports, sorted.
func (s *Service) List(context.Context, op.None) ([]Port, error) { return s.Open(), nil }

// Open returns the ports, sorted.
func (s *Service) Open() []Port {
	sockets := s.sockets()
	list := make([]Port, 0, len(sockets))
	owners := s.owners(sockets)
	owned := s.cfg.Owned()
	seen := map[string]bool{}
	for _, k := range sockets {
		p := Port{Port: int(k.at.Port()), Address: k.at.Addr().String(), Preview: "/proxy/" + strconv.Itoa(int(k.at.Port())) + "/"}
		if pid, ok := owners[k.inode]; ok {
			p.PID = &pid
			p.Process, p.Command = s.describe(pid)
			p.Internal = pid == s.cfg.Server || s.descends(pid, owned)
		}
		if key := k.at.String(); !seen[key] {
			seen[key] = true
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Port, b.Port), strings.Compare(a.Address, b.Address))
	})
	return list
}

// ShowIn is the input of Show.
type ShowIn struct {
	Port int `path:"port" minimum:"1" maximum:"65535" doc:"TCP port"`
}

// State is the state of a port.
type State struct {
	Port     int  `json:"port"`
	Reserved bool `json:"reserved" doc:"Whether it is one of the sandbox's own ports"`
}

// Show returns whether a port is reserved.
func (s *Service) Show(_ context.Context, in ShowIn) (State, error) {
	return State{in.Port, s.cfg.Hidden(in.Port)}, nil
}

// Watch sends the open ports, then each port that opens or closes.
func (s *Service) Watch(ctx context.Context, _ op.None, send func(op.Event) error) error {
	known := s.Open()
	if err := send(op.Event{Name: "ports", Data: Change{Ports: known}}); err != nil {
		return err
	}
	tick := time.NewTicker(s.cfg.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.life.Done():
			return nil
		case <-tick.C:
		}
		if sameSockets(s.sockets(), known) {
			continue
		}
		now := s.Open()
		if err := sendChanges("close", known, now, send); err != nil {
			return err
		}
		if err := sendChanges("open", now, known, send); err != nil {
			return err
		}
		known = now
	}
}

// sendChanges sends the ports of a list that are not in the other one.
func sendChanges(name string, list, other []Port, send func(op.Event) error) error {
	for _, p := range list {
		if slices.ContainsFunc(other, func(q Port) bool { return q.Port == p.Port && q.Address == p.Address }) {
			continue
		}
		if err := send(op.Event{Name: name, Data: Change{Port: &p}}); err != nil {
			return err
		}
	}
	return nil
}

// sameSockets reports whether the sockets are the same as those of a list, without reading processes.
func sameSockets(sockets []socket, known []Port) bool {
	at := map[string]bool{}
	for _, k := range sockets {
		at[k.at.Addr().String()+" "+strconv.Itoa(int(k.at.Port()))] = true
	}
	for _, p := range known {
		if !at[p.Address+" "+strconv.Itoa(p.Port)] {
			return false
		}
	}
	return len(at) == len(known)
}

// resolver is where the first process of a sandbox answers DNS queries. No caller connects to it through us, so it is not listed.
var resolver = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 53}), 53)

// socket is a listening socket.
type socket struct {
	at    netip.AddrPort
	inode string
}

func (s *Service) sockets() (list []socket) {
	for _, name := range []string{"net/tcp", "net/tcp6"} {
		f, err := os.Open(filepath.Join(s.cfg.Proc, name))
		if err != nil {
			continue
		}
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if k, ok := parseSocket(scan.Text()); ok && k.at != resolver && !s.cfg.Hidden(int(k.at.Port())) {
				list = append(list, k)
			}
		}
		f.Close()
	}
	return list
}

// parseSocket parses a line of /proc/net/tcp of a listening socket: the address in hex, in words of the machine's byte order,
// state 0A, and the inode.
func parseSocket(line string) (socket, bool) {
	f := strings.Fields(line)
	if len(f) < 10 || f[3] != "0A" {
		return socket{}, false
	}
	host, port, ok := strings.Cut(f[1], ":")
	n, err := strconv.ParseUint(port, 16, 16)
	b, bad := hex.DecodeString(host)
	if !ok || err != nil || bad != nil || len(b) != 4 && len(b) != 16 {
		return socket{}, false
	}
	for word := range slices.Chunk(b, 4) {
		slices.Reverse(word)
	}
	ip, _ := netip.AddrFromSlice(b)
	return socket{netip.AddrPortFrom(ip.Unmap(), uint16(n)), f[9]}, true
}

// owners returns the process of each socket, except for processes of other users.
func (s *Service) owners(sockets []socket) map[string]int {
	wanted, found := map[string]string{}, map[string]int{}
	for _, k := range sockets {
		wanted["socket:["+k.inode+"]"] = k.inode
	}
	dirs, _ := filepath.Glob(filepath.Join(s.cfg.Proc, "[0-9]*"))
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || len(found) == len(wanted) {
			continue
		}
		fds, _ := os.ReadDir(filepath.Join(dir, "fd"))
		for _, fd := range fds {
			link, err := os.Readlink(filepath.Join(dir, "fd", fd.Name()))
			if inode, ok := wanted[link]; err == nil && ok {
				if old, ok := found[inode]; !ok || pid < old {
					found[inode] = pid
				}
			}
		}
	}
	return found
}

const maxAncestors = 8

// descends reports whether a process is one of a list, or a descendant.
func (s *Service) descends(pid int, list []int) bool {
	for range maxAncestors {
		if len(list) == 0 || pid <= 1 {
			return false
		}
		if slices.Contains(list, pid) {
			return true
		}
		b, err := os.ReadFile(filepath.Join(s.cfg.Proc, strconv.Itoa(pid), "stat"))
		if err != nil {
			return false
		}
		f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])) // the name before it may contain anything
		if len(f) < 2 {
			return false
		}
		if pid, err = strconv.Atoi(f[1]); err != nil {
			return false
		}
	}
	return false
}

const maxCommand = 1000

func (s *Service) describe(pid int) (name, command string) {
	dir := filepath.Join(s.cfg.Proc, strconv.Itoa(pid))
	comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
	line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
	line = bytes.ReplaceAll(bytes.TrimRight(line, "\x00"), []byte{0}, []byte{' '})
	return clean(bytes.TrimSpace(comm)), clean(line[:min(len(line), maxCommand)])
}

func clean(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
