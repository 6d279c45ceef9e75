// Package secretstore stores the secrets of tenants: values for environment variables and files of
// sandboxes, and values that the egress proxy adds to requests so that the sandbox never sees them.
//
// It owns a folder with one encrypted file per tenant and their key, which it creates on first use. It never
// shows a value again: lists omit it, and a Value prints as "[redacted]". Only one process can use a folder
// at a time.
package secretstore

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/egress"
)

// Limits of a store.
const (
	MaxPerTenant = 256
	MaxValue     = 64 << 10
	MaxHosts     = 32
	maxTarget    = 1024
	maxFormat    = 256
	maxTenant    = 128
)

// Errors of callers; all others are internal.
var (
	ErrInvalid  = errors.New("invalid secret")
	ErrNotFound = errors.New("no such secret")
	ErrTooMany  = errors.New("too many secrets")
)

// Mode is how a sandbox uses a secret.
type Mode string

// The modes.
const (
	Env    Mode = "env"    // Target is the variable
	File   Mode = "file"   // Target is the path
	Broker Mode = "broker" // the proxy sets Header for Hosts
)

// Secret is a secret of a tenant.
type Secret struct {
	Name  string
	Value Value
	Mode  Mode
	// Target is the variable, by default the name, or the absolute path.
	Target string

	// Hosts are "name", "*.name" or either with ":port".
	Hosts []string
	// Header is Authorization by default.
	Header string
	// Format contains %s for the value. Default: "Bearer %s" for Authorization, "%s" for other headers.
	Format string
	// Insecure also sends it over plain HTTP.
	Insecure bool
}

// Info is a secret without its value.
type Info struct {
	Name     string    `json:"name"`
	Mode     Mode      `json:"mode"`
	Target   string    `json:"target,omitempty"`
	Hosts    []string  `json:"hosts,omitempty"`
	Header   string    `json:"header,omitempty"`
	Format   string    `json:"format,omitempty"`
	Insecure bool      `json:"insecure,omitempty"`
	Created  time.Time `json:"created"`
	Updated  time.Time `json:"updated"`
}

// Given is a secret for a sandbox.
type Given struct {
	Name   string
	Mode   Mode // Env or File
	Target string
	Value  Value
}

// Config of a store.
type Config struct {
	Dir string // created if missing
	Log *slog.Logger
}

// Store stores secrets. It is safe for concurrent use.
type Store struct {
	cfg  Config
	seal *sealer

	mu      sync.RWMutex
	tenants map[string]tenant
}

// tenant is immutable.
type tenant map[string]entry

type entry struct {
	Info
	value Value
}

// Open reads the store in a folder.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{cfg: cfg, tenants: map[string]tenant{}}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("open the secret store: %w", err)
	}
	files, err := sealed(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the secret store: %w", err)
	}
	if s.seal, err = openSealer(cfg.Dir, len(files) > 0); err != nil {
		return nil, fmt.Errorf("open the secret store: %w", err)
	}
	for _, file := range files {
		name, t, err := s.read(file)
		if err != nil {
			return nil, fmt.Errorf("open the secret store: %s: %w; "+
				"restore the file, or remove it and set the secrets of that tenant again", file, err)
		}
		s.tenants[name] = t
	}
	return s, nil
}

// Set stores a secret, or replaces the one with that name. It is on disk when Set returns.
func (s *Store) Set(tenant string, sec Secret) (Info, error) {
	info, err := check(tenant, sec)
	if err != nil {
		return Info{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UTC()
	info.Created, info.Updated = now, now
	next := maps.Clone(s.tenants[tenant])
	if next == nil {
		next = map[string]entry{}
	}
	if old, ok := next[sec.Name]; ok {
		info.Created = old.Created
	} else if len(next) >= MaxPerTenant {
		return Info{}, fmt.Errorf("%w: limit reached (%d per tenant); delete one first", ErrTooMany, MaxPerTenant)
	}
	next[sec.Name] = entry{info, New(strings.Clone(sec.Value.Reveal()))}
	if err := s.write(tenant, next); err != nil {
		return Info{}, fmt.Errorf("store secret %s: %w", sec.Name, err)
	}
	s.tenants[tenant] = next
	s.cfg.Log.Info("secret set", "tenant", tenant, "secret", info.Name, "mode", string(info.Mode))
	return info.clone(), nil
}

// Delete removes a secret.
func (s *Store) Delete(tenant, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.tenants[tenant][name]; !ok {
		return missing(name)
	}
	next := maps.Clone(s.tenants[tenant])
	delete(next, name)
	if err := s.write(tenant, next); err != nil {
		return fmt.Errorf("delete secret %s: %w", name, err)
	}
	if len(next) == 0 {
		delete(s.tenants, tenant)
	} else {
		s.tenants[tenant] = next
	}
	s.cfg.Log.Info("secret deleted", "tenant", tenant, "secret", name)
	return nil
}

// List returns a tenant's secrets by name, without their values.
func (s *Store) List(tenant string) []Info {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]Info, 0, len(s.tenants[tenant]))
	for _, e := range s.tenants[tenant] {
		out = append(out, e.clone())
	}
	slices.SortFunc(out, func(a, b Info) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Values returns the values of the named secrets, except brokered ones. Only the hub may use it.
func (s *Store) Values(tenant string, names []string) ([]Given, error) {
	list, err := s.pick(tenant, names)
	if err != nil {
		return nil, err
	}
	var out []Given
	taken := map[string]string{}
	for _, e := range list {
		if e.Mode == Broker {
			continue
		}
		at := string(e.Mode) + " " + e.Target
		if other, ok := taken[at]; ok {
			return nil, fmt.Errorf("%w: %s and %s have the same target %s; omit one", ErrInvalid, other, e.Name, at)
		}
		taken[at] = e.Name
		out = append(out, Given{e.Name, e.Mode, e.Target, e.value})
	}
	return out, nil
}

// Rules returns the headers that the egress proxy of a sandbox adds for the brokered ones of the named
// secrets.
func (s *Store) Rules(tenant string, names []string) ([]egress.Credential, error) {
	list, err := s.pick(tenant, names)
	if err != nil {
		return nil, err
	}
	var out []egress.Credential
	for _, e := range list {
		if e.Mode == Broker {
			out = append(out, e.credentials(e.value)...)
		}
	}
	if err := egress.CheckCredentials(out); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return out, nil
}

func (i Info) credentials(v Value) (out []egress.Credential) {
	full := New(strings.Replace(i.Format, "%s", v.Reveal(), 1))
	for _, host := range i.Hosts {
		out = append(out, egress.Credential{Host: host, Header: i.Header, Value: full, Insecure: i.Insecure})
	}
	return out
}

func (i Info) clone() Info {
	i.Hosts = slices.Clone(i.Hosts)
	return i
}

// pick returns the named secrets, each once.
func (s *Store) pick(tenant string, names []string) ([]entry, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []entry
	seen := map[string]bool{}
	for _, name := range names {
		e, ok := s.tenants[tenant][name]
		if !ok {
			return nil, missing(name)
		}
		if !seen[name] {
			seen[name] = true
			out = append(out, e)
		}
	}
	return out, nil
}

func missing(name string) error {
	return fmt.Errorf("%w: %.80q; list secrets to see which exist", ErrNotFound, name)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
}

// check completes and validates a secret.
func check(tenant string, sec Secret) (Info, error) {
	if tenant == "" || len(tenant) > maxTenant {
		return Info{}, invalid("a tenant's name has 1 to %d bytes", maxTenant)
	}
	if !word(sec.Name, "_.-") || len(sec.Name) > 64 {
		return Info{}, invalid("name %.80q: use up to 64 letters, digits, _, . and -, and a letter or _ first", sec.Name)
	}
	if n := len(sec.Value.Reveal()); n == 0 || n > MaxValue {
		return Info{}, invalid("the value of %s has %d bytes; use 1 to %d", sec.Name, n, MaxValue)
	}
	info := Info{Name: sec.Name, Mode: sec.Mode, Target: sec.Target}
	if sec.Mode == Broker {
		return checkBroker(info, sec)
	}
	if len(sec.Hosts) > 0 || sec.Header != "" || sec.Format != "" || sec.Insecure {
		return Info{}, invalid("hosts, header, format and insecure require mode %s", Broker)
	}
	switch sec.Mode {
	case Env:
		if info.Target == "" {
			info.Target = sec.Name
		}
		if !word(info.Target, "_") || len(info.Target) > maxTarget {
			return Info{}, invalid("target %.80q: a variable has letters, digits and _, and no digit first", info.Target)
		}
		if strings.Contains(sec.Value.Reveal(), "\x00") {
			return Info{}, invalid("the value of %s contains a zero byte, which variables do not support; use mode %s", sec.Name, File)
		}
	case File:
		if t := info.Target; len(t) > maxTarget || !path.IsAbs(t) || path.Clean(t) != t || t == "/" || strings.Contains(t, "\x00") {
			return Info{}, invalid("target %.80q: use an absolute path without . and ..", t)
		}
	default:
		return Info{}, invalid("mode %.80q: use %s, %s or %s", sec.Mode, Env, File, Broker)
	}
	return info, nil
}

func checkBroker(info Info, sec Secret) (Info, error) {
	if sec.Target != "" {
		return Info{}, invalid("a brokered secret has no target; omit it")
	}
	if len(sec.Hosts) == 0 || len(sec.Hosts) > MaxHosts {
		return Info{}, invalid("name 1 to %d hosts that %s is for", MaxHosts, sec.Name)
	}
	info.Hosts, info.Header, info.Format, info.Insecure = slices.Clone(sec.Hosts), sec.Header, sec.Format, sec.Insecure
	if info.Header == "" {
		info.Header = "Authorization"
	}
	if info.Format == "" {
		info.Format = "%s"
		if strings.EqualFold(info.Header, "Authorization") {
			info.Format = "Bearer %s"
		}
	}
	if strings.Count(info.Format, "%") != 1 || !strings.Contains(info.Format, "%s") || len(info.Format) > maxFormat {
		return Info{}, invalid("format %.80q: use %%s exactly once for the value", info.Format)
	}
	if err := egress.CheckCredentials(info.credentials(sec.Value)); err != nil {
		return Info{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return info, nil
}

// word reports whether s contains only letters, digits and the given characters, and starts with a letter
// or _.
func word(s, others string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	return s != "" && strings.Contains(letters+"_", s[:1]) && strings.Trim(s, letters+"0123456789"+others) == ""
}
