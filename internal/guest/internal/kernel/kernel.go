// Package kernel runs Jupyter kernels and speaks their wire protocol: ZeroMQ's
// own (ZMTP 3) over unix sockets in a private folder, with signed messages.
//
// A Kernel owns its process, its folder, its five connections and the goroutines
// that read them, from Start to Close. It keeps a bounded part of what a cell
// prints, however much that is. It runs one cell at a time, and refuses
// unsigned messages, messages that answer somebody else, and questions to the
// user, for there is none. Which cells run where, and for how long, is the
// caller's to say.
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
	// drainTime is how long a dead kernel's last words may take to be read. They
	// are in the socket already; only a forked child that holds it open delays its end.
	drainTime = 250 * time.Millisecond
	// breakTime is how long a process may live on after it closed a connection.
	breakTime = 2 * time.Second
	// subscribeTime is how long we wait for a sign of the iopub subscription
	// before asking for another.
	subscribeTime = 100 * time.Millisecond
	// shutdownTime is how long a kernel may take to end when asked.
	shutdownTime = 3 * time.Second
	// defaultOutputLimit is what of a cell's outputs is kept.
	defaultOutputLimit = 16 << 20
	// reportLimit is how much of what the process itself writes is kept.
	reportLimit = 8 << 10
)

//go:embed bootstrap.py
var bootstrap string

// Config is what a kernel is started with.
type Config struct {
	Runner *proc.Runner
	Spec   Spec
	Dir    string   // working directory of the first cell
	Env    []string // complete environment; nil: the runner's
	// RuntimeDir is where the kernel's private folder is made. Empty: the
	// system's folder for temporary files.
	RuntimeDir string
	// OutputLimit is how many bytes of one cell's outputs are kept: 16 MiB when 0.
	// The first half is emitted as it comes, the last half when the cell is over.
	OutputLimit int64
	Log         *slog.Logger
}

// Info is what a kernel says of itself.
type Info struct {
	Language        string // as in "python"
	LanguageVersion string
	Implementation  string // as in "ipython"
	Version         string // of the implementation
}

// Kernel is a running kernel. Its methods may be called by many goroutines.
type Kernel struct {
	cfg     Config
	log     *slog.Logger
	place   *connection
	process *proc.Process
	report  *proc.Capture // what the process writes outside the protocol
	info    Info

	channels
	heart   *heartbeat
	session string
	count   atomic.Uint64 // of requests
	shared  atomic.Int64  // when another client was served, in nanoseconds; 0: never

	turn chan struct{} // held by the cell that runs

	mu      sync.Mutex
	pending map[string]*pending

	hearOnce sync.Once
	heard    chan struct{} // closed when the first iopub message came

	readers   sync.WaitGroup
	broken    chan struct{} // has an element when a connection ended
	drained   chan struct{} // closed when iopub ended
	dead      chan struct{} // closed when the process is gone; err says how
	err       error
	closing   atomic.Bool
	closeOnce sync.Once
}

// Start starts a kernel and returns when it can run cells and no output would be
// lost. ctx bounds the start, not the kernel's life.
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
		heard: make(chan struct{}), broken: make(chan struct{}, 1), drained: make(chan struct{}), dead: make(chan struct{}),
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

// launch starts the process and connects to it. It leaves nothing behind when it fails.
func (k *Kernel) launch(ctx context.Context) error {
	env := k.cfg.Env
	if env == nil {
		env = k.cfg.Runner.Environ()
	}
	if len(k.cfg.Spec.Argv) == 0 {
		return errors.New("the kernel specification names no program")
	}
	var err error
	if k.place, err = newConnection(k.cfg.RuntimeDir, k.cfg.Spec.Name); err != nil {
		return err
	}
	argv := k.cfg.Spec.command(k.place.file())
	k.process, err = k.cfg.Runner.Start(proc.Command{
		Path: argv[0], Args: argv[1:], Dir: k.cfg.Dir, Env: k.cfg.Spec.environment(env),
		Stdout: k.report, Stderr: k.report, Session: true,
	})
	if err != nil {
		k.place.remove()
		return err
	}
	if k.channels, err = k.place.connect(ctx, k.process.Done()); err != nil {
		select {
		case <-k.process.Done():
			err = k.exitError()
		default:
		}
		k.process.Kill()
		k.place.remove()
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

// prepare waits until the kernel answers and our subscription to its outputs
// holds, and sets it up.
func (k *Kernel) prepare(ctx context.Context) error {
	for {
		reply, err := k.ask(ctx, k.shell, "kernel_info_request", struct{}{})
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
		// Every request is announced on iopub. Once we hear any of it nothing is lost.
		select {
		case <-k.heard:
			return k.setUp(ctx)
		case <-time.After(subscribeTime):
		}
	}
}

// setUp runs the bootstrap. As an expression: while code runs, IPython has its
// hands on the streams and puts back what it found.
func (k *Kernel) setUp(ctx context.Context) error {
	if k.info.Implementation != "ipython" {
		return nil
	}
	source, err := json.Marshal(bootstrap) // which is a string literal in Python too
	if err != nil {
		return fmt.Errorf("encode the setup code: %w", err)
	}
	const name = "cove"
	reply, err := k.Execute(ctx, Request{Silent: true, expressions: map[string]string{
		name: "exec(" + string(source) + ", {'get_ipython': get_ipython})",
	}}, nil)
	if e := reply.expressions[name]; err == nil && e.Status != "ok" {
		// It works without, only less well.
		k.log.Warn("kernel setup failed", "kernel", k.cfg.Spec.Name, "error", e.EName, "message", e.EValue)
	}
	return err
}

// Info tells what the kernel said of itself.
func (k *Kernel) Info() Info { return k.info }

// PID is the process id of the kernel, which leads a process group.
func (k *Kernel) PID() int { return k.process.PID() }

// ConnectionFile tells other Jupyter clients of the same user how to reach the kernel.
func (k *Kernel) ConnectionFile() string { return k.place.file() }

// SharedUse is when the kernel last did something for another client; zero: never.
func (k *Kernel) SharedUse() time.Time {
	if at := k.shared.Load(); at != 0 {
		return time.Unix(0, at)
	}
	return time.Time{}
}

// Done is closed when the kernel's process is gone.
func (k *Kernel) Done() <-chan struct{} { return k.dead }

// Err tells how the kernel ended, and nil while it lives.
func (k *Kernel) Err() error {
	select {
	case <-k.dead:
		return k.err
	default:
		return nil
	}
}

// Interrupt stops the cell that runs, if it lets itself be stopped. It does
// nothing to a kernel that runs none.
func (k *Kernel) Interrupt() error {
	if k.cfg.Spec.InterruptMode == "message" {
		p, forget := k.expect(nil, true)
		defer forget()
		if err := k.send(k.control, p, "interrupt_request", struct{}{}); err != nil {
			return fmt.Errorf("interrupt kernel: %w", err)
		}
		return nil
	}
	// To the whole group: os.system and its like ignore the signal while their
	// child runs, so the child needs it.
	if err := k.process.Signal(syscall.SIGINT); err != nil {
		return fmt.Errorf("interrupt kernel: %w", err)
	}
	return nil
}

// Shutdown asks the kernel to end, so that its exit handlers run, waits a little
// (less if ctx ends) and closes it.
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

// Close ends the kernel at once, with all that runs in its process group, and
// gives everything back. It may be called more than once.
func (k *Kernel) Close() error {
	k.closeOnce.Do(func() {
		k.closing.Store(true)
		k.process.Kill()
		k.readers.Wait()
		k.place.remove()
	})
	return nil
}

// watch ends the kernel's life when its process or a connection ends.
func (k *Kernel) watch() {
	severed := false
	select {
	case <-k.process.Done():
	case <-k.broken:
		// A process that exits closes its connections first.
		select {
		case <-k.process.Done():
		case <-time.After(breakTime):
			severed = true
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
	case severed:
		k.err = errSevered
	default:
		k.err = k.exitError()
	}
	close(k.dead)
	k.channels.close()
}
