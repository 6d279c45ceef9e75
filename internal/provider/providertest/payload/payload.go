// Package payload is the server that providertest runs inside sandboxes, with which the suite inspects them. It owns one
// ticking goroutine. It has no access control and is for tests only.
package payload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Env is the variable that makes the server misbehave: Never or Exit.
const Env = "PAYLOAD"

// Values of Env.
const (
	Never = "never" // serves, but is never ready
	Exit  = "exit"  // prints LastWords and exits with ExitCode before it serves
)

// Output and exit code of an Exit payload.
const (
	LastWords = "the payload cannot go on"
	ExitCode  = 3
)

// Config provides the environment of the server.
type Config struct {
	Read   func(name string) ([]byte, error)
	Write  func(name string, data []byte) error
	Remove func(name string) error
	Getenv func(string) string
	// Exit ends the program; it may not return.
	Exit func(code int)
	// Run runs a shell command, for tests of one provider; nil disables it.
	Run func(command string) (output []byte, err error)
}

// Server answers requests of the suite.
type Server struct {
	cfg  Config
	mux  *http.ServeMux
	end  chan struct{}
	once sync.Once

	mu     sync.Mutex
	paused bool
	last   time.Time
	gap    time.Duration
}

// New returns a server that ticks until it is closed.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg, mux: http.NewServeMux(), end: make(chan struct{}), last: time.Now()}
	s.mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if cfg.Getenv(Env) == Never {
			http.Error(w, "not now, not ever", http.StatusServiceUnavailable)
		}
	})
	s.mux.HandleFunc("GET /gap", s.serveGap)
	s.mux.HandleFunc("GET /env/{name}", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, cfg.Getenv(r.PathValue("name")))
	})
	s.mux.HandleFunc("GET /disk/{name}", func(w http.ResponseWriter, r *http.Request) {
		data, err := cfg.Read(r.PathValue("name"))
		reply(w, data, err)
	})
	s.mux.HandleFunc("PUT /disk/{name}", func(w http.ResponseWriter, r *http.Request) {
		data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err == nil {
			err = cfg.Write(r.PathValue("name"), data)
		}
		reply(w, nil, err)
	})
	s.mux.HandleFunc("DELETE /disk/{name}", func(w http.ResponseWriter, r *http.Request) {
		reply(w, nil, cfg.Remove(r.PathValue("name")))
	})
	s.mux.HandleFunc("POST /exit/{code}", func(w http.ResponseWriter, r *http.Request) {
		code, _ := strconv.Atoi(r.PathValue("code"))
		go cfg.Exit(code)
	})
	s.mux.HandleFunc("GET /egress", s.serveEgress)
	s.mux.HandleFunc("POST /run", func(w http.ResponseWriter, r *http.Request) {
		command, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil || cfg.Run == nil {
			http.Error(w, "nothing is run here", http.StatusNotImplemented)
			return
		}
		out, err := cfg.Run(string(command))
		if err != nil {
			out = fmt.Appendf(out, "[%v]", err)
		}
		w.Write(out)
	})
	go s.tick()
	return s
}

func reply(w http.ResponseWriter, data []byte, err error) {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		http.Error(w, err.Error(), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		w.Write(data)
	}
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// tick records the longest time in which this process did not run.
func (s *Server) tick() {
	t := time.NewTicker(20 * time.Millisecond) // a hundred of us must not fill a machine
	defer t.Stop()
	for {
		select {
		case <-s.end:
			return
		case <-t.C:
			s.mu.Lock()
			s.step()
			s.mu.Unlock()
		}
	}
}

func (s *Server) step() {
	if s.paused {
		return
	}
	now := time.Now()
	s.gap = max(s.gap, now.Sub(s.last))
	s.last = now
}

// serveGap returns the longest pause since the last request.
func (s *Server) serveGap(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step()
	_, _ = io.WriteString(w, s.gap.String())
	s.gap = 0
}

// Pause and Resume simulate a freezer.
func (s *Server) Pause() { s.hold(true) }

// Resume ends Pause.
func (s *Server) Resume() { s.hold(false) }

func (s *Server) hold(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step()
	s.paused = paused
	s.step()
}

// serveEgress sends a line through the egress socket and returns the response.
func (s *Server) serveEgress(w http.ResponseWriter, r *http.Request) {
	network, addr, ok := strings.Cut(s.cfg.Getenv(sandbox.EnvEgress), ":")
	if !ok {
		http.Error(w, "no egress address is set", http.StatusNotFound)
		return
	}
	c, err := net.DialTimeout(network, addr, 10*time.Second)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintln(c, "hello from inside")
	answer, err := io.ReadAll(io.LimitReader(c, 1<<10))
	reply(w, answer, err)
}

// Close ends the ticking.
func (s *Server) Close() error {
	s.once.Do(func() { close(s.end) })
	return nil
}
