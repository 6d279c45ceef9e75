package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// connectLimit bounds the start of another server and its handshake.
	connectLimit = 60 * time.Second
	// listWait is how long a list waits for servers that are connecting.
	listWait = 10 * time.Second
	// firstBackoff and lastBackoff are the pauses between attempts to reach a server.
	firstBackoff = time.Second
	lastBackoff  = time.Minute
	// maxFeatures bounds what one server adds to each list.
	maxFeatures = 512
	// maxName is the longest name of a tool that makers of models accept.
	maxName = 64
)

// Upstream is another server, whose tools, resources and prompts are offered too.
type Upstream struct {
	Name string
	Bare bool // its tools keep their names; otherwise they begin with the server's

	// Start starts the server as a process that speaks over standard input and
	// output; stop ends it. Nil: the server is reached at URL.
	Start func(ctx context.Context) (out io.ReadCloser, in io.WriteCloser, stop func(), err error)
	Idle  time.Duration // a process that nobody uses for that long is stopped; 0: never

	URL    string
	SSE    bool // the transport that preceded streamable HTTP
	Client *http.Client
}

// Status is the state of another server.
type Status struct {
	Name  string
	State string // connecting, ready, idle or failed
	Why   string // why it failed
	Tools []string
}

// mount is a server that is connected, or will be.
type mount struct {
	Upstream
	h *Handler
	e *engine

	life context.Context
	stop context.CancelFunc

	opening sync.Mutex // held while a link is opened

	mu      sync.Mutex
	state   string
	why     string
	settled chan struct{} // closed after the first attempt to connect
	control *link         // lists what the server has, and hears when that changes
	modern  *link         // for requests without a session
	links   map[*mcp.ServerSession]*link
	idle    *time.Timer

	tools     map[string]*mcp.Tool // by the name under which it is offered
	prompts   []string
	resources []string
	templates []string
}

// Mount adds another server. It replaces one of the same name. The server is connected
// in the background, as soon as this handler is used.
func (h *Handler) Mount(u Upstream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(u.Name)
	m := &mount{Upstream: u, h: h, state: "connecting", settled: make(chan struct{}), links: map[*mcp.ServerSession]*link{}}
	m.life, m.stop = context.WithCancel(h.life)
	h.mounts[u.Name] = m
	if h.engine != nil {
		m.begin(h.engine)
	}
}

// Unmount removes a server and ends its process.
func (h *Handler) Unmount(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(name)
}

// drop removes a server. mu is held.
func (h *Handler) drop(name string) {
	if m := h.mounts[name]; m != nil {
		delete(h.mounts, name)
		m.stop()
		if m.e != nil {
			h.work.Go(m.close)
		}
	}
}

// Mounted returns the states of the other servers, by name. It connects them if that
// has not been tried yet, and waits for that, but not for long.
func (h *Handler) Mounted(ctx context.Context) []Status {
	h.build()
	h.awaitMounts(ctx)
	h.mu.Lock()
	all := slices.SortedFunc(maps.Values(h.mounts), func(a, b *mount) int { return strings.Compare(a.Name, b.Name) })
	h.mu.Unlock()
	var out []Status
	for _, m := range all {
		m.mu.Lock()
		out = append(out, Status{Name: m.Name, State: m.state, Why: m.why, Tools: slices.Sorted(maps.Keys(m.tools))})
		m.mu.Unlock()
	}
	return out
}

// awaitMounts waits until every server was tried once.
func (h *Handler) awaitMounts(ctx context.Context) {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.mounts))
	h.mu.Unlock()
	if len(all) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	for _, m := range all {
		select {
		case <-m.settled:
		case <-ctx.Done():
			return
		}
	}
}

// begin connects the server in the background and keeps it connected. mu of the handler
// is held.
func (m *mount) begin(e *engine) {
	m.e = e
	m.h.work.Go(func() {
		pause := firstBackoff
		for m.life.Err() == nil {
			l, err := m.openOnce()
			m.markSettled()
			if err == nil {
				pause = firstBackoff
				_ = l.conn.Wait()
				if m.ended(l) { // on purpose: the next call starts it again
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

// openOnce returns the connection that a call has opened meanwhile, or opens one.
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

// open connects the server and lists what it has. opening is held.
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
			m.h.Log.Warn("cannot use an MCP server", "server", m.Name, "error", err)
		}
		if l != nil {
			m.control = nil
			m.h.work.Go(l.close)
		}
		return nil, err
	}
	m.state, m.why = "ready", ""
	m.startIdle()
	return l, nil
}

// ended notes that the connection is gone, and reports whether that was on purpose.
func (m *mount) ended(l *link) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	purpose := m.state == "idle"
	if m.control == l {
		m.control = nil
	}
	if !purpose && m.life.Err() == nil {
		m.state, m.why = "failed", "the server ended; it is being restarted"
	}
	m.h.work.Go(l.close)
	return purpose
}

// startIdle stops a process when nobody uses it. mu is held.
func (m *mount) startIdle() {
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
			m.h.work.Go(l.close)
			return
		}
		if m.control != nil {
			m.idle.Reset(m.Idle)
		}
	})
}

// close ends all connections and takes away what the server offered.
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
	m.e.mu.Lock()
	for _, name := range tools {
		delete(m.e.mounted, name)
	}
	m.e.mu.Unlock()
	m.e.server.RemoveTools(tools...)
	m.e.server.RemovePrompts(m.prompts...)
	m.e.server.RemoveResources(m.resources...)
	m.e.server.RemoveResourceTemplates(m.templates...)
}

// offeredName is the name under which a feature of the server is offered.
func (m *mount) offeredName(name string) string {
	if m.Bare {
		return name
	}
	return m.Name + "_" + name
}

// refresh lists what the server has, and offers it. What is gone is taken away.
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
			return fmt.Errorf("list its tools: %w", err)
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
	var gone []string
	for name := range old {
		if found[name] == nil {
			gone = append(gone, name)
		}
	}
	if len(gone) > 0 {
		m.e.unclaim(gone)
		m.e.server.RemoveTools(gone...)
	}
	for name, t := range found {
		if !m.e.claim(name, m.Name) {
			m.h.Log.Warn("a tool of an MCP server has the name of another", "server", m.Name, "tool", name)
			continue
		}
		if old[name] != nil && sameJSON(old[name], t) {
			continue
		}
		offered := *t
		offered.Name = name
		if err := catch(func() error { m.e.server.AddTool(&offered, m.callTool(t.Name)); return nil }); err != nil {
			m.e.unclaim([]string{name})
			m.h.Log.Warn("a tool of an MCP server is invalid", "server", m.Name, "tool", name, "error", err)
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

// claim reserves the name of a tool for a server. The program's own tools come first,
// then whoever was first.
func (e *engine) claim(name, server string) bool {
	if _, own := e.set.Get(name); own {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if owner, taken := e.mounted[name]; taken && owner != server {
		return false
	}
	e.mounted[name] = server
	return true
}

func (e *engine) unclaim(names []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range names {
		delete(e.mounted, name)
	}
}

// mountOf returns the server that a tool belongs to, empty if it is of none.
func (e *engine) mountOf(tool string) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mounted[tool]
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
		m.e.server.AddPrompt(&offered, m.getPrompt(original))
	}
	m.e.server.RemovePrompts(missing(m.prompts, names)...)
	m.prompts = names
}

func (m *mount) refreshResources(ctx context.Context, l *link) {
	var uris, templates []string
	for r, err := range l.conn.Resources(ctx, nil) {
		if err != nil || len(uris) == maxFeatures {
			break
		}
		if catch(func() error { m.e.server.AddResource(r, m.readResource); return nil }) == nil {
			uris = append(uris, r.URI)
		}
	}
	for t, err := range l.conn.ResourceTemplates(ctx, nil) {
		if err != nil || len(templates) == maxFeatures {
			break
		}
		if catch(func() error { m.e.server.AddResourceTemplate(t, m.readResource); return nil }) == nil {
			templates = append(templates, t.URITemplate)
		}
	}
	m.e.server.RemoveResources(missing(m.resources, uris)...)
	m.e.server.RemoveResourceTemplates(missing(m.templates, templates)...)
	m.mu.Lock()
	m.resources, m.templates = uris, templates
	m.mu.Unlock()
}

// missing returns what of old is not in now.
func missing(old, now []string) []string {
	return slices.DeleteFunc(slices.Clone(old), func(s string) bool { return slices.Contains(now, s) })
}

// errBroken describes a server that cannot be reached, in the words of a tool.
func (m *mount) errBroken(err error) error {
	return op.Errorf(op.Unavailable, "the MCP server %q cannot be reached: %v; retry later, or use another tool", m.Name, err)
}
