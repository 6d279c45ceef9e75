package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Limits of connections between sandboxes, including those that are being opened.
const (
	maxFrom    = 512 // one sandbox
	maxTo      = 1024
	maxNetwork = 4096
)

// Peer returns the sandbox that a name stands for in the networks of a sandbox; false: none. It is consulted for every name that
// the sandbox uses.
func (s *Service) Peer(ctx context.Context, id, host string) (egress.Peer, bool) {
	from, ok := s.Fleet.Seen(id)
	if !ok {
		return egress.Peer{}, false
	}
	joined := s.of(from.Spec)
	short, full := strings.CutSuffix(host, domain)
	name, network, two := strings.Cut(short, ".")
	switch {
	case full != two:
		return egress.Peer{}, false
	case full:
		joined = slices.DeleteFunc(joined, func(e entry) bool { return e.Name != network })
	}
	if len(joined) == 0 || sandbox.CheckName(name) != nil || checkMember(name) != nil {
		return egress.Peer{}, false
	}
	to, err := fleet.Named(ctx, s.Fleet, from.Spec.Owner, name)
	if err != nil {
		return egress.Peer{}, false
	}
	for _, e := range joined {
		if slices.Contains(ids(to.Spec), e.ID) {
			return egress.Peer{Rule: "network " + e.Name, Dial: func(ctx context.Context, port int) (net.Conn, error) {
				return s.dial(ctx, id, to, e, port)
			}}, true
		}
	}
	return egress.Peer{}, false
}

// dial connects a sandbox with a port of another, which it wakes.
func (s *Service) dial(ctx context.Context, from string, to sandbox.Sandbox, e entry, port int) (net.Conn, error) {
	l := &link{service: s, from: from, to: to.ID, network: e.ID}
	if !s.links.reserve(l) {
		return nil, egress.Deny("too many connections between sandboxes of network %q are open; close some", e.Name)
	}
	c, leave, err := s.connect(ctx, to, port)
	if err != nil {
		s.links.release(l)
		return nil, err
	}
	l.Conn, l.leave = c, leave
	s.links.add(l)
	if !s.valid(l) {
		l.Close()
		return nil, egress.Deny("%q is no longer in a network of this sandbox", to.Spec.Name)
	}
	return l, nil
}

// connect connects to a port of a sandbox that is not one of its own ports.
func (s *Service) connect(ctx context.Context, to sandbox.Sandbox, port int) (net.Conn, func(), error) {
	box, err := s.Fleet.Enter(ctx, to, s.Fleet.WakeWait)
	if err != nil {
		return nil, nil, fmt.Errorf("wake sandbox %q: %w", to.Spec.Name, err)
	}
	if err := s.checkPort(ctx, to, port); err != nil {
		box.Leave()
		return nil, nil, err
	}
	c, err := fleet.Connect(ctx, s.Fleet, box, port)
	if err != nil {
		box.Leave()
		// The program sees that its connection is refused, as on the sandbox itself.
		return nil, nil, fmt.Errorf("connect to port %d of sandbox %q: %w: %w", port, to.Spec.Name, err, syscall.ECONNREFUSED)
	}
	return c, box.Leave, nil
}

// checkPort returns an error if a port belongs to the server of a sandbox, which trusts programs inside. The server knows its
// ports. If it does not respond, no port can be used.
func (s *Service) checkPort(ctx context.Context, to sandbox.Sandbox, port int) error {
	sb, err := s.Provider.Get(ctx, to.ID)
	if err != nil {
		return err
	}
	refused := egress.Deny("port %d of sandbox %q is reserved for its server", port, sb.Spec.Name)
	if !fleet.IsNative(sb) {
		if port == sb.Spec.Server.Port {
			return refused
		}
		return nil
	}
	b, err := fleet.Ask(ctx, s.Fleet, sb, http.MethodGet, "/v1/sandbox/ports/"+strconv.Itoa(port), nil)
	if err != nil {
		return fmt.Errorf("find the reserved ports of sandbox %q: %w; restart it if its server is of an older version", sb.Spec.Name, err)
	}
	var state struct {
		Port     int   `json:"port"`
		Reserved *bool `json:"reserved"`
	}
	switch err := json.Unmarshal(b, &state); {
	case err != nil || state.Reserved == nil || state.Port != port:
		return errors.New("the server of the sandbox sent an invalid reply; restart the sandbox")
	case *state.Reserved:
		return refused
	}
	return nil
}

// link is a connection between two sandboxes.
type link struct {
	net.Conn
	service           *Service
	from, to, network string // IDs
	leave             func()
	once              sync.Once
}

// NetConn returns the connection that the kernel can copy.
func (l *link) NetConn() net.Conn { return l.Conn }

// CloseWrite ends one direction.
func (l *link) CloseWrite() error {
	half, ok := l.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// Close closes the connection.
func (l *link) Close() error {
	l.once.Do(func() {
		l.service.links.release(l)
		l.leave()
	})
	return l.Conn.Close()
}

// links are the connections between sandboxes.
type links struct {
	mu           sync.Mutex
	open         map[*link]bool
	from, to, in map[string]int // number of connections of a sandbox, to a sandbox, and in a network
}

// reserve counts a connection that is being opened; false if there are too many.
func (s *links) reserve(l *link) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from[l.from] >= maxFrom || s.to[l.to] >= maxTo || s.in[l.network] >= maxNetwork {
		return false
	}
	s.from[l.from]++
	s.to[l.to]++
	s.in[l.network]++
	return true
}

// add registers a connection that is open.
func (s *links) add(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[l] = true
}

// release ends the count of a connection.
func (s *links) release(l *link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.open, l)
	for counts, id := range map[*map[string]int]string{&s.from: l.from, &s.to: l.to, &s.in: l.network} {
		if (*counts)[id]--; (*counts)[id] <= 0 {
			delete(*counts, id)
		}
	}
}

// valid reports whether both sandboxes of a connection are still in its network.
func (s *Service) valid(l *link) bool {
	for _, id := range []string{l.from, l.to} {
		sb, ok := s.Fleet.Seen(id)
		if !ok || !slices.ContainsFunc(s.of(sb.Spec), func(e entry) bool { return e.ID == l.network }) {
			return false
		}
	}
	return true
}

// cut closes the connections of sandboxes that are no longer in their network.
func (s *Service) cut() { s.close(func(l *link) bool { return !s.valid(l) }) }

// Sweep closes connections of sandboxes that no longer run: a paused sandbox must not keep others awake.
func (s *Service) Sweep() {
	s.close(func(l *link) bool {
		sb, ok := s.Fleet.Seen(l.from)
		return !ok || sb.State != sandbox.Running || !s.valid(l)
	})
}

func (s *Service) close(ended func(*link) bool) {
	s.links.mu.Lock()
	all := make([]*link, 0, len(s.links.open))
	for l := range s.links.open {
		all = append(all, l)
	}
	s.links.mu.Unlock()
	for _, l := range all {
		if ended(l) {
			l.Close()
		}
	}
}
