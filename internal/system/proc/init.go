package proc

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/disposition"
)

// InitConfig describes the server that Init starts.
type InitConfig struct {
	Argv []string // the server; Argv[0] is a path
	Env  []string // its complete environment
	Dir  string
	User *User // user of the server; nil: same user
	// Grace is the time between TERM and KILL for processes that the server
	// leaves: 1s when 0.
	Grace time.Duration
	Log   *slog.Logger
	// Enter, if not nil, prepares the process of the server.
	Enter *Enter
}

// cannotStart is the exit code of shells for a command that cannot be run.
const cannotStart = 126

// Init runs as PID 1 of a container, or as the root parent of an unprivileged
// server. It starts the server with its own streams, forwards TERM, INT, HUP, USR1
// and USR2, and reaps orphans. When the server has ended, it ends the remaining
// processes and returns the server's exit code. It reaps all children, so no other
// code of its process may start any.
func Init(cfg InitConfig) int {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg.Log = log
	if cfg.Grace == 0 {
		cfg.Grace = time.Second
	}
	// The server's parent-death signal is tied to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			log.Warn("cannot adopt orphans", "error", err)
		}
	}
	in := &initLoop{signals: make(chan os.Signal, 16), children: make(chan os.Signal, 1)}
	// Two channels, so that many ended children cannot displace a TERM.
	signal.Notify(in.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(in.signals)
	signal.Notify(in.children, syscall.SIGCHLD)
	defer signal.Stop(in.children)

	if err := disposition.Reset(); err != nil {
		log.Warn("the server may inherit blocked signals", "error", err)
	}
	if err := in.start(cfg); err != nil {
		log.Error("server failed to start", "error", err)
		return cannotStart
	}
	exit := in.forwardSignals()
	log.Info("server ended", "exit", exit.String())
	if !in.endRest(cfg.Grace) {
		log.Error("some processes survived SIGKILL")
	}
	return exit.Code
}

type initLoop struct {
	server   int // pid
	signals  chan os.Signal
	children chan os.Signal
}

func (in *initLoop) start(cfg InitConfig) error {
	if len(cfg.Argv) == 0 {
		return errors.New("start server: no program given")
	}
	var err error
	if cfg.Enter != nil {
		if in.server, err = in.enter(cfg); err == nil {
			return nil
		}
		cfg.Log.Warn("programs must use the proxy", "error", err)
		cfg.Enter.Without()
	}
	in.server, err = syscall.ForkExec(cfg.Argv[0], cfg.Argv, &syscall.ProcAttr{
		Dir: cfg.Dir, Env: cfg.Env, Files: []uintptr{0, 1, 2},
		// Its own group, so that ^C at a terminal reaches it once, through Init.
		Sys: &syscall.SysProcAttr{Credential: cfg.User.credential(), Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", cfg.Argv[0], err)
	}
	return nil
}

// forwardSignals forwards signals and reaps until the server has ended.
func (in *initLoop) forwardSignals() Exit {
	for {
		select {
		case sig := <-in.signals:
			// Only this loop reaps, so the number is still the server's.
			_ = syscall.Kill(in.server, sig.(syscall.Signal))
		case <-in.children:
			if exit, _ := in.reap(); exit != notEnded {
				return exit
			}
		}
	}
}

// reap reaps all children that have ended. It returns the exit of the server, if
// it was among them, and whether any child remains.
func (in *initLoop) reap() (server Exit, left bool) {
	server = notEnded
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no child remains
			return server, false
		case pid == 0:
			return server, true
		case pid == in.server:
			server = exitOf(status)
		}
	}
}

// endRest ends the remaining descendants, and returns true if none remains.
func (in *initLoop) endRest(grace time.Duration) bool {
	if _, left := in.reap(); !left {
		return true
	}
	signalRest(syscall.SIGTERM)
	start := time.Now()
	for time.Since(start) < grace+killWait {
		select {
		case <-in.children:
		case <-time.After(pollPause):
		}
		if _, left := in.reap(); !left {
			return true
		}
		if time.Since(start) >= grace {
			signalRest(syscall.SIGKILL)
		}
	}
	return false
}

// signalRest signals all descendants. For PID 1 these are all visible
// processes; /proc may show another namespace.
func signalRest(sig syscall.Signal) {
	if os.Getpid() == 1 {
		_ = syscall.Kill(-1, sig)
		return
	}
	table, err := processes()
	if err != nil {
		return
	}
	below := map[int]bool{os.Getpid(): true}
	for grown := true; grown; {
		grown = false
		for _, e := range table {
			if below[e.parent] && !below[e.pid] {
				below[e.pid], grown = true, true
			}
		}
	}
	for _, e := range table {
		if below[e.pid] && e.pid != os.Getpid() {
			signalIfOwned(e, sig, func(now entry) bool { return below[now.parent] })
		}
	}
}
