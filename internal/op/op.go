// Package op holds the one definition of an operation. A service lists its
// operations; every route, MCP tool, command-line verb and page of documentation
// comes from that list. The package owns what an operation is (its Spec, its
// input and output types, how input is decoded and checked); it refuses to know
// how an operation is reached: that is internal/surface.
package op

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
)

// Style says how a reply looks on the wire.
type Style int

const (
	// Enveloped replies are {success, message, data, hint}; a failed operation
	// is answered with status 200 and success false.
	Enveloped Style = iota
	// Resource replies are the output itself; a failure has its own status.
	Resource
	// Own replies are the output itself, which carries the envelope's fields
	// among others; a failure is answered as in Enveloped.
	Own
)

// Spec is what a service says about one operation beside its types.
type Spec struct {
	Name  string // unique; also the name of the tool: shell_exec
	Route string // "POST /v1/shell/exec"; a raw handler may leave out the method
	Also  []string
	Tag   string // groups operations in the documentation
	Doc   string // what it does; the first sentence is the summary

	SDK  string // "shell.exec_command": names for generated SDKs, group and method
	Verb string // "gui screenshot"; by default the name with its first _ as the space
	// Columns are what a person sees of a list on the command line; none: all.
	Columns []string

	Style     Style
	Failure   any    // a value of the type that a failure puts into data; nil: nothing
	Public    bool   // reachable without signing in; only for an exact path
	Access    Access // what a caller must be allowed to do; empty: see Needs
	Produces  string // media type of a raw reply, for the documentation
	MaxBody   int64  // limit of the request body; 0 is the server's default, below 0 is none
	Protocols []string

	ReadOnly    bool // changes nothing
	Destructive bool // may lose something
	NoTool      bool // not offered to agents as a tool
	NoVerb      bool // no command-line verb of its own
	NoDoc       bool // not in the OpenAPI document
}

// Summary is the first sentence of the documentation.
func (s Spec) Summary() string {
	if i := strings.Index(s.Doc, ". "); i >= 0 {
		return s.Doc[:i]
	}
	return strings.TrimSuffix(s.Doc, ".")
}

// MethodPath splits the route; the method is empty when any is taken.
func (s Spec) MethodPath() (method, path string) { return splitRoute(s.Route) }

func splitRoute(route string) (method, path string) {
	if m, p, ok := strings.Cut(route, " "); ok {
		return m, p
	}
	return "", route
}

// Words of the command line: noun and verb.
func (s Spec) Words() []string {
	if s.Verb != "" {
		return strings.Fields(s.Verb)
	}
	noun, verb, ok := strings.Cut(s.Name, "_")
	if !ok {
		return []string{noun}
	}
	return []string{noun, strings.ReplaceAll(verb, "_", "-")}
}

// Op is one operation, compiled. Exactly the functions of its shape are set:
// Call for unary and blob replies, Pump for streams (beside Call where one route
// serves both), Talk for duplex, Handler for raw ones.
type Op struct {
	Spec

	// Types are read only when they are needed, to keep the start short. A type
	// that makes no sense panics then; the goldens read them all.
	In     func() *Type // nil comes back for a raw handler
	Out    func() *Type // nil unless Call is set
	Ev     func() *Type // what a stream's events hold, nil without Pump
	Bad    func() *Type // what data holds after a failure, nil: nothing
	Binary bool         // Out is a *Blob

	// Bind decodes and checks the input; a fault is returned as Faults.
	Bind    func(Input) (any, error)
	Call    func(ctx context.Context, in any) (any, error)
	Pump    func(ctx context.Context, in any, send func(Event) error) error
	Talk    func(ctx context.Context, in any, c Conn) error
	Handler http.Handler
}

// Event is one message of a stream. Data is marshalled as JSON.
type Event struct {
	ID   string
	Name string
	Data any
}

// Conn is one duplex connection. Read and Write are safe to use from one
// goroutine each at a time.
type Conn interface {
	Read(ctx context.Context) (data []byte, text bool, err error)
	Write(ctx context.Context, data []byte, text bool) error
	// Close says goodbye with a WebSocket status code; idempotent.
	Close(code int, reason string) error
}

// Choice is an output that is one of several values; its SchemaOp describes them
// all. A MarshalJSON would do, but everything it returns is read once more.
type Choice interface{ ChoiceOp() any }

// New makes a unary operation. An Out of *Blob makes its reply raw bytes.
func New[In, Out any](s Spec, fn func(context.Context, In) (Out, error)) Op {
	o := bind[In](s)
	o.Out = compileOut(reflect.TypeFor[Out]())
	o.Binary = reflect.TypeFor[Out]() == blobType
	filler := sync.OnceValue(func() func(reflect.Value) { return o.Out().filler() })
	o.Call = func(ctx context.Context, in any) (any, error) {
		out, err := fn(ctx, *in.(*In))
		if err != nil {
			return nil, err
		}
		if fill := filler(); fill != nil {
			fill(reflect.ValueOf(&out).Elem())
		}
		if c, ok := any(out).(Choice); ok {
			return c.ChoiceOp(), nil
		}
		return out, nil
	}
	return o
}

// Stream makes an operation whose reply is a stream of events of type Ev.
func Stream[In, Ev any](s Spec, fn func(ctx context.Context, in In, send func(Event) error) error) Op {
	return WithStream[In, Ev](bind[In](s), fn)
}

// WithStream lets a unary operation also answer as a stream: when the request
// says stream=true in its query or accepts text/event-stream.
func WithStream[In, Ev any](o Op, fn func(ctx context.Context, in In, send func(Event) error) error) Op {
	o.Ev = compileOut(reflect.TypeFor[Ev]())
	o.Pump = func(ctx context.Context, in any, send func(Event) error) error {
		return fn(ctx, *in.(*In), send)
	}
	return o
}

// Duplex makes a WebSocket operation. It is no tool and no verb.
func Duplex[In any](s Spec, fn func(ctx context.Context, in In, c Conn) error) Op {
	s.NoTool, s.NoVerb = true, true
	o := bind[In](s)
	o.Talk = func(ctx context.Context, in any, c Conn) error { return fn(ctx, *in.(*In), c) }
	return o
}

// Handle makes a raw operation: pages and proxies. It is no tool, no verb, and
// not in the OpenAPI document, but in the same table and behind the same sign-in.
func Handle(s Spec, h http.Handler) Op {
	s.NoTool, s.NoVerb, s.NoDoc = true, true, true
	check(s)
	return Op{Spec: s, Handler: h, In: func() *Type { return nil }}
}

func bind[In any](s Spec) Op {
	check(s)
	in := sync.OnceValue(func() *Type {
		t := compileIn(reflect.TypeFor[In]())
		if err := t.matches(s); err != nil {
			panic(fmt.Sprintf("op %s: %v", s.Name, err))
		}
		return t
	})
	var bad func() *Type
	if s.Failure != nil {
		bad = compileOut(reflect.TypeOf(s.Failure))
	}
	return Op{Spec: s, In: in, Bad: bad, Bind: func(src Input) (any, error) {
		v := new(In)
		if faults := in().decode(reflect.ValueOf(v).Elem(), src); len(faults) > 0 {
			return nil, faults
		}
		return v, nil
	}}
}

// check panics on a Spec that cannot be served: a mistake of ours, found at start.
func check(s Spec) {
	_, path := s.MethodPath()
	switch {
	case s.Name == "":
		panic("op: an operation has no name: " + s.Route)
	case !strings.HasPrefix(path, "/"):
		panic("op " + s.Name + ": the route must be \"METHOD /path\", not " + s.Route)
	case s.Doc == "":
		panic("op " + s.Name + ": the doc is missing")
	case s.Tag == "":
		panic("op " + s.Name + ": the tag is missing")
	case s.Public && strings.Contains(path, "{"):
		panic("op " + s.Name + ": a public operation must have an exact path")
	}
}

// Table is every operation of a program.
type Table struct {
	ops    []Op
	byName map[string]int
}

// NewTable joins the services' lists; it panics when two operations share a
// name, a route or a verb.
func NewTable(lists ...[]Op) *Table {
	n := 0
	for _, list := range lists {
		n += len(list)
	}
	t := &Table{ops: make([]Op, 0, n), byName: make(map[string]int, n)}
	type thing struct{ kind, key string }
	seen := make(map[thing]string, 3*n)
	claim := func(kind, key, name string) {
		if other, ok := seen[thing{kind, key}]; ok {
			panic(fmt.Sprintf("op: %s and %s have the same %s %q", other, name, kind, key))
		}
		seen[thing{kind, key}] = name
	}
	for _, list := range lists {
		for _, o := range list {
			claim("name", o.Name, o.Name)
			claim("route", o.Route, o.Name)
			for _, route := range o.Also {
				claim("route", route, o.Name)
			}
			if !o.NoVerb {
				claim("verb", strings.Join(o.Words(), " "), o.Name)
			}
			t.byName[o.Name] = len(t.ops)
			t.ops = append(t.ops, o)
		}
	}
	return t
}

// All operations in the order they were listed.
func (t *Table) All() []Op { return t.ops }

// Get finds an operation by name.
func (t *Table) Get(name string) (Op, bool) {
	i, ok := t.byName[name]
	if !ok {
		return Op{}, false
	}
	return t.ops[i], true
}

// Public tells whether exactly this method and path need no sign-in.
func (t *Table) Public() func(method, path string) bool {
	open := map[string]bool{}
	for _, o := range t.ops {
		if o.Public {
			method, path := o.MethodPath()
			open[method+" "+path] = true
			if method == http.MethodGet {
				open[http.MethodHead+" "+path] = true
			}
		}
	}
	return func(method, path string) bool { return open[method+" "+path] }
}
