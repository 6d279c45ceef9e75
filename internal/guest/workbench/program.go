package workbench

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// startTime bounds a start, which takes one or two seconds on an idle machine.
	startTime = 2 * time.Minute
	// probeEvery is the pause between attempts to reach a program that is starting.
	probeEvery = 25 * time.Millisecond
	// maxFolder is the maximum path length of the folder for sockets.
	maxFolder = 60
	// outputLimit is how much output of a program is kept for error messages.
	outputLimit = 8 << 10
)

// program is a program with pages.
type program struct {
	s         *Service
	name      string // of the component
	title     string // display name
	path      string // path of its pages, without a slash at the end
	operation string // name of the operation that serves it
	doc       string
	recipe    string // script that installs it
	keeps     string // sentence about data that survives a crash

	// find returns the command that starts it, without arguments, or an error that says how to install it.
	find func() ([]string, error)
	// prepare writes its files into its private folder and the home, and returns its command.
	prepare func(argv []string, dir, socket string) (proc.Command, error)
	// probe is a path that responds with success and contains mark when the program works.
	probe, mark string
	// entry reports whether a path of the program is a page that people open.
	entry func(path string) bool
	// request changes a request for the program. It may be nil.
	request func(r *httputil.ProxyRequest)

	component *proc.Component[*instance]
	install   installation

	mu   sync.Mutex
	last *instance // the latest instance, even after its end
	note string    // reports a crash on the next visit
}

// newProgram initializes a program.
func newProgram(s *Service, p *program) *program {
	p.s = s
	p.component = proc.NewComponent(proc.ComponentConfig[*instance]{
		Name: p.title, Start: p.start, Idle: s.cfg.Idle, Log: s.cfg.Log,
		Installed: func() error { _, err := p.find(); return err },
		Restart:   proc.Policy{Tries: 8, Window: time.Minute, Backoff: 50 * time.Millisecond, MaxBackoff: 5 * time.Second},
	})
	return p
}

func (p *program) state() (state, why string) {
	st := p.component.State()
	if st.Phase == proc.Stopping {
		st.Phase = proc.Idle
	}
	return string(st.Phase), st.Why
}

// instance is a run of a program.
type instance struct {
	*proc.Lifetime
	process   *proc.Process
	output    *proc.Capture
	dir       string // contains its socket
	socket    string
	transport *http.Transport
	loops     sync.WaitGroup
}

// start starts the program and returns when its pages work. If it fails, it releases all resources.
func (p *program) start(ctx context.Context) (*instance, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("not ready after %v", startTime))
	defer cancel()
	if p.s.life.Err() != nil {
		return nil, errStopping
	}
	in, err := p.launch(ctx)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil && p.last.Err() != nil {
		p.note = fmt.Sprintf("%s ended unexpectedly (%v) and was restarted. %s", p.title, p.last.Err(), p.keeps)
	}
	p.last = in
	return in, nil
}

func (p *program) launch(ctx context.Context) (*instance, error) {
	argv, err := p.find()
	if err != nil {
		return nil, err
	}
	dir, err := p.makeFolder()
	if err != nil {
		return nil, err
	}
	in := &instance{Lifetime: proc.NewLifetime(), output: proc.NewCapture(0, outputLimit), dir: dir, socket: filepath.Join(dir, "s")}
	in.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", in.socket)
		},
		DisableCompression: true, MaxIdleConnsPerHost: 16, IdleConnTimeout: 2 * time.Second, // shorter than the timeouts of servers
	}
	command, err := p.prepare(argv, dir, in.socket)
	if err == nil {
		command.Stdout, command.Stderr, command.Session = in.output, in.output, true
		in.process, err = p.s.cfg.Runner.Start(command)
	}
	if err != nil {
		in.Stop()
		return nil, err
	}
	in.loops.Go(func() {
		<-in.process.Done()
		in.End(fmt.Errorf("it %v", in.process.Exit()))
	})
	if err := in.await(ctx, p.probe, p.mark); err != nil {
		in.Stop()
		return nil, err
	}
	return in, nil
}

// makeFolder creates the private folder of an instance.
func (p *program) makeFolder() (string, error) {
	base := filepath.Join(p.s.cfg.State, "workbench")
	if p.s.cfg.State == "" || len(base) > maxFolder {
		base = os.TempDir()
	} else if err := os.MkdirAll(base, 0o700); err != nil {
		return "", fmt.Errorf("create the folder for sockets: %w", err)
	}
	dir, err := os.MkdirTemp(base, p.name+"-") // mode 0700
	if err != nil {
		return "", fmt.Errorf("create the folder of %s: %w", p.title, err)
	}
	return dir, nil
}

// await waits until a page works.
func (in *instance) await(ctx context.Context, path, mark string) error {
	pause := time.NewTicker(probeEvery)
	defer pause.Stop()
	for !in.responds(ctx, path, mark) {
		select {
		case <-in.Done():
			return fmt.Errorf("%w before it was ready: %s", in.Err(), in.lastLine())
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), in.lastLine())
		case <-pause.C:
		}
	}
	return nil
}

// lastLine returns the last line of the program's output.
func (in *instance) lastLine() string {
	lines := strings.Split(strings.TrimSpace(in.output.String()), "\n")
	return cmp.Or(strings.TrimSpace(lines[len(lines)-1]), "it printed nothing")
}

// Stop ends the program with all its processes.
func (in *instance) Stop() {
	in.End(nil)
	if in.process != nil {
		if in.Err() == nil {
			in.process.Stop()
		} else {
			in.process.Kill()
		}
	}
	in.loops.Wait()
	in.transport.CloseIdleConnections()
	os.RemoveAll(in.dir)
}
