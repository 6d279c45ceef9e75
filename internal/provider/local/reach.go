package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/inotify"
	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Endpoint implements sandbox.Provider.
func (p *Provider) Endpoint(_ context.Context, id string, port int) (sandbox.Endpoint, error) {
	sb, err := p.table.Get(id)
	if err != nil {
		return sandbox.Endpoint{}, err
	}
	if port != 0 {
		if err := sandbox.CheckPort(port); err != nil {
			return sandbox.Endpoint{}, fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
		}
	}
	if sb.State != sandbox.Running && sb.State != sandbox.Paused {
		return sandbox.Endpoint{}, fmt.Errorf("%w: sandbox %q is %s; start it first", sandbox.ErrState, sb.Spec.Name, sb.State)
	}
	return p.endpoint(sb, port), nil
}

// endpoint reaches the server by the socket in the run folder, and TCP ports by
// way of init. Both are found by folder and name, never by a path that leads
// through what the sandbox can write.
func (p *Provider) endpoint(sb sandbox.Sandbox, port int) sandbox.Endpoint {
	b := &box{dir: p.dir(sb.ID)}
	if port == 0 {
		port = sb.Spec.Server.Port
	}
	if port == 0 {
		return sandbox.Endpoint{Address: "unix:" + b.path("run", serverSocket), Dial: func(ctx context.Context) (net.Conn, error) {
			if c := p.idle.take(sb.ID); c != nil {
				return c, nil
			}
			dir, err := os.Open(b.path("run"))
			if err != nil {
				return nil, err
			}
			defer dir.Close()
			return conn(isolate.DialUnix(ctx, dir, serverSocket))
		}}
	}
	return sandbox.Endpoint{Address: fmt.Sprintf("%s port %d", sb.ID, port), Dial: func(ctx context.Context) (net.Conn, error) {
		dir, err := os.Open(b.dir)
		if err != nil {
			return nil, err
		}
		defer dir.Close()
		return isolate.Dial(ctx, dir, "control", port)
	}}
}

// conn keeps a nil pointer from becoming a connection.
func conn(c *net.UnixConn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Egress implements sandbox.Egresser.
func (p *Provider) Egress(_ context.Context, id string) (net.Listener, error) {
	if _, err := p.table.Get(id); err != nil {
		return nil, err
	}
	dir, err := os.Open((&box{dir: p.dir(id)}).path("out"))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// Everyone inside may use it. Outside, the folders above are closed.
	l, err := isolate.ListenUnix(dir, egressSocket, 0o666)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Logs implements sandbox.Logger.
func (p *Provider) Logs(_ context.Context, id string, limit int64) ([]byte, error) {
	if _, err := p.table.Get(id); err != nil {
		return nil, err
	}
	return (&box{dir: p.dir(id)}).logs(limit)
}

func (b *box) logs(limit int64) ([]byte, error) {
	return isolate.ReadLog([2]string{b.path("log.0"), b.path("log.1")}, limit)
}

// Stats implements sandbox.Stater.
func (p *Provider) Stats(_ context.Context, id string) (sandbox.Stats, error) {
	if _, err := p.table.Get(id); err != nil {
		return sandbox.Stats{}, err
	}
	u := p.groups.Group(id).Usage()
	st := sandbox.Stats{CPU: u.CPU, Memory: u.Memory, Pids: u.Pids, OOMKills: u.OOMKills, Disk: -1, Time: time.Now()}
	b := &box{dir: p.dir(id)}
	var err error
	if b.rec, err = load(b.dir); err == nil && len(b.rec.Layers) > 0 {
		if s, err := p.measure(b, 0); err == nil {
			st.Disk = s.bytes
		}
	}
	return st, nil
}

// ready asks the server until it says yes.
func (p *Provider) ready(ctx context.Context, b *box) error {
	spec := p.complete(b)
	srv := spec.Server
	deadline, cancel := context.WithTimeout(ctx, srv.ReadyTimeout)
	defer cancel()
	ep := p.endpoint(b.rec.Sandbox, 0)
	last := errNoAnswer
	listens, done := b.listens(srv.Port != 0 || p.handsOver(spec))
	defer done()
	tick := time.NewTimer(0)
	defer tick.Stop()
	for began := time.Now(); ; {
		// Asked often while it may be a matter of milliseconds, and never so often
		// that hundred at once keep each other from starting.
		wait := min(max(time.Since(began)/12, time.Millisecond/2), 50*time.Millisecond)
		if listens != nil {
			wait = 50 * time.Millisecond // there is nobody to ask
		} else if c, err := probe(deadline, ep, srv.ReadyPath); err == nil {
			switch {
			case c == nil:
			case srv.Port == 0:
				p.idle.put(b.rec.Sandbox.ID, c)
			default:
				c.Close()
			}
			return nil
		} else if deadline.Err() == nil && !timedOut(err) { // else it was cut short, and the one before tells more
			last = err
		}
		tick.Reset(wait)
		select {
		case <-listens:
			listens, began = nil, time.Now()
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.Done():
			if ctx.Err() != nil { // both are over, and this one tells why
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w in %v: %w%s", sandbox.ErrNotReady, srv.ReadyTimeout, last, b.tail())
		case <-b.run.Done():
			return fmt.Errorf("%w: the program %s%s", sandbox.ErrNotReady, b.lastWords(), b.tail())
		case <-tick.C:
		}
	}
}

// listens is closed when the server's socket is there; nil if that cannot be told, or
// need not be: a socket that listens already keeps who asks until it is served.
func (b *box) listens(asks bool) (<-chan struct{}, func()) {
	if asks {
		return nil, func() {}
	}
	w, err := inotify.New()
	if err != nil {
		return nil, func() {}
	}
	run := b.path("run")
	if _, err := w.Add(run, unix.IN_CREATE); err != nil || exists(filepath.Join(run, serverSocket)) {
		w.Close()
		return nil, func() {}
	}
	there := make(chan struct{})
	go func() {
		w.Read(time.Time{})
		close(there)
	}()
	return there, func() { go w.Close() } // the kernel takes its time for that
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

var errNoAnswer = errors.New("the server does not answer")

// probe asks once, over a connection of its own, and returns that if it can be used
// on.
func probe(ctx context.Context, ep sandbox.Endpoint, path string) (net.Conn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox"+path, nil)
	if err != nil {
		return nil, err
	}
	c, err := ep.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	again, err := ask(c, req)
	if again = stop() && again; !again {
		c.Close()
		return nil, err
	}
	return c, err
}

// ask sends a request and reads the answer; again: the connection can take another.
func ask(c net.Conn, req *http.Request) (again bool, err error) {
	if err := req.Write(c); err != nil {
		return false, err
	}
	// Whoever answers is not trusted.
	from := bufio.NewReader(io.LimitReader(c, 16<<10))
	resp, err := http.ReadResponse(from, req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%s answers %s", req.URL.Path, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && !resp.Close && from.Buffered() == 0, nil
}

// idle keeps, for a moment, the connections over which servers said that they are
// ready: whoever creates a sandbox has something to say to it.
type idle struct {
	mu    sync.Mutex
	conns map[string]net.Conn
}

// idleTime is how long one is kept.
const idleTime = time.Second

func (i *idle) put(id string, c net.Conn) {
	i.mu.Lock()
	old := i.conns[id]
	if i.conns == nil {
		i.conns = map[string]net.Conn{}
	}
	i.conns[id] = c
	i.mu.Unlock()
	if old != nil {
		old.Close()
	}
	time.AfterFunc(idleTime, func() {
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.conns[id] == c {
			delete(i.conns, id)
			c.Close()
		}
	})
}

// take returns the connection to a sandbox, for good, if there is one that lives.
func (i *idle) take(id string) net.Conn {
	i.mu.Lock()
	c := i.conns[id]
	delete(i.conns, id)
	i.mu.Unlock()
	if c != nil && !quiet(c) {
		c.Close()
		return nil
	}
	return c
}

// quiet tells whether a connection is open and nothing was said on it.
func quiet(c net.Conn) bool {
	s, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	var got error
	err = raw.Read(func(fd uintptr) bool {
		_, _, got = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	return err == nil && errors.Is(got, unix.EAGAIN)
}

func (i *idle) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, c := range i.conns {
		c.Close()
	}
	clear(i.conns)
}

// tail quotes the end of the program's output.
func (b *box) tail() string {
	out, err := b.logs(2 << 10)
	if err != nil || len(out) == 0 {
		return ""
	}
	return fmt.Sprintf("; its last words: %q", strings.TrimSpace(string(out)))
}
