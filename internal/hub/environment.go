package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// custom is the environment of a sandbox for which only an image was named.
const custom = "custom"

// maxCatalog bounds the environments file.
const maxCatalog = 1 << 20

// Environment is a kind of sandbox: what a request need not say.
type Environment struct {
	Name        string `json:"name" doc:"What requests call it"`
	Image       string `json:"image" doc:"OCI image; empty: the provider's own root filesystem"`
	Description string `json:"description" doc:"What it is for"`

	Command   []string          `json:"command,omitempty" doc:"Program that replaces the image's own"`
	Args      []string          `json:"args,omitempty" doc:"Arguments of a sandbox that brings none"`
	Env       map[string]string `json:"env,omitempty" doc:"Environment variables; a sandbox's own go before them"`
	Workdir   string            `json:"workdir,omitempty" doc:"Working directory"`
	Port      int               `json:"port,omitempty" doc:"TCP port of its server, if that is not the sandbox server of this project"`
	ReadyPath string            `json:"ready_path,omitempty" doc:"Path that answers 200 when it is ready"`
	Ports     []int             `json:"ports,omitempty" doc:"Further ports that are served inside"`

	CPU         Quantity `json:"cpu,omitempty" doc:"Its share when processors are short"`
	Memory      Quantity `json:"memory,omitempty" doc:"Memory reserved for it"`
	CPULimit    Quantity `json:"cpu_limit,omitempty" doc:"Most processor time"`
	MemoryLimit Quantity `json:"memory_limit,omitempty" doc:"Most memory"`
	DiskLimit   Quantity `json:"disk_limit,omitempty" doc:"Most disk"`

	Isolation   string            `json:"isolation,omitempty" doc:"Kind of isolation"`
	Network     *Policy           `json:"network,omitempty" doc:"What it may reach"`
	Timeout     *float64          `json:"timeout,omitempty" doc:"Minutes it lives; -1: for ever"`
	IdleTimeout *float64          `json:"idle_timeout,omitempty" doc:"Minutes it may be unused; -1: for ever"`
	IdlePolicy  string            `json:"idle_policy,omitempty" doc:"What happens then: delete, stop, scaledown or pause"`
	Labels      map[string]string `json:"labels,omitempty" doc:"Labels of its sandboxes"`

	Pool int `json:"pool,omitempty" doc:"How many sandboxes are kept ready, to be had in milliseconds"`
}

// UnmarshalJSON takes a text or a number.
func (q *Quantity) UnmarshalJSON(b []byte) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return err
	}
	return q.DecodeOp(v)
}

// builtin are the environments that need no file.
func builtin(d Defaults) []Environment {
	list := []Environment{{Name: d.Environment, Image: d.Image, Pool: d.Pool, Description: "The default: a computer with browser, terminal, files and code behind one port"}}
	if d.Environment != custom {
		list = append(list, Environment{Name: custom, Description: "For sandboxes that bring their own image"})
	}
	return list
}

// catalog is the environments there are. The file is read whenever somebody
// asks, since it is small and a change must count at once; it is parsed only
// when it has changed. A file with a fault changes nothing.
type catalog struct {
	path string
	base []Environment
	log  *slog.Logger

	mu   sync.Mutex
	text []byte // of the file, as last looked at
	read bool
	list []Environment
	bad  error
}

// now returns the environments as the file says at this moment.
func (c *catalog) now() []Environment {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil {
		c.list = c.base
	}
	if c.path == "" {
		return c.list
	}
	text, err := readLimited(c.path)
	if err != nil {
		if c.bad == nil || c.bad.Error() != err.Error() {
			c.log.Error("environments file cannot be read; what it said before still holds", "path", c.path, "error", err)
		}
		c.bad, c.read = err, false
		return c.list
	}
	if c.read && bytes.Equal(text, c.text) {
		return c.list
	}
	c.text, c.read = text, true
	list, err := parseCatalog(text, c.log)
	if c.bad = err; err != nil {
		c.log.Error("environments file has a fault; what it said before still holds", "path", c.path, "error", err)
		return c.list
	}
	c.log.Info("environments file read", "path", c.path, "environments", len(list))
	for _, e := range c.base {
		if _, ok := named(list, e.Name); !ok {
			list = append(list, e)
		}
	}
	c.list = list
	return c.list
}

// fault is what is wrong with the file.
func (c *catalog) fault() error {
	c.now()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bad
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, &fs.PathError{Op: "read", Path: path, Err: errors.New("it is not a file")})
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCatalog+1))
	if err == nil && len(b) > maxCatalog {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxCatalog)
	}
	return b, err
}

func parseCatalog(text []byte, log *slog.Logger) ([]Environment, error) {
	var list []Environment
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fmt.Errorf("it must be a JSON array of {name, image, description, …}: %w", err)
	}
	strict := json.NewDecoder(bytes.NewReader(text))
	strict.DisallowUnknownFields()
	if err := strict.Decode(new([]Environment)); err != nil {
		log.Warn("environments file has a field that means nothing", "error", err)
	}
	for i, e := range list {
		if e.Name == "" {
			return nil, fmt.Errorf("environment %d has no name", i+1)
		}
		if _, twice := named(list[:i], e.Name); twice {
			return nil, fmt.Errorf("environment %q is there twice", e.Name)
		}
		spec, err := e.spec(Defaults{})
		if err == nil {
			err = spec.Validate()
		}
		if err != nil {
			return nil, fmt.Errorf("environment %q: %w", e.Name, err)
		}
	}
	return list, nil
}

func named(list []Environment, name string) (Environment, bool) {
	for _, e := range list {
		if e.Name == name {
			return e, true
		}
	}
	return Environment{}, false
}

// environment finds one by name.
func (c *catalog) environment(name string) (Environment, error) {
	list := c.now()
	if e, ok := named(list, name); ok {
		return e, nil
	}
	var known []string
	for _, e := range list {
		known = append(known, e.Name)
	}
	hint := ""
	if c.fault() != nil {
		hint = "the environments file has a fault; the hub's log tells which"
	}
	return Environment{}, &op.Error{Code: op.Invalid, Hint: hint, Msg: fmt.Sprintf("there is no environment %.60q; use one of: %s", name, strings.Join(known, ", "))}
}

// spec is a sandbox of this environment with nothing else said.
func (e Environment) spec(d Defaults) (sandbox.Spec, error) {
	s := sandbox.Spec{
		Environment: e.Name, Image: e.Image, Command: e.Command, Args: e.Args, Env: e.Env, Workdir: e.Workdir, Ports: e.Ports,
		Server:    sandbox.Server{Port: e.Port, ReadyPath: e.ReadyPath},
		Resources: d.Resources, Isolation: e.Isolation, Network: d.Network, Labels: e.Labels,
		Lifetime: sandbox.Lifetime{Timeout: d.Timeout, IdleTimeout: d.IdleTimeout, IdlePolicy: d.IdlePolicy},
	}
	a := amounts{e.CPU, e.Memory, e.CPULimit, e.MemoryLimit, e.DiskLimit}
	if err := a.apply(&s.Resources); err != nil {
		return s, err
	}
	if err := e.Network.apply(&s.Network); err != nil {
		return s, err
	}
	// Nothing of the environment may be changed through its sandboxes.
	s = s.Clone()
	return s, lease{e.Timeout, e.IdleTimeout, e.IdlePolicy}.apply(&s)
}

// None is an input without fields.
type None struct{}

// Environments lists them.
func (h *Hub) Environments(context.Context, None) ([]Environment, error) { return h.now(), nil }

// Info is what a hub can do.
type Info struct {
	Version   string            `json:"version"`
	Abilities sandbox.Abilities `json:"abilities" doc:"What the provider can do on this machine, and what is missing"`
	Fault     string            `json:"environments_fault,omitempty" doc:"What is wrong with the environments file"`
}

// Info tells what the hub can do.
func (h *Hub) Info(context.Context, None) (Info, error) {
	i := Info{Version: h.cfg.Version, Abilities: h.cfg.Provider.Abilities()}
	if err := h.catalog.fault(); err != nil {
		i.Fault = err.Error()
	}
	return i, nil
}
