// Package interpreter serves E2B's code interpreter: it runs code in contexts that keep their
// variables, and streams the outputs as lines of JSON.
//
// It owns the contexts and the conversion of outputs. Python, R and Java run in Jupyter kernels,
// JavaScript and TypeScript in Node.js, and shell commands in bash.
package interpreter

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// Port is the port on which E2B's clients expect the service.
const Port = 49999

// Path is the path prefix of requests for the port.
const Path = "/e2b/interpreter"

const (
	// maxBody limits the size of a request.
	maxBody = 64 << 20
	// maxContexts limits the contexts of all languages.
	maxContexts = 64
)

// Runner runs code in sessions.
type Runner interface {
	Run(ctx context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error)
}

// Language is a Runner and the function that ends its sessions.
type Language struct {
	Runner
	End func(ctx context.Context, session string)
}

// Shell runs commands. It calls send with the text of stdout and stderr as it is produced.
type Shell func(ctx context.Context, session, dir, code string, send func(stream, text string) error) (exit int, err error)

// Run implements Runner.
func (sh Shell) Run(ctx context.Context, c kernel.Cell, emit func(kernel.Output) error) (kernel.Result, error) {
	exit, err := sh(ctx, c.Session, c.Dir, c.Code, func(stream, text string) error {
		if emit == nil {
			return nil
		}
		return emit(kernel.Output{Type: kernel.Stream, Name: stream, Text: text})
	})
	r := kernel.Result{Status: kernel.OK, Session: c.Session, ExitCode: exit}
	if exit != 0 {
		r.Status = kernel.Failed
	}
	return r, err
}

// Config of the service.
type Config struct {
	Python, JavaScript, Bash Language
	// StripTypes converts TypeScript to JavaScript. It calls installing if it installs the program that does so.
	StripTypes func(ctx context.Context, code string, installing func()) (string, error)
	// Home returns the home of the user, which is the default working directory.
	Home func() string
	Log  *slog.Logger
}

// Service runs code for E2B's clients.
type Service struct {
	Config
	routes func() *http.ServeMux

	mu       sync.Mutex
	contexts map[string]*place // by ID
	standard map[string]*place // by language
	made     int               // number of contexts that were ever created
}

// place is a context: a session of a language.
type place struct {
	ID       string `json:"id"`
	Language string `json:"language"`
	Cwd      string `json:"cwd"`

	turn    chan struct{} // one execution at a time
	session string        // guarded by the service's mutex; a restart replaces it
	begun   bool          // it has run code
	order   int           // of creation
	count   int
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	s := &Service{Config: c, contexts: map[string]*place{}, standard: map[string]*place{}}
	s.routes = sync.OnceValue(s.newRoutes)
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{op.Handle(op.Spec{Name: "e2b_interpreter", Content: op.ContentAPI, Route: Path + "/{path...}", Tag: "e2b",
		Doc: "Serves E2B's code interpreter, as on port 49999 of their sandboxes."},
		http.StripPrefix(Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.routes().ServeHTTP(w, r) })))}
}

// Close does nothing: the languages own the sessions.
func (s *Service) Close() error { return nil }

func (s *Service) newRoutes() *http.ServeMux {
	m := http.NewServeMux()
	m.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, "OK") })
	m.HandleFunc("POST /execute", s.execute)
	m.HandleFunc("POST /contexts", s.create)
	m.HandleFunc("GET /contexts", s.list)
	m.HandleFunc("DELETE /contexts/{id}", s.remove)
	m.HandleFunc("POST /contexts/{id}/restart", s.restart)
	return m
}

func reply(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // the types are always encodable
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // the client may have disconnected
}

// readInto decodes the body of a request. If it fails, it sends the error reply.
func readInto(w http.ResponseWriter, r *http.Request, in any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(in)
	if err != nil && !errors.Is(err, io.EOF) {
		http.Error(w, "invalid request: "+err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

// names maps names and short names to languages.
var names = map[string]string{
	"": "python", "python": "python", "python3": "python", "javascript": "javascript", "js": "javascript",
	"typescript": "typescript", "ts": "typescript", "bash": "bash", "sh": "bash",
	"r": "r", "java": "java",
}

// kernels are the kernels of languages that run in Jupyter, as Python does.
var kernels = map[string]string{"r": "ir", "java": "java"}

// language returns the runner of a language.
func (s *Service) language(name string) Language {
	switch name {
	case "python", "r", "java":
		return s.Python
	case "bash":
		return s.Bash
	}
	return s.JavaScript
}

// normalize returns the name of a language. If it is unsupported, it sends the error reply.
func normalize(w http.ResponseWriter, name string) (string, bool) {
	full, ok := names[strings.ToLower(name)]
	if !ok {
		http.Error(w, "unsupported language "+strings.TrimSpace(name)+
			"; use python, javascript, typescript, bash, r or java", http.StatusBadRequest)
	}
	return full, ok
}

func (s *Service) newPlace(language, cwd string) *place {
	if cwd == "" {
		cwd = s.Home()
	}
	return &place{ID: newID(), Language: language, Cwd: cwd, session: newSession(), turn: make(chan struct{}, 1)}
}

func newID() string      { return strings.ToLower(rand.Text()[:16]) }
func newSession() string { return "e2b-" + newID() }

func (s *Service) sessionOf(p *place) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return p.session
}

type createIn struct {
	Language *string `json:"language"`
	Cwd      *string `json:"cwd"`
}

func (s *Service) create(w http.ResponseWriter, r *http.Request) {
	var in createIn
	if !readInto(w, r, &in) {
		return
	}
	language, ok := normalize(w, op.Value(in.Language))
	if !ok {
		return
	}
	if cwd := op.Value(in.Cwd); cwd != "" {
		if err := os.MkdirAll(cwd, 0o755); err != nil {
			http.Error(w, fmt.Sprintf("cwd %q is not a folder: %v", cwd, err), http.StatusBadRequest)
			return
		}
	}
	s.addDefaults() // they precede the new context in a list
	p := s.newPlace(language, op.Value(in.Cwd))
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.contexts)-len(s.standard) >= maxContexts {
		http.Error(w, fmt.Sprintf("context limit reached (%d); remove a context first", maxContexts), http.StatusTooManyRequests)
		return
	}
	s.add(p)
	reply(w, http.StatusOK, p)
}

func (s *Service) list(w http.ResponseWriter, _ *http.Request) {
	s.addDefaults()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*place, 0, len(s.contexts))
	for _, p := range s.contexts {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *place) int { return cmp.Compare(a.order, b.order) })
	reply(w, http.StatusOK, list)
}

// addDefaults adds the contexts that clients expect before they run code.
func (s *Service) addDefaults() {
	s.findStandard("python")
	s.findStandard("javascript")
}

// add adds a context. The caller holds the mutex.
func (s *Service) add(p *place) {
	s.made++
	p.order = s.made
	s.contexts[p.ID] = p
}

// find returns a context by its ID.
func (s *Service) find(id string) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contexts[id]
}

// findStandard returns the default context of a language and creates it if necessary.
func (s *Service) findStandard(language string) *place {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.standard[language]; p != nil {
		return p
	}
	p := s.newPlace(language, "")
	s.standard[language] = p
	s.add(p)
	return p
}

func (s *Service) remove(w http.ResponseWriter, r *http.Request) {
	p := s.find(r.PathValue("id"))
	if p == nil {
		http.Error(w, "Context "+r.PathValue("id")+" not found", http.StatusNotFound)
		return
	}
	s.mu.Lock()
	delete(s.contexts, p.ID)
	if s.standard[p.Language] == p {
		delete(s.standard, p.Language)
	}
	session := p.session
	s.mu.Unlock()
	s.language(p.Language).End(r.Context(), session)
	w.WriteHeader(http.StatusOK)
}

func (s *Service) restart(w http.ResponseWriter, r *http.Request) {
	p := s.find(r.PathValue("id"))
	if p == nil {
		http.Error(w, "Context "+r.PathValue("id")+" not found", http.StatusNotFound)
		return
	}
	s.mu.Lock()
	session := p.session
	p.session = newSession()
	s.mu.Unlock()
	s.language(p.Language).End(r.Context(), session)
	select {
	case p.turn <- struct{}{}:
		p.begun, p.count = false, 0
		<-p.turn
	case <-r.Context().Done():
	}
	w.WriteHeader(http.StatusOK)
}
