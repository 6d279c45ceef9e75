// Package tenant knows who the tenants of a hub are: their keys, what each key
// may do, their limits, and the links by which others may reach one of their
// sandboxes for a while.
//
// It owns the keys file and what lies beside it (the file of shares and a lock),
// which several processes may change at once and people may edit. It refuses
// when in doubt: a file that cannot be understood changes nothing, so what it
// said before holds, and without any file nobody is let in.
package tenant

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/quota"
)

// Role is what a key is for.
type Role string

// The roles.
const (
	RoleAdmin  Role = "admin"
	RoleUser   Role = "user"
	RoleViewer Role = "viewer"
)

// Action is a kind of deed.
type Action int

// The actions.
const (
	Read  Action = iota + 1 // see what is there
	Write                   // make, use, change and delete sandboxes
	Admin                   // govern tenants: keys, limits, the record of all
)

// May tells whether a role suffices. What is not known is not allowed.
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

// Key is the record of a key. It holds nothing that can be signed in with.
type Key struct {
	ID      string    `json:"id"`
	Tenant  string    `json:"tenant"`
	Role    Role      `json:"role"`
	Name    string    `json:"name,omitempty"`
	Created time.Time `json:"created"`
	Expires time.Time `json:"expires,omitzero"` // zero: never
	Revoked time.Time `json:"revoked,omitzero"` // zero: it is not
}

// Living tells whether the key lets in at this time.
func (k Key) Living(now time.Time) bool {
	return k.Revoked.IsZero() && (k.Expires.IsZero() || now.Before(k.Expires))
}

// Identity is who a key stands for.
type Identity struct {
	Tenant string
	Role   Role
	Key    string // its ID
}

// Config of a Store.
type Config struct {
	Path string // of the keys file; its folder is made when first written
	// Shares is the path of the file of shares; default beside the keys, whose
	// folder can then not be read-only.
	Shares string
	// MaxShare bounds the life of a share; default a day.
	MaxShare time.Duration

	Log *slog.Logger     // nil logs nothing
	Now func() time.Time // nil is time.Now
}

// Errors of the store.
var (
	ErrUnknown = errors.New("there is no such key or share")
	ErrFull    = errors.New("there are too many; revoke or delete some")
	ErrInvalid = errors.New("not acceptable")
)

// Store is the open keys file. It is safe for concurrent use, also with other
// processes, and needs no closing: it holds no file open.
type Store struct {
	cfg    Config
	keys   mirror[keyring]
	shares mirror[shareList]
}

// Open reads the keys. It makes no file: without one there are no keys.
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
		return nil, fmt.Errorf("open the keys file: %w: name its path", ErrInvalid)
	}
	if cfg.Shares == "" {
		cfg.Shares = cfg.Path + ".shares"
	}
	s := &Store{cfg: cfg}
	s.keys = mirror[keyring]{parse: parseKeys, log: cfg.Log, now: cfg.Now, keepLost: true}
	s.shares = mirror[shareList]{parse: parseShares, log: cfg.Log, now: cfg.Now}
	if err := s.keys.open(cfg.Path); err != nil {
		return nil, fmt.Errorf("open the keys file: %w", err)
	}
	if err := s.shares.open(cfg.Shares); err != nil {
		return nil, fmt.Errorf("open the file of shares: %w; mend it, or delete it to end all shares", err)
	}
	return s, nil
}

// Fault tells why the files as they stand are not what counts; nil: they are.
func (s *Store) Fault() error {
	s.keys.get(false)
	s.shares.get(false)
	return errors.Join(s.keys.problem(), s.shares.problem())
}

// Identify tells who a secret stands for. It is false for what is no key, not
// known, expired or revoked, and says no more than that.
func (s *Store) Identify(secret string) (Identity, bool) {
	id, ok := split(secret)
	if !ok {
		return Identity{}, false
	}
	ring := s.keys.get(false)
	if _, known := ring.byID[id]; !known {
		// A key that another process has just made works at once.
		ring = s.keys.get(true)
	}
	k, known := ring.byID[id]
	if !k.matches(secret) || !known || !k.Living(s.cfg.Now()) {
		return Identity{}, false
	}
	return Identity{k.Tenant, k.Role, k.ID}, true
}

// Recall tells who a key stands for now, for those who signed in with it before.
func (s *Store) Recall(id string) (Identity, bool) {
	k, ok := s.keys.get(false).byID[id]
	if !ok || !k.Living(s.cfg.Now()) {
		return Identity{}, false
	}
	return Identity{k.Tenant, k.Role, k.ID}, true
}

// Limits are a tenant's limits: the default, and over it what is set for them.
func (s *Store) Limits(tenant string) quota.Limits {
	ring := s.keys.get(false)
	if l, ok := ring.limits[tenant]; ok {
		return l
	}
	return ring.standard
}

// List shows all keys, oldest first; those that ended stay listed for a while.
func (s *Store) List() []Key {
	ring := s.keys.get(true)
	out := make([]Key, 0, len(ring.file.Keys))
	for _, k := range ring.file.Keys {
		out = append(out, k.Key)
	}
	return out
}

// Add makes a key. The secret is told once and never again. A zero expires is never.
func (s *Store) Add(tenant string, role Role, name string, expires time.Time) (secret string, key Key, err error) {
	now := s.cfg.Now().UTC().Truncate(time.Second)
	if !expires.IsZero() && !expires.After(now) {
		return "", Key{}, fmt.Errorf("add a key: %w: it would have expired at %s", ErrInvalid, expires.UTC().Format(time.RFC3339))
	}
	id, secret := newSecret()
	key = Key{ID: id, Tenant: tenant, Role: role, Name: name, Created: now, Expires: expires.UTC()}
	rec := record{Key: key, Hash: hashOf(secret)}
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

// Revoke ends a key and all shares that were made with it. It is idempotent.
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
	// From here on the shares are refused for their key's sake; only their records remain.
	if err == nil {
		err = s.dropShares(func(sh Share) bool { return sh.KeyID == id })
	}
	if err != nil {
		return fmt.Errorf("revoke key %.40q: %w", id, err)
	}
	return nil
}

// changeKeys lets change work on the keys as they are in the file, while nobody
// else does, and writes them back if it says so.
func (s *Store) changeKeys(change func(*keyFile) (bool, error)) error {
	return s.keys.change(func(ring *keyring) ([]byte, error) {
		f := ring.file.clone()
		if changed, err := change(&f); err != nil || !changed {
			return nil, err
		}
		return f.encode()
	})
}

// CheckTenant refuses names that could not be told apart in files, labels and logs.
func CheckTenant(name string) error {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._@-"
	if name == "" || len(name) > 64 || name[0] == '-' || strings.HasPrefix(name, "sub-") || strings.Trim(name, plain) != "" {
		return fmt.Errorf("tenant %.80q: %w: use up to 64 letters, digits and ._@-, not beginning with - or sub-", name, ErrInvalid)
	}
	return nil
}
