// Package kernel runs Jupyter kernels and speaks their protocol: signed messages in
// ZMTP 3 over Unix sockets in a private folder. It also defines cells, their results and
// their outputs for all services that run code.
//
// A Kernel owns its process, its folder, its five connections and the goroutines that read
// them, from Start to Close. It runs one cell at a time and keeps a limited part of the
// output of each. It ignores unsigned messages and replies to other clients, and rejects
// requests for input. Callers choose the kernel and the timeout of a cell.
package kernel

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// drainTime limits the reading of output after a kernel has exited. Only a forked child
	// that keeps the socket open reaches the limit.
	drainTime = 250 * time.Millisecond
	// breakTime is how long a process may take to exit after it closed a connection.
	breakTime = 2 * time.Second
	// subscribeTime is how long to wait for the first iopub message before another request
	// is sent.
	subscribeTime = 100 * time.Millisecond
	// shutdownTime is how long a kernel may take to exit after a shutdown request.
	shutdownTime = 3 * time.Second
	// defaultOutputLimit is how many bytes of a cell's outputs are kept by default.
	defaultOutputLimit = 16 << 20
	// ipython is the implementation of Python's kernel.
	ipython = "ipython"
	// reportLimit is how many bytes of the process's own stdout and stderr are kept.
	reportLimit = 8 << 10
)

//go:embed bootstrap.py
var bootstrap string

// Config of a kernel.
type Config struct {
	Runner *proc.Runner
	Spec   Spec
	Dir    string   // working directory of the first cell
	Env    []string // complete environment; nil: the runner's
	// RuntimeDir is where the kernel's private folder is created. Empty: the temporary
	// folder.
	RuntimeDir string
	// OutputLimit is how many bytes of one cell's outputs are kept; 0: 16 MiB. The first
	// half is emitted immediately, the last half after the end of the cell.
	OutputLimit int64
	Log         *slog.Logger
}

// Info describes a kernel.
type Info struct {
	Language        string // as in "python"
	LanguageVersion string
	Implementation  string // as in "ipython"
	Version         string // of the implementation
}

// Kernel is a running kernel. Its methods may be called concurrently.
type Kernel struct {
	cfg     Config
	log     *slog.Logger
	conn    *connection
	process *proc.Process
	report  *proc.Capture // the process's own stdout and stderr
	info    Info

	channels
	heart   *heartbeat
	session string
	count   atomic.Uint64 // of requests
	shared  atomic.Int64  // Unix time in nanoseconds of the last request of another client; 0: none

	turn chan struct{} // held by the cell that runs

	mu      sync.Mutex
	pending map[string]*pending

	subscribeOnce sync.Once
	subscribed    chan struct{} // closed after the first iopub message

	readers   sync.WaitGroup
	broken    chan struct{} // has an element when a connection ended
	drained   chan struct{} // closed when iopub ended
	dead      chan struct{} // closed when the process has exited; err says how
	err       error
	closing   atomic.Bool
	closeOnce sync.Once
}

// Start starts a kernel and returns when it can run cells without losing output. ctx limits
// the start, not the lifetime of the kernel.
func Start(ctx context.Context, cfg Config) (*Kernel, error) {
	if cfg.OutputLimit <= 0 {
		cfg.OutputLimit = defaultOutputLimit
	}
	if cfg.RuntimeDir == "" {
		cfg.RuntimeDir = os.TempDir()
	}
	k := &Kernel{
		cfg: cfg, log: cfg.Log, report: proc.NewCapture(0, reportLimit),
		session: rand.Text(), turn: make(chan struct{}, 1), pending: map[string]*pending{},
		subscribed: make(chan struct{}), broken: make(chan struct{}, 1), drained: make(chan struct{}), dead: make(chan struct{}),
	}
	if k.log == nil {
		k.log = slog.New(slog.DiscardHandler)
	}
	if err := k.launch(ctx); err != nil {
		return nil, fmt.Errorf("start kernel %s: %w", cfg.Spec.Name, err)
	}
	if err := k.prepare(ctx); err != nil {
		k.Close()
		return nil, fmt.Errorf("start kernel %s: %w", cfg.Spec.Name, err)
	}
	return k, nil
}

// launch starts the process and connects to it. If it fails, it releases all resources.
func (k *Kernel) launch(ctx context.Context) error {
	env := k.cfg.Env
	if env == nil {
		env = k.cfg.Runner.Environ()
	}
	if len(k.cfg.Spec.Argv) == 0 {
		return errors.New("the kernel specification names no program")
	}
	var err error
	if k.conn, err = newConnection(k.cfg.RuntimeDir, k.cfg.Spec.Name); err != nil {
		return err
	}
	argv := k.cfg.Spec.command(k.conn.file())
	k.process, err = k.cfg.Runner.Start(proc.Command{
		Path: argv[0], Args: argv[1:], Dir: k.cfg.Dir, Env: k.cfg.Spec.environment(env),
		Stdout: k.report, Stderr: k.report, Session: true,
	})
	if err != nil {
		k.conn.remove()
		return err
	}
	if k.channels, err = k.conn.connect(ctx, k.process.Done()); err != nil {
		select {
		case <-k.process.Done():
			err = k.exitError()
		default:
		}
		k.process.Kill()
		k.conn.remove()
		return err
	}
	k.heart = newHeartbeat(k.channels.heart)
	k.read("shell", k.shell, k.onReply)
	k.read("control", k.control, k.onReply)
	k.read("iopub", k.iopub, k.onOutput)
	k.read("stdin", k.stdin, k.onInput)
	k.readers.Go(func() { k.connectionEnded("heartbeat", k.heart.listen()) })
	k.readers.Go(k.watch)
	return nil
}

// prepare waits until the kernel replies and the subscription to its outputs works, and
// runs the bootstrap.
func (k *Kernel) prepare(ctx context.Context) error {
	for {
		reply, err := k.request(ctx, k.shell, "kernel_info_request", struct{}{})
		if err != nil {
			return err
		}
		var c struct {
			Implementation string `json:"implementation"`
			Version        string `json:"implementation_version"`
			Language       struct {
				Name    string `json:"name"`
				Version string `json:"version"`
			} `json:"language_info"`
		}
		if err := json.Unmarshal(reply.content, &c); err != nil {
			return fmt.Errorf("parse kernel_info_reply: %w", err)
		}
		k.info = Info{c.Language.Name, c.Language.Version, c.Implementation, c.Version}
		// Every request causes iopub messages. After the first one no output is lost.
		select {
		case <-k.subscribed:
			return k.setUp(ctx)
		case <-time.After(subscribeTime):
		}
	}
}

// setUp runs the bootstrap. It is an expression because IPython replaces the streams while
// code runs, and restores them afterwards.
func (k *Kernel) setUp(ctx context.Context) error {
	if k.info.Implementation != ipython {
		return nil
	}
	source, err := json.Marshal(bootstrap) // also a string literal in Python
	if err != nil {
		return fmt.Errorf("encode the setup code: %w", err)
	}
	const name = "cove"
	reply, err := k.Execute(ctx, Request{Silent: true, expressions: map[string]string{
		name: "exec(" + string(source) + ", {'get_ipython': get_ipython})",
	}}, nil)
	if e := reply.expressions[name]; err == nil && e.Status != "ok" {
		// The kernel works without it, but may order output wrongly.
		k.log.Warn("kernel setup failed", "kernel", k.cfg.Spec.Name, "error", e.EName, "message", e.EValue)
	}
	return err
}

// Info describes the kernel.
func (k *Kernel) Info() Info { return k.info }

// PID is the process ID of the kernel, which is also its process group.
func (k *Kernel) PID() int { return k.process.PID() }

// ConnectionFile is the file with which other Jupyter clients of the same user connect to
// the kernel.
func (k *Kernel) ConnectionFile() string { return k.conn.file() }

// SharedUse is the time of the last request of another client; zero: there was none.
func (k *Kernel) SharedUse() time.Time {
	if at := k.shared.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Done is closed when the kernel's process has exited.
func (k *Kernel) Done() <-chan struct{} { return k.dead }

// Err says why the kernel ended. It is nil while the kernel runs.
func (k *Kernel) Err() error {
	select {
	case <-k.dead:
		return k.err
	default:
		return nil
	}
}

// Interrupt interrupts the running cell, which may ignore it. It is a no-op if no cell runs.
func (k *Kernel) Interrupt() error {
	if k.cfg.Spec.InterruptMode == "message" {
		p, forget := k.expect(nil, true)
		defer forget()
		if err := k.send(k.control, p, "interrupt_request", struct{}{}); err != nil {
			return fmt.Errorf("interrupt kernel: %w", err)
		}
		return nil
	}
	// Signal the process group: os.system ignores the signal while its child runs, so the
	// child must receive it.
	if err := k.process.Signal(syscall.SIGINT); err != nil {
		return fmt.Errorf("interrupt kernel: %w", err)
	}
	return nil
}

// Shutdown requests a shutdown, so that exit handlers run, waits at most shutdownTime or
// until ctx ends, and closes the kernel.
func (k *Kernel) Shutdown(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, shutdownTime)
	defer cancel()
	k.closing.Store(true)
	p, forget := k.expect(nil, true)
	defer forget()
	if k.send(k.control, p, "shutdown_request", map[string]any{"restart": false}) == nil {
		select {
		case <-k.dead:
		case <-ctx.Done():
		}
	}
	return k.Close()
}

// Close kills the kernel's process group and releases all resources. It is idempotent.
func (k *Kernel) Close() error {
	k.closeOnce.Do(func() {
		k.closing.Store(true)
		k.process.Kill()
		k.readers.Wait()
		k.conn.remove()
	})
	return nil
}

// watch closes dead when the process has exited. It kills a process that has closed a
// connection.
func (k *Kernel) watch() {
	disconnected := false
	select {
	case <-k.process.Done():
	case <-k.broken:
		// A process that exits closes its connections first.
		select {
		case <-k.process.Done():
		case <-time.After(breakTime):
			disconnected = true
			k.process.Kill()
		}
	}
	select {
	case <-k.drained:
	case <-time.After(drainTime):
	}
	switch {
	case k.closing.Load():
		k.err = ErrClosed
	case disconnected:
		k.err = errDisconnected
	default:
		k.err = k.exitError()
	}
	close(k.dead)
	k.channels.close()
}
