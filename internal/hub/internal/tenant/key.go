package tenant

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
)

// A key has the form cove_<id>_<secret>. Neither part contains a _.
const (
	keyPrefix   = "cove_"
	idLength    = 12
	secretBytes = 32
	secretText  = 43 // digits of 32 bytes in base 62
)

const (
	maxKeys = 10000
	maxName = 200
	// maxTools is the maximum number of tools of a key.
	maxTools = 100
	// remembered is how long a revoked or expired key is listed.
	remembered = 90 * 24 * time.Hour
)

// newID returns a random ID, short enough to dictate and long enough to be unique.
func newID() string { return strings.ToLower(rand.Text()[:idLength]) }

func newSecret() (id, secret string) {
	var b [secretBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	digits := new(big.Int).SetBytes(b[:]).Text(62)
	id = newID()
	return id, keyPrefix + id + "_" + strings.Repeat("0", secretText-len(digits)) + digits
}

// clientPrefix is the prefix of a key in the form that all E2B clients accept: hexadecimal.
const clientPrefix = "e2b_"

// ClientKey returns a key in the form that all E2B clients accept.
func ClientKey(secret string) string { return clientPrefix + hex.EncodeToString([]byte(secret)) }

// plain decodes a key in that form, and returns any other text unchanged.
func plain(secret string) string {
	if text, ok := strings.CutPrefix(secret, clientPrefix); ok {
		if b, err := hex.DecodeString(text); err == nil && strings.ToLower(text) == text {
			return string(b)
		}
	}
	return secret
}

// split returns the ID in a key; false if the text is not a key.
func split(secret string) (id string, ok bool) {
	if len(secret) != len(keyPrefix)+idLength+1+secretText {
		return "", false
	}
	rest, ok := strings.CutPrefix(secret, keyPrefix)
	if !ok || rest[idLength] != '_' {
		return "", false
	}
	id = rest[:idLength]
	return id, isID(id) && strings.Trim(rest[idLength+1:], "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func isID(s string) bool {
	return len(s) == idLength && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz234567") == ""
}

// hashOf is plain SHA-256: a slow hash protects secrets that can be guessed, which 256 random bits cannot.
// A slow hash would also delay every request.
func hashOf(secret string) string {
	sum := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(sum[:])
}

// record is a key in the file.
type record struct {
	Key
	Hash string `json:"hash"` // SHA-256 of the whole key, in hex
}

// matches takes the same time for all secrets, and for an unknown key.
func (r record) matches(secret string) bool {
	want := r.Hash
	if want == "" {
		want = strings.Repeat("-", 2*sha256.Size) // no hash
	}
	return subtle.ConstantTimeCompare([]byte(want), []byte(hashOf(secret))) == 1
}

func (r record) check() error {
	if err := CheckTenant(r.Tenant); err != nil {
		return err
	}
	sum, err := hex.DecodeString(r.Hash)
	switch {
	case !isID(r.ID):
		return fmt.Errorf("key %.40q: %w: the ID must have %d letters and digits", r.ID, ErrInvalid, idLength)
	case err != nil || len(sum) != sha256.Size || strings.ToLower(r.Hash) != r.Hash:
		return fmt.Errorf("key %s: %w: the hash must be a SHA-256 in lower-case hex", r.ID, ErrInvalid)
	case !r.Role.May(Read):
		return fmt.Errorf("role %.40q: %w: use %s, %s or %s", r.Role, ErrInvalid, RoleAdmin, RoleUser, RoleViewer)
	case len(r.Name) > maxName || strings.ContainsFunc(r.Name, unicode.IsControl):
		return fmt.Errorf("name %.40q: %w: use a single line of at most %d characters", r.Name, ErrInvalid, maxName)
	}
	return checkTools(r.Tools)
}

// checkTools rejects invalid names of tools and patterns of names.
func checkTools(tools []string) error {
	if len(tools) > maxTools {
		return fmt.Errorf("%d tools: %w: use at most %d; a pattern such as get* matches several", len(tools), ErrInvalid, maxTools)
	}
	for _, name := range tools {
		if name == "" || len(name) > maxName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-*?") != "" {
			return fmt.Errorf("tool %.40q: %w: use the name of a tool, or a pattern with * and ?", name, ErrInvalid)
		}
	}
	return nil
}

// keyFile is the keys file.
type keyFile struct {
	Version int       `json:"version"`
	Limits  limitFile `json:"limits,omitzero"`
	Keys    []record  `json:"keys"`
}

// limitFile holds the default and, by tenant, the overrides.
type limitFile struct {
	Default json.RawMessage            `json:"default,omitempty"`
	Tenants map[string]json.RawMessage `json:"tenants,omitempty"`
}

const fileVersion = 1

// keyring is the parsed keys file. It is immutable.
type keyring struct {
	file     keyFile
	byID     map[string]record
	byTenant map[string][]string // IDs of keys
	admins   []string            // IDs of keys of admins
	standard quota.Limits
	limits   map[string]quota.Limits
}

// parseKeys parses a keys file; nil text means no file. One error rejects the whole file, because it may
// be in the middle of an edit.
func parseKeys(text []byte, standard quota.Limits) (*keyring, error) {
	ring := &keyring{byID: map[string]record{}, byTenant: map[string][]string{}, standard: standard, limits: map[string]quota.Limits{}}
	if text == nil {
		return ring, nil
	}
	f := &ring.file
	if err := strict(text, f); err != nil {
		return nil, err
	}
	if f.Version != fileVersion {
		return nil, fmt.Errorf("version %d: %w: this program reads version %d", f.Version, ErrInvalid, fileVersion)
	}
	if len(f.Keys) > maxKeys {
		return nil, fmt.Errorf("%d keys: %w: use at most %d", len(f.Keys), ErrInvalid, maxKeys)
	}
	for _, r := range f.Keys {
		if err := r.check(); err != nil {
			return nil, err
		}
		if _, twice := ring.byID[r.ID]; twice {
			return nil, fmt.Errorf("key %s: %w: it is defined twice", r.ID, ErrInvalid)
		}
		ring.byID[r.ID] = r
		if r.Role == RoleAdmin {
			ring.admins = append(ring.admins, r.ID)
		} else {
			ring.byTenant[r.Tenant] = append(ring.byTenant[r.Tenant], r.ID)
		}
	}
	return ring, ring.readLimits()
}

func (r *keyring) readLimits() error {
	l := r.file.Limits
	if l.Default != nil {
		if err := strict(l.Default, &r.standard); err != nil {
			return fmt.Errorf("default limits: %w", err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(l.Tenants)) {
		if err := CheckTenant(name); err != nil {
			return err
		}
		own := r.standard
		if err := strict(l.Tenants[name], &own); err != nil {
			return fmt.Errorf("limits of tenant %s: %w", name, err)
		}
		r.limits[name] = own
	}
	return nil
}

// strict rejects unknown fields: a misspelled limit would be unlimited.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: data after the end", ErrInvalid)
	}
	return nil
}

func (f keyFile) clone() keyFile {
	f.Keys = slices.Clone(f.Keys)
	return f
}

// forget removes keys that were revoked or expired long ago.
func (f *keyFile) forget(now time.Time) {
	old := now.Add(-remembered)
	f.Keys = slices.DeleteFunc(f.Keys, func(r record) bool {
		return !r.Revoked.IsZero() && r.Revoked.Before(old) || !r.Expires.IsZero() && r.Expires.Before(old)
	})
}

func (f keyFile) encode() ([]byte, error) {
	f.Version = fileVersion
	if f.Keys == nil {
		f.Keys = []record{}
	}
	text, err := json.MarshalIndent(f, "", "  ")
	return append(text, '\n'), err
}

// IsSecret reports whether a text has the form of a key or of a share's token.
func IsSecret(text string) bool {
	_, ok := split(plain(text))
	return ok || strings.HasPrefix(text, SharePrefix)
}
