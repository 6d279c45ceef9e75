// Package op defines operations. A service lists its operations, and every route, MCP tool,
// command-line verb and documentation page is derived from that list. The package owns the
// definition of an operation: its Spec, its input and output types, and the decoding and
// validation of input. Packages below internal/surface make operations reachable.
package op

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
)

// Style is the format of a response.
type Style int

const (
	// Enveloped responses are {success, message, data, hint}; the status of a failure is 200,
	// with success false.
	Enveloped Style = iota
	// Resource responses are the output itself; a failure has the status of its code.
	Resource
	// Own responses are the output itself, which includes the envelope's fields; a failure has
	// the format of Enveloped.
	Own
	// Coded responses are the output itself; a failure is {code, message}, where code is its
	// status as a number.
	Coded
)

// Spec describes one operation, apart from its types.
type Spec struct {
	Name  string   // unique, such as shell_exec; also the name of the tool
	Route string   // such as "POST /v1/shell/exec"; a raw handler can omit the method
	Also  []string // additional routes
	Tag   string   // group in the documentation
	Doc   string   // description; the first sentence is the summary

	SDK  string // group and method in generated SDKs, such as "shell.exec_command"
	Verb string // such as "gui screenshot"; by default the name, split at its first _
	Tool string // name as a tool of the hub; empty: it is not a tool
	// Columns are the fields of a list that the command line shows to a person; nil
	// means all.
	Columns []string
	Wide    []string // additional columns of the wide format

	Style Style
	// Status of a successful response of style Coded; 0 means 200. With 204 the output is not sent.
	Status int
	// Missing404 makes the status of a NotFound failure 404 even in an enveloped response, as
	// clients of the public image expect.
	Missing404 bool
	Failure    any      // a value of the type of a failure's data; nil if it has none
	Public     bool     // callable without authentication; requires an exact path
	Access     Access   // required access; empty means the default, see RequiredAccess
	Content    Content  // class of the response; required for raw responses
	Framed     bool     // foreign content that a built-in page shows in a frame instead of as a download
	Produces   string   // media type of a raw response, for the documentation
	Headers    []string // headers of a response, for the documentation
	Statuses   []int    // additional statuses of a failure, for the documentation
	MaxBody    int64    // limit of the request body; 0 means the server's default, below 0 none
	Protocols  []string // WebSocket subprotocols

	ReadOnly    bool // changes nothing
	Destructive bool // can lose data
	NoTool      bool // is not an MCP tool
	NoVerb      bool // is not a command-line verb
	NoDoc       bool // is not in the OpenAPI document
}

// Summary returns the first sentence of Doc.
func (s Spec) Summary() string {
	if i := strings.Index(s.Doc, ". "); i >= 0 {
		return s.Doc[:i]
	}
	return strings.TrimSuffix(s.Doc, ".")
}

// MethodPath splits the route; the method is empty if any method is accepted.
func (s Spec) MethodPath() (method, path string) { return splitRoute(s.Route) }

func splitRoute(route string) (method, path string) {
	if m, p, ok := strings.Cut(route, " "); ok {
		return m, p
	}
	return "", route
}

// Words returns the words of the command line: noun and verb.
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

// Op is a compiled operation. Only the functions of its shape are set: Call for unary and blob
// responses, Stream for streams (together with Call if one route serves both), Duplex for
// WebSockets, Handler for raw handlers.
type Op struct {
	Spec

	// Types are compiled on first use, which shortens startup. An invalid type panics then; the
	// golden tests compile all of them.
	In          func() *Type // returns nil for a raw handler
	Out         func() *Type // nil unless Call is set
	Event       func() *Type // data of a stream's events; nil unless Stream is set
	FailureData func() *Type // data of a failure; nil if it has none
	Binary      bool         // Out is a *Blob

	// Bind decodes and validates the input. It returns errors in the input as Faults.
	Bind    func(Input) (any, error)
	Call    func(ctx context.Context, in any) (any, error)
	Stream  func(ctx context.Context, in any, send func(Event) error) error
	Duplex  func(ctx context.Context, in any, c Conn) error
	Handler http.Handler
}

// Event is one message of a stream. Data is encoded as JSON.
type Event struct {
	ID   string
	Name string
	Data any
}

// Conn is a WebSocket connection. One goroutine can read while another writes.
type Conn interface {
	Read(ctx context.Context) (data []byte, text bool, err error)
	Write(ctx context.Context, data []byte, text bool) error
	// Close closes the connection with a WebSocket status code; it is idempotent.
	Close(code int, reason string) error
}

// Choice is an output that is one of several values; its SchemaOp describes all of them.
// MarshalJSON would be slower, because encoding/json parses its result again.
type Choice interface{ ChoiceOp() any }

// New returns a unary operation. If Out is *Blob, the response is raw bytes.
//
// The compiler emits code for each In and Out: what does not need them is in functions without type
// parameters.
func New[In, Out any](s Spec, fn func(context.Context, In) (Out, error)) Op {
	o, complete := unary(s, reflect.TypeFor[In](), reflect.TypeFor[Out]())
	o.Call = func(ctx context.Context, in any) (any, error) {
		out, err := fn(ctx, *in.(*In))
		if err != nil {
			return nil, err
		}
		return complete(&out), nil
	}
	return o
}

// unary returns an operation without Call, and a function that completes an output: it takes a
// pointer to the output and returns the output.
func unary(s Spec, in, out reflect.Type) (Op, func(any) any) {
	binary := out == blobType
	s.mustDeclare(binary)
	o := bind(s, in)
	result := compileOut(out)
	o.Out, o.Binary = result, binary
	filler := sync.OnceValue(func() func(reflect.Value) { return result().filler() })
	return o, func(pointer any) any {
		value := reflect.ValueOf(pointer).Elem()
		if fill := filler(); fill != nil {
			fill(value)
		}
		out := value.Interface()
		if c, ok := out.(Choice); ok {
			return c.ChoiceOp()
		}
		return out
	}
}

// Stream returns an operation whose response is a stream of events with data of type Ev.
func Stream[In, Ev any](s Spec, fn func(ctx context.Context, in In, send func(Event) error) error) Op {
	s.mustDeclare(false)
	return WithStream[In, Ev](bind(s, reflect.TypeFor[In]()), fn)
}

// WithStream adds a stream to a unary operation, for requests with stream=true in the query or
// that accept text/event-stream.
func WithStream[In, Ev any](o Op, fn func(ctx context.Context, in In, send func(Event) error) error) Op {
	o.Event = compileOut(reflect.TypeFor[Ev]())
	o.Stream = func(ctx context.Context, in any, send func(Event) error) error {
		return fn(ctx, *in.(*In), send)
	}
	return o
}

// Duplex returns a WebSocket operation. It is neither a tool nor a verb.
func Duplex[In any](s Spec, fn func(ctx context.Context, in In, c Conn) error) Op {
	s.NoTool, s.NoVerb = true, true
	s.mustDeclare(false)
	o := bind(s, reflect.TypeFor[In]())
	o.Duplex = func(ctx context.Context, in any, c Conn) error { return fn(ctx, *in.(*In), c) }
	return o
}

// Handle returns a raw operation, for pages and proxies. It is neither a tool nor a verb nor in
// the OpenAPI document, but has the same table and authentication.
func Handle(s Spec, h http.Handler) Op {
	s.NoTool, s.NoVerb, s.NoDoc = true, true, true
	s.mustDeclare(true)
	check(s)
	return Op{Spec: s, Handler: h, In: func() *Type { return nil }}
}

func bind(s Spec, input reflect.Type) Op {
	check(s)
	// The closure must not keep a second copy of s in memory.
	name, route, also := s.Name, s.Route, s.Also
	in := sync.OnceValue(func() *Type {
		t := compileIn(input)
		if err := t.checkRoutes(route, also); err != nil {
			panic(fmt.Sprintf("op %s: %v", name, err))
		}
		return t
	})
	var failure func() *Type
	if s.Failure != nil {
		failure = compileOut(reflect.TypeOf(s.Failure))
	}
	return Op{Spec: s, In: in, FailureData: failure, Bind: func(src Input) (any, error) {
		v := reflect.New(input)
		if faults := in().decode(v.Elem(), src); len(faults) > 0 {
			return nil, faults
		}
		return v.Interface(), nil
	}}
}

// check panics on an invalid Spec, which is an error in the program.
func check(s Spec) {
	_, path := s.MethodPath()
	switch {
	case s.Name == "":
		panic("op: operation without a name: " + s.Route)
	case !strings.HasPrefix(path, "/"):
		panic(fmt.Sprintf("op %s: route %q is not METHOD /path", s.Name, s.Route))
	case s.Doc == "":
		panic("op " + s.Name + ": Doc is empty")
	case s.Tag == "":
		panic("op " + s.Name + ": Tag is empty")
	case s.Public && strings.Contains(path, "{"):
		panic("op " + s.Name + ": a public operation requires an exact path")
	}
}

// Table holds all operations of a program.
type Table struct {
	ops    []Op
	byName map[string]int
	public map[route]bool
}

type route struct{ method, path string }

// NewTable joins the lists of the services. It panics if two operations share a name. More
// expensive checks are in Check, which the tests of a program call.
func NewTable(lists ...[]Op) *Table {
	n := 0
	for _, list := range lists {
		n += len(list)
	}
	t := &Table{ops: make([]Op, 0, n), byName: make(map[string]int, n), public: map[route]bool{}}
	for _, list := range lists {
		for i := range list {
			o := &list[i]
			if _, ok := t.byName[o.Name]; ok {
				panic(fmt.Sprintf("op: two operations are named %s", o.Name))
			}
			if o.Public {
				t.publish(o.MethodPath())
			}
			t.byName[o.Name] = len(t.ops)
			t.ops = append(t.ops, *o)
		}
	}
	return t
}

// Check returns an error if two operations share a route or a verb.
func (t *Table) Check() error {
	type claim struct{ kind, key string }
	owners := map[claim]string{}
	for i := range t.ops {
		o := &t.ops[i]
		claims := []claim{{"route", o.Route}}
		for _, route := range o.Also {
			claims = append(claims, claim{"route", route})
		}
		if !o.NoVerb {
			claims = append(claims, claim{"verb", strings.Join(o.Words(), " ")})
		}
		for _, c := range claims {
			if other, ok := owners[c]; ok {
				return fmt.Errorf("op: %s and %s share the %s %q", other, o.Name, c.kind, c.key)
			}
			owners[c] = o.Name
		}
	}
	return nil
}

func (t *Table) publish(method, path string) {
	t.public[route{method, path}] = true
	if method == http.MethodGet {
		t.public[route{http.MethodHead, path}] = true
	}
}

// All returns the operations in the order in which they were listed.
func (t *Table) All() []Op { return t.ops }

// Get returns the operation with the name.
func (t *Table) Get(name string) (Op, bool) {
	i, ok := t.byName[name]
	if !ok {
		return Op{}, false
	}
	return t.ops[i], true
}

// Public reports whether exactly this method and path can be called without authentication.
func (t *Table) Public(method, path string) bool { return t.public[route{method, path}] }

// None is an input without fields.
type None struct{}

// Value returns the value of an optional field, or the zero value if it was not sent.
func Value[T any](p *T) T {
	if p == nil {
		var zero T
		return zero
	}
	return *p
}
