package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// connectLimit bounds the start of a server and its handshake.
	connectLimit = 60 * time.Second
	// firstBackoff and lastBackoff are the pauses between attempts to reach a server.
	firstBackoff = time.Second
	lastBackoff  = time.Minute
	// maxFeatures bounds what one server adds to each list.
	maxFeatures = 512
	// maxName is the longest tool name that model providers accept.
	maxName = 64
)

// mount is a server that is connected, or will be.
type mount struct {
	Server
	s *Servers

	life context.Context
	stop context.CancelFunc

	opening sync.Mutex // held while a link is opened

	mu      sync.Mutex
	state   string
	why     string
	settled chan struct{} // closed after the first attempt to connect
	control *link         // lists the server's features and receives its notifications
	modern  *link         // for requests without a session
	links   map[*mcp.ServerSession]*link
	idle    *time.Timer

	tools     map[string]*mcp.Tool // by the name under which it is offered
	prompts   []string
	resources []string
	templates []string
}

// begin connects the server in the background and keeps it connected. mu of Servers is held.
func (m *mount) begin() {
	m.s.work.Go(func() {
		pause := firstBackoff
		for m.life.Err() == nil {
			l, err := m.openOnce()
			m.markSettled()
			if err == nil {
				pause = firstBackoff
				_ = l.conn.Wait()
				if m.noteEnd(l) { // on purpose: the next call starts it again
					return
				}
			}
			select {
			case <-m.life.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, lastBackoff)
		}
	})
}

func (m *mount) markSettled() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.settled:
	default:
		close(m.settled)
	}
}

// openOnce returns the existing connection, which a call may have opened, or opens one.
func (m *mount) openOnce() (*link, error) {
	m.opening.Lock()
	defer m.opening.Unlock()
	m.mu.Lock()
	l := m.control
	m.mu.Unlock()
	if l != nil {
		return l, nil
	}
	return m.open()
}

// open connects the server and lists its features. opening is held.
func (m *mount) open() (*link, error) {
	ctx, cancel := context.WithTimeout(m.life, connectLimit)
	defer cancel()
	l, err := m.connect(ctx, linkControl, nil)
	if err == nil {
		m.mu.Lock()
		m.control = l
		m.mu.Unlock()
		err = m.refresh(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil {
		m.state, m.why = "failed", err.Error()
		if m.life.Err() == nil {
			m.s.cfg.Log.Warn("cannot use an MCP server", "server", m.Name, "error", err)
		}
		if l != nil {
			m.control = nil
			m.s.work.Go(l.close)
		}
		return nil, err
	}
	m.state, m.why = "ready", ""
	m.startIdleTimer()
	return l, nil
}

// noteEnd notes that the connection ended, and reports whether that was on purpose.
func (m *mount) noteEnd(l *link) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	intended := m.state == "idle"
	if m.control == l {
		m.control = nil
	}
	if !intended && m.life.Err() == nil {
		m.state, m.why = "failed", "the server ended; it is being restarted"
	}
	m.s.work.Go(l.close)
	return intended
}

// startIdleTimer stops a process that is unused for its idle time. mu is held.
func (m *mount) startIdleTimer() {
	if m.Start == nil || m.Idle == 0 {
		return
	}
	if m.idle != nil {
		m.idle.Stop()
	}
	m.idle = time.AfterFunc(m.Idle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if l := m.control; l != nil && !l.busy() {
			m.state = "idle"
			m.s.work.Go(l.close)
			return
		}
		if m.control != nil {
			m.idle.Reset(m.Idle)
		}
	})
}

// close ends all connections and removes what the server offered.
func (m *mount) close() {
	m.mu.Lock()
	all := []*link{m.control, m.modern}
	for _, l := range m.links {
		all = append(all, l)
	}
	m.control, m.modern, m.links = nil, nil, map[*mcp.ServerSession]*link{}
	tools := slices.Collect(maps.Keys(m.tools))
	m.tools = nil
	if m.idle != nil {
		m.idle.Stop()
	}
	m.mu.Unlock()
	for _, l := range all {
		if l != nil {
			l.close()
		}
	}
	m.s.owners.release(tools)
	m.s.local.RemoveTools(tools...)
	m.s.local.RemovePrompts(m.prompts...)
	m.s.local.RemoveResources(m.resources...)
	m.s.local.RemoveResourceTemplates(m.templates...)
}

// offeredName is the name under which a feature of the server is offered.
func (m *mount) offeredName(name string) string {
	if m.Bare {
		return name
	}
	return m.Name + "_" + name
}

// refresh lists the features of the server and offers them. It removes those that do not exist any more.
func (m *mount) refresh(ctx context.Context) error {
	m.mu.Lock()
	l := m.control
	m.mu.Unlock()
	if l == nil {
		return nil
	}
	caps := l.conn.InitializeResult().Capabilities
	if caps == nil {
		caps = &mcp.ServerCapabilities{}
	}
	if caps.Tools != nil {
		if err := m.refreshTools(ctx, l); err != nil {
			return fmt.Errorf("cannot list its tools: %w", err)
		}
	}
	if caps.Prompts != nil {
		m.refreshPrompts(ctx, l)
	}
	if caps.Resources != nil {
		m.refreshResources(ctx, l)
	}
	return nil
}

func (m *mount) refreshTools(ctx context.Context, l *link) error {
	found := map[string]*mcp.Tool{}
	for t, err := range l.conn.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if name := m.offeredName(t.Name); len(found) < maxFeatures && isToolName(name) {
			found[name] = t
		}
	}
	m.mu.Lock()
	old := m.tools
	m.tools = found
	m.mu.Unlock()
	var removed []string
	for name := range old {
		if found[name] == nil {
			removed = append(removed, name)
		}
	}
	if len(removed) > 0 {
		m.s.owners.release(removed)
		m.s.local.RemoveTools(removed...)
	}
	for name, t := range found {
		if m.s.cfg.Reserved(name) || !m.s.owners.claim(name, m.Name) {
			m.s.cfg.Log.Warn("tool name of an MCP server is already in use", "server", m.Name, "tool", name)
			continue
		}
		if old[name] != nil && sameJSON(old[name], t) {
			continue
		}
		offered := *t
		offered.Name = name
		if err := try(func() { m.s.local.AddTool(&offered, m.s.cfg.Wrap(m.callTool(t.Name))) }); err != nil {
			m.s.owners.release([]string{name})
			m.s.cfg.Log.Warn("tool of an MCP server is invalid", "server", m.Name, "tool", name, "error", err)
		}
	}
	return nil
}

func isToolName(name string) bool {
	if name == "" || len(name) > 2*maxName {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./", r)
	}) < 0
}

func sameJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

func (m *mount) refreshPrompts(ctx context.Context, l *link) {
	var names []string
	for p, err := range l.conn.Prompts(ctx, nil) {
		if err != nil || len(names) == maxFeatures {
			break
		}
		offered, original := *p, p.Name
		offered.Name = m.offeredName(p.Name)
		names = append(names, offered.Name)
		m.s.local.AddPrompt(&offered, m.getPrompt(original))
	}
	m.s.local.RemovePrompts(missing(m.prompts, names)...)
	m.prompts = names
}

func (m *mount) refreshResources(ctx context.Context, l *link) {
	var uris, templates []string
	for r, err := range l.conn.Resources(ctx, nil) {
		if err != nil || len(uris) == maxFeatures {
			break
		}
		if try(func() { m.s.local.AddResource(r, m.readResource) }) == nil {
			uris = append(uris, r.URI)
		}
	}
	for t, err := range l.conn.ResourceTemplates(ctx, nil) {
		if err != nil || len(templates) == maxFeatures {
			break
		}
		if try(func() { m.s.local.AddResourceTemplate(t, m.readResource) }) == nil {
			templates = append(templates, t.URITemplate)
		}
	}
	m.s.local.RemoveResources(missing(m.resources, uris)...)
	m.s.local.RemoveResourceTemplates(missing(m.templates, templates)...)
	m.mu.Lock()
	m.resources, m.templates = uris, templates
	m.mu.Unlock()
}

// missing returns the strings of old that are not in current.
func missing(old, current []string) []string {
	return slices.DeleteFunc(slices.Clone(old), func(s string) bool { return slices.Contains(current, s) })
}

// try returns a panic of add as an error: the SDK panics if a feature is invalid.
func try(add func()) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	add()
	return nil
}

// errUnreachable describes a server that cannot be reached to an agent.
func (m *mount) errUnreachable(err error) error {
	return op.Errorf(op.Unavailable, "the MCP server %q cannot be reached: %v; retry later, or use another tool", m.Name, err)
}
