package environment

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// maxFile is the maximum size of the environments file.
const maxFile = 1 << 20

// builtin are the environments that need no file.
func builtin(d Defaults) []Environment {
	list := []Environment{{Name: d.Environment, Image: d.Image, Pool: d.Pool,
		Description: "Default: browser, terminal, files and code execution on one port"}}
	if d.Environment != Custom {
		list = append(list, Environment{Name: Custom, Description: "For sandboxes with their own image"})
	}
	return list
}

// Catalog is the list of environments. Each lookup reads the file, which is small, so that a change
// takes effect immediately; it is parsed only after a change.
type Catalog struct {
	path     string
	defaults Defaults
	base     []Environment
	log      *slog.Logger

	mu   sync.Mutex
	text []byte // of the file, as last read
	read bool
	list []Environment
	bad  error
}

// New returns the catalog of a file, a JSON array. Without a path, it contains only the built-in
// environments.
func New(path string, d Defaults, log *slog.Logger) *Catalog {
	d.Complete()
	return &Catalog{path: path, defaults: d, base: builtin(d), log: log}
}

// Defaults are the defaults of all environments.
func (c *Catalog) Defaults() Defaults { return c.defaults }

// List returns the current environments.
func (c *Catalog) List() []Environment {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil {
		c.list = c.base
	}
	if c.path == "" {
		return c.list
	}
	text, err := readFile(c.path)
	if err != nil {
		if c.bad == nil || c.bad.Error() != err.Error() {
			c.log.Error("cannot read environments file; keeping its last content", "path", c.path, "error", err)
		}
		c.bad, c.read = err, false
		return c.list
	}
	if c.read && bytes.Equal(text, c.text) {
		return c.list
	}
	c.text, c.read = text, true
	list, err := parseFile(text, c.log)
	if c.bad = err; err != nil {
		c.log.Error("environments file is invalid; keeping its last valid content", "path", c.path, "error", err)
		return c.list
	}
	c.log.Info("environments file read", "path", c.path, "environments", len(list))
	for _, e := range c.base {
		if _, ok := findNamed(list, e.Name); !ok {
			list = append(list, e)
		}
	}
	c.list = list
	return c.list
}

// Fault is the current error in the file; nil: none.
func (c *Catalog) Fault() error {
	c.List()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bad
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")})
	}
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxFile)
	}
	return b, err
}

func parseFile(text []byte, log *slog.Logger) ([]Environment, error) {
	var list []Environment
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("expected a JSON array of {name, image, description, …}: %w", err)
	}
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(new([]Environment)); err != nil {
		log.Warn("environments file has an unknown field", "error", err)
	}
	for i, e := range list {
		if e.Name == "" {
			return nil, fmt.Errorf("environment %d has no name", i+1)
		}
		if _, twice := findNamed(list[:i], e.Name); twice {
			return nil, fmt.Errorf("environment %q is defined twice", e.Name)
		}
		spec, err := e.Spec(Defaults{})
		if err == nil {
			err = spec.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("environment %q: %w", e.Name, err)
		}
	}
	return list, nil
}

func findNamed(list []Environment, name string) (Environment, bool) {
	for _, e := range list {
		if e.Name == name {
			return e, true
		}
	}
	return Environment{}, false
}

// Find returns an environment by its name.
func (c *Catalog) Find(name string) (Environment, error) {
	list := c.List()
	if e, ok := findNamed(list, name); ok {
		return e, nil
	}
	var known []string
	for _, e := range list {
		known = append(known, e.Name)
	}
	hint := ""
	if c.Fault() != nil {
		hint = "the environments file is invalid; the hub's log has the details"
	}
	return Environment{}, &op.Error{Code: op.Invalid, Hint: hint,
		Msg: fmt.Sprintf("no environment %.60q; use one of: %s", name, strings.Join(known, ", "))}
}

// Warm is an environment that has a warm pool.
type Warm struct {
	Size int
	Spec sandbox.Spec
}

// Warm returns the environments that have a warm pool, by name.
func (c *Catalog) Warm() map[string]Warm {
	var all map[string]Warm
	for _, e := range c.List() {
		if e.Pool <= 0 {
			continue
		}
		s, err := e.Spec(c.defaults)
		if err != nil {
			continue // reported by the next create
		}
		if all == nil {
			all = map[string]Warm{}
		}
		all[e.Name] = Warm{e.Pool, s}
	}
	return all
}
