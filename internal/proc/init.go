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
)

// InitConfig is what Init starts.
type InitConfig struct {
	Argv []string // the server; Argv[0] is a path
	Env  []string // its complete environment
	Dir  string
	User *User // who it runs as; nil: same user
	// Grace is the time between TERM and KILL for what the server leaves behind:
	// 1s when 0.
	Grace time.Duration
	Log   *slog.Logger
}

// cannotStart is the code of a shell for a command that cannot be run.
const cannotStart = 126

// Init is the life of a process that is PID 1 of a container, or the root parent
// of a server without privileges. It starts the server with our streams, hands
// on TERM, INT, HUP, USR1 and USR2, and collects every orphan that the kernel
// gives us. When the server has ended it ends what is left and returns the
// server's code. It must be alone in its process: it reaps all children.
func Init(cfg InitConfig) int {
	log := cfg.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if cfg.Grace == 0 {
		cfg.Grace = time.Second
	}
	// The server's parent-death signal is tied to this thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			log.Warn("orphans will not be adopted", "error", err)
		}
	}
	in := &initLoop{signals: make(chan os.Signal, 16), children: make(chan os.Signal, 1)}
	// Two channels, so that no flood of ended children can push out a TERM.
	signal.Notify(in.signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(in.signals)
	signal.Notify(in.children, syscall.SIGCHLD)
	defer signal.Stop(in.children)

	if err := in.start(cfg); err != nil {
		log.Error("server cannot be started", "error", err)
		return cannotStart
	}
	exit := in.serve()
	log.Info("server ended", "exit", exit.String())
	if !in.endRest(cfg.Grace) {
		log.Error("some processes survive KILL")
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
	in.server, err = syscall.ForkExec(cfg.Argv[0], cfg.Argv, &syscall.ProcAttr{
		Dir: cfg.Dir, Env: cfg.Env, Files: []uintptr{0, 1, 2},
		// A group of its own, so that ^C at a terminal reaches it once, through us.
		Sys: &syscall.SysProcAttr{Credential: cfg.User.credential(), Setpgid: true, Pdeathsig: syscall.SIGKILL},
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", cfg.Argv[0], err)
	}
	return nil
}

// serve hands on signals and reaps until the server has ended.
func (in *initLoop) serve() Exit {
	for {
		select {
		case sig := <-in.signals:
			// Nobody else reaps, so the number still is the server's.
			_ = syscall.Kill(in.server, sig.(syscall.Signal))
		case <-in.children:
			if exit, _ := in.reap(); exit != notEnded {
				return exit
			}
		}
	}
}

// reap collects everyone who has ended. It tells how the server did, if it was
// among them, and whether any child is left.
func (in *initLoop) reap() (server Exit, left bool) {
	server = notEnded
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil: // no child is left
			return server, false
		case pid == 0:
			return server, true
		case pid == in.server:
			server = exitOf(status)
		}
	}
}

// endRest ends whoever is left below us, and is true when nobody is.
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

// signalRest signals all our descendants. For PID 1 these are all processes that
// it can see, and /proc may show another namespace.
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
			strike(e, sig, func(now entry) bool { return below[now.parent] })
		}
	}
}
