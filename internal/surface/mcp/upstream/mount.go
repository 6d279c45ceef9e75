package upstream

import (
	"context"
	"fmt"
	"iter"
	"maps"
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
	before  *mount        // the server that this one replaces
	closed  chan struct{} // closed when nothing of the server is offered
	control *link         // lists the server's features and receives its notifications
	links   map[any]*link // of clients, by their keys
	refused string        // the version of the protocol that the server does not support
	idle    *time.Timer

	refreshing sync.Mutex // held while features are listed or removed
	waiting    bool       // a refresh waits for refreshing

	tools     offers[*mcp.Tool]
	prompts   offers[*mcp.Prompt]
	resources offers[*mcp.Resource]
	templates offers[*mcp.ResourceTemplate]
}

func (s *Servers) newMount(server Server) *mount {
	m := &mount{Server: server, s: s, state: "connecting", settled: make(chan struct{}), closed: make(chan struct{}),
		links: map[any]*link{}}
	m.life, m.stop = context.WithCancel(s.life)
	m.tools = offers[*mcp.Tool]{kind: Tool, add: m.addTool, remove: func(names ...string) { s.local.RemoveTools(names...) }}
	m.prompts = offers[*mcp.Prompt]{kind: Prompt, add: m.addPrompt, remove: func(names ...string) { s.local.RemovePrompts(names...) }}
	m.resources = offers[*mcp.Resource]{kind: Resource,
		add:    func(_ string, r *mcp.Resource) { s.local.AddResource(r, m.readResource) },
		remove: func(uris ...string) { s.local.RemoveResources(uris...) }}
	m.templates = offers[*mcp.ResourceTemplate]{kind: Template,
		add:    func(_ string, t *mcp.ResourceTemplate) { s.local.AddResourceTemplate(t, m.readResource) },
		remove: func(uris ...string) { s.local.RemoveResourceTemplates(uris...) }}
	return m
}

// begin connects the server in the background and keeps it connected. mu of Servers is held.
func (m *mount) begin() {
	m.s.work.Go(func() {
		if m.before != nil { // otherwise its names are still in use
			<-m.before.closed
			m.before = nil
		}
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
	l, err := m.connect(ctx, true, client{})
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
	m.refused = "" // it may be replaced
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

// close removes what the server offered and ends all connections.
func (m *mount) close() {
	m.refreshing.Lock() // a refresh ends with life, and does not begin after it
	m.tools.replace(m, nil)
	m.prompts.replace(m, nil)
	m.resources.replace(m, nil)
	m.templates.replace(m, nil)
	m.refreshing.Unlock()
	close(m.closed)
	m.mu.Lock()
	all := []*link{m.control}
	for _, l := range m.links {
		all = append(all, l)
	}
	m.control, m.links = nil, map[any]*link{}
	if m.idle != nil {
		m.idle.Stop()
	}
	m.mu.Unlock()
	for _, l := range all {
		if l != nil {
			l.close()
		}
	}
}

// offeredName is the name under which a feature of the server is offered.
func (m *mount) offeredName(name string) string {
	if m.Bare {
		return name
	}
	return m.Name + "_" + name
}

// refreshSoon lists the features again in the background. One refresh can wait for another, because
// a server may report changes at any rate.
func (m *mount) refreshSoon() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting || m.life.Err() != nil {
		return
	}
	m.waiting = true
	m.s.work.Go(func() {
		ctx, cancel := context.WithTimeout(m.life, connectLimit)
		defer cancel()
		if err := m.refresh(ctx); err != nil && ctx.Err() == nil {
			m.s.cfg.Log.Warn("cannot list the tools of an MCP server", "server", m.Name, "error", err)
		}
	})
}

// refresh lists the features of the server and offers them. It removes those that no longer exist.
func (m *mount) refresh(ctx context.Context) error {
	m.refreshing.Lock()
	defer m.refreshing.Unlock()
	m.mu.Lock()
	l := m.control
	m.waiting = false
	m.mu.Unlock()
	if l == nil || m.life.Err() != nil {
		return nil
	}
	caps := l.conn.InitializeResult().Capabilities
	if caps == nil {
		caps = &mcp.ServerCapabilities{}
	}
	if caps.Tools != nil {
		tools, err := collect(l.conn.Tools(ctx, nil), func(t *mcp.Tool) string { return m.offeredName(t.Name) })
		if err != nil {
			return fmt.Errorf("cannot list its tools: %w", err)
		}
		maps.DeleteFunc(tools, func(name string, _ *mcp.Tool) bool { return !isToolName(name) })
		m.tools.replace(m, tools)
	}
	if caps.Prompts != nil {
		if prompts, err := collect(l.conn.Prompts(ctx, nil), func(p *mcp.Prompt) string { return m.offeredName(p.Name) }); err == nil {
			m.prompts.replace(m, prompts)
		}
	}
	if caps.Resources != nil {
		if all, err := collect(l.conn.Resources(ctx, nil), func(r *mcp.Resource) string { return r.URI }); err == nil {
			m.resources.replace(m, all)
		}
		all, err := collect(l.conn.ResourceTemplates(ctx, nil), func(t *mcp.ResourceTemplate) string { return t.URITemplate })
		if err == nil {
			m.templates.replace(m, all)
		}
	}
	return nil
}

// collect reads a list, up to its limit.
func collect[F any](list iter.Seq2[F, error], name func(F) string) (map[string]F, error) {
	found := map[string]F{}
	for f, err := range list {
		if err != nil {
			return nil, err
		}
		if found[name(f)] = f; len(found) == maxFeatures {
			break
		}
	}
	return found, nil
}

func (m *mount) addTool(name string, t *mcp.Tool) {
	offered := *t
	offered.Name = name
	m.s.local.AddTool(&offered, m.s.cfg.Wrap(m.callTool(t.Name)))
}

func (m *mount) addPrompt(name string, p *mcp.Prompt) {
	offered := *p
	offered.Name = name
	m.s.local.AddPrompt(&offered, m.getPrompt(p.Name))
}

func isToolName(name string) bool {
	if name == "" || len(name) > 2*maxName {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("_-./", r)
	}) < 0
}

// errUnreachable describes a server that cannot be reached to an agent.
func (m *mount) errUnreachable(err error) error {
	return op.Errorf(op.Unavailable, "the MCP server %q cannot be reached: %v; retry later, or use another tool", m.Name, err)
}
