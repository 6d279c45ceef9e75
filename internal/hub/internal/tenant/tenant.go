// Package tenant owns the tenants of a hub: their keys and roles, their limits, and the links that give
// others temporary access to one of their sandboxes.
//
// It owns the keys file and the files next to it (shares and a lock). Several processes can change them
// concurrently, and people can edit them. It fails closed: if a file is invalid, its last valid content
// stays in force; without a file no key is valid.
package tenant

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Role is the role of a key.
type Role string

// The roles.
const (
	RoleAdmin  Role = "admin"
	RoleUser   Role = "user"
	RoleViewer Role = "viewer"
)

// Action is a kind of operation.
type Action int

// The actions.
const (
	Read  Action = iota + 1 // see sandboxes
	Write                   // create, use, change and delete sandboxes
	Admin                   // manage tenants: keys, limits, the audit log
)

// May reports whether a role allows an action. Unknown roles allow nothing.
func (r Role) May(a Action) bool {
	switch r {
	case RoleViewer:
		return a == Read
	case RoleUser:
		return a == Read || a == Write
	case RoleAdmin:
		return a == Read || a == Write || a == Admin
	}
	return false
}

// Key describes a key, without its secret.
type Key struct {
	ID      string    `json:"id"`
	Tenant  string    `json:"tenant"`
	Role    Role      `json:"role"`
	Name    string    `json:"name,omitempty"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	Revoked time.Time `json:"revoked,omitzero"` // zero: not revoked
	// Tools limits the key to these MCP tools; names can contain * and ?. Empty: no limit.
	Tools []string `json:"tools,omitempty"`
}

// IsValid reports whether the key is neither revoked nor expired.
func (k Key) IsValid(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// Identity is the identity of a key.
type Identity struct {
	Tenant string
	Role   Role
	Key    string // its ID
}

// Config of a Store.
type Config struct {
	Path string // of the keys file; the first write creates its folder
	// Shares is the path of the file of shares; default: beside the keys file, whose folder must then be
	// writable.
	Shares string
	// MaxShare is the maximum validity of a share; default a day.
	MaxShare time.Duration
	// Limits are the limits of tenants without limits in the keys file.
	Limits quota.Limits

	Log *slog.Logger     // nil logs nothing
	Now func() time.Time // nil is time.Now
}

// Errors of the store.
var (
	ErrUnknown = errors.New("no such key or link")
	ErrFull    = errors.New("limit reached; revoke or delete some")
	ErrInvalid = errors.New("invalid")
)

// Store is the keys file. It is safe for concurrent use, also by several processes. It need not be closed,
// because it keeps no file open.
type Store struct {
	cfg    Config
	keys   mirror[keyring]
	shares mirror[shareList]
}

// Open reads the keys. It creates no file.
func Open(cfg Config) (*Store, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxShare <= 0 {
		cfg.MaxShare = 24 * time.Hour
	}
	if cfg.Path == "" {
		return nil, fmt.Errorf("open the keys file: %w: the path is empty", ErrInvalid)
	}
	if cfg.Shares == "" {
		cfg.Shares = cfg.Path + ".shares"
	}
	s := &Store{cfg: cfg}
	s.keys = mirror[keyring]{parse: func(text []byte) (*keyring, error) { return parseKeys(text, cfg.Limits) },
		log: cfg.Log, now: cfg.Now, keepLost: true}
	s.shares = mirror[shareList]{parse: parseShares, log: cfg.Log, now: cfg.Now}
	if err := s.keys.open(cfg.Path); err != nil {
		return nil, fmt.Errorf("open the keys file: %w", err)
	}
	if err := s.shares.open(cfg.Shares); err != nil {
		return nil, fmt.Errorf("open the file of shares: %w; repair it, or delete it to revoke all links", err)
	}
	return s, nil
}

// Fault returns the error of a file whose last valid content is in force; nil: none.
func (s *Store) Fault() error {
	s.keys.get(false)
	s.shares.get(false)
	return errors.Join(s.keys.problem(), s.shares.problem())
}

// Identify returns the identity of a secret; false if the key is invalid, unknown, expired or revoked.
func (s *Store) Identify(secret string) (Identity, bool) {
	secret = plain(secret)
	id, ok := split(secret)
	if !ok {
		return Identity{}, false
	}
	ring := s.keys.get(false)
	if _, known := ring.byID[id]; !known {
		// Find a key that another process has just created.
		ring = s.keys.get(true)
	}
	k, known := ring.byID[id]
	if !k.matches(secret) || !known || !k.IsValid(s.cfg.Now()) {
		return Identity{}, false
	}
	return Identity{k.Tenant, k.Role, k.ID}, true
}

// Recall returns the current identity of a key, for callers with an existing session.
func (s *Store) Recall(id string) (Identity, bool) {
	k, ok := s.keys.get(false).byID[id]
	if !ok || !k.IsValid(s.cfg.Now()) {
		return Identity{}, false
	}
	return Identity{k.Tenant, k.Role, k.ID}, true
}

// Users lists the keys that may use a tenant's sandboxes: its own and those of admins.
func (s *Store) Users(tenant string) (all []Identity) {
	ring := s.keys.get(false)
	for _, id := range slices.Concat(ring.byTenant[tenant], ring.admins) {
		if k := ring.byID[id]; k.IsValid(s.cfg.Now()) && k.Role.May(Write) {
			all = append(all, Identity{k.Tenant, k.Role, k.ID})
		}
	}
	return all
}

// Tools returns the MCP tools that a key is limited to. An invalid key has none.
func (s *Store) Tools(id string) (tools []string, limited bool) {
	k, ok := s.keys.get(false).byID[id]
	if !ok || !k.IsValid(s.cfg.Now()) {
		return nil, true
	}
	return k.Tools, len(k.Tools) > 0
}

// Limits returns a tenant's limits: the default, overridden by its own.
func (s *Store) Limits(tenant string) quota.Limits {
	ring := s.keys.get(false)
	if l, ok := ring.limits[tenant]; ok {
		return l
	}
	return ring.standard
}

// List returns all keys, oldest first, including recently revoked and expired ones.
func (s *Store) List() []Key {
	ring := s.keys.get(true)
	out := make([]Key, 0, len(ring.file.Keys))
	for _, k := range ring.file.Keys {
		out = append(out, k.Key)
	}
	return out
}

// Add creates a key. It returns the secret, which is not stored. Zero expires means never; no tools mean
// all.
func (s *Store) Add(tenant string, role Role, name string, expires time.Time, tools ...string) (secret string, key Key, err error) {
	now := s.cfg.Now().UTC().Truncate(time.Second)
	if !expires.IsZero() && !expires.After(now) {
		return "", Key{}, fmt.Errorf("add a key: %w: it would expire in the past, at %s", ErrInvalid, expires.UTC().Format(time.RFC3339))
	}
	id, secret := newSecret()
	key = Key{ID: id, Tenant: tenant, Role: role, Name: name, Created: now, Expires: expires.UTC(), Tools: tools}
	rec := record{Key: key, Hash: hashOf(secret)}
	if sandbox.IsReserved(tenant) {
		return "", Key{}, fmt.Errorf("add a key: %w: tenant %q is reserved for the hub; choose another name", ErrInvalid, tenant)
	}
	if err := rec.check(); err != nil {
		return "", Key{}, fmt.Errorf("add a key: %w", err)
	}
	err = s.changeKeys(func(f *keyFile) (bool, error) {
		f.forget(now)
		if len(f.Keys) >= maxKeys {
			return false, fmt.Errorf("%w: %d keys", ErrFull, len(f.Keys))
		}
		f.Keys = append(f.Keys, rec)
		return true, nil
	})
	if err != nil {
		return "", Key{}, fmt.Errorf("add a key: %w", err)
	}
	return secret, key, nil
}

// Revoke revokes a key and all shares created with it. It is idempotent.
func (s *Store) Revoke(id string) error {
	err := s.changeKeys(func(f *keyFile) (bool, error) {
		for i := range f.Keys {
			if k := &f.Keys[i]; k.ID == id {
				changed := k.Revoked.IsZero()
				if changed {
					k.Revoked = s.cfg.Now().UTC().Truncate(time.Second)
				}
				return changed, nil
			}
		}
		return false, ErrUnknown
	})
	// The shares are already invalid, because their key is; delete their records.
	if err == nil {
		err = s.dropShares(func(sh Share) bool { return sh.KeyID == id })
	}
	if err != nil {
		return fmt.Errorf("revoke key %.40q: %w", id, err)
	}
	return nil
}

// changeKeys runs change on the keys in the file, under the lock, and writes them if it reports a
// change.
func (s *Store) changeKeys(change func(*keyFile) (bool, error)) error {
	return s.keys.change(func(ring *keyring) ([]byte, error) {
		f := ring.file.clone()
		if changed, err := change(&f); err != nil || !changed {
			return nil, err
		}
		return f.encode()
	})
}

// CheckTenant rejects names that would be ambiguous in files, labels and logs.
func CheckTenant(name string) error {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-"
	if name == "" || len(name) > 64 || name[0] == '-' || strings.HasPrefix(name, "sub-") || strings.Trim(name, plain) != "" {
		return fmt.Errorf("tenant %.80q: %w: use up to 64 letters, digits and ._@-, not beginning with - or sub-", name, ErrInvalid)
	}
	return nil
}
