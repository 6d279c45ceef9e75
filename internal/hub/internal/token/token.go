// Package token issues and checks the tokens with which E2B clients access one sandbox, and the
// signatures in URLs of its files.
//
// It stores only a key: a token is derived from the key, the sandbox's ID and the bearer that it was
// issued to. It is valid as long as the sandbox exists and its bearer has not changed. IDs are never
// reused.
package token

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

const keyBytes = 32

// Bearer is the key of a tenant that a token is issued to. The zero Bearer is the operator, or a user of
// another system, whose tokens do not depend on a key.
type Bearer struct{ Key, Tenant, Role string }

// Bearers looks up keys of tenants.
type Bearers interface {
	// Recall returns the current bearer of a key; false if the key is invalid or may not use
	// sandboxes.
	Recall(key string) (Bearer, bool)
	// Of lists the bearers that may use a sandbox. Any of them can have signed a URL, which does not
	// name its bearer.
	Of(id string) []Bearer
}

// Signer issues and checks tokens.
type Signer struct {
	key     []byte
	bearers Bearers // nil: no keys

	mu     sync.Mutex
	access map[issue]string // tokens of sandboxes whose links were searched
}

// issue is one token.
type issue struct {
	id string
	to Bearer
}

// New returns a signer with a new key.
func New() *Signer {
	s := &Signer{key: make([]byte, keyBytes)}
	_, _ = rand.Read(s.key) // never fails
	return s
}

// Open returns the signer whose key is in a file. It creates the file if there is none.
func Open(path string) (*Signer, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		s := New()
		err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
			_, err := f.Write(s.key)
			return err
		})
		return s, err
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of access tokens: %w", err)
	}
	if len(key) != keyBytes {
		return nil, fmt.Errorf("the key of access tokens in %q has %d bytes, not %d; delete it to create a new one, "+
			"which revokes all tokens", path, len(key), keyBytes)
	}
	return &Signer{key: key}, nil
}

// Bind binds tokens to bearers. Tokens that were issued without keys become invalid.
func (s *Signer) Bind(b Bearers) { s.bearers = b }

func (s *Signer) sign(kind, id string, to Bearer) string {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "%s\n%s", kind, id)
	if s.bearers != nil {
		// The following names contain no line breaks.
		fmt.Fprintf(mac, "\n%s\n%s\n%s", to.Key, to.Tenant, to.Role)
	}
	return hex.EncodeToString(mac.Sum(nil))
}

const (
	accessPrefix  = "cova_"
	trafficPrefix = "covt_"
)

// Access returns the token with which a bearer accesses a sandbox.
func (s *Signer) Access(id string, to Bearer) string { return s.token(accessPrefix, id, to) }

// Traffic returns the token for the ports of a sandbox, without its files and processes.
func (s *Signer) Traffic(id string, to Bearer) string { return s.token(trafficPrefix, id, to) }

// kinds are the kinds of tokens, which are part of the signature.
var kinds = map[string]string{accessPrefix: "access", trafficPrefix: "traffic"}

func (s *Signer) token(prefix, id string, to Bearer) string {
	if s.bearers == nil {
		to = Bearer{}
	}
	if to.Key == "" {
		return prefix + s.sign(kinds[prefix], id, Bearer{})
	}
	return prefix + to.Key + "_" + s.sign(kinds[prefix], id, to)
}

// KeyOf returns the ID of the key in a token, unchecked; empty: none.
func KeyOf(token string) string {
	parts := strings.Split(token, "_")
	if len(parts) != 3 {
		return ""
	}
	return parts[1]
}

// IsAccess reports whether a token is valid for a sandbox. It compares in constant time.
func (s *Signer) IsAccess(id, token string) bool { return s.isToken(accessPrefix, id, token) }

// IsTraffic reports whether a token is valid for the ports of a sandbox.
func (s *Signer) IsTraffic(id, token string) bool { return s.isToken(trafficPrefix, id, token) }

func (s *Signer) isToken(prefix, id, token string) bool {
	var to Bearer
	if key := KeyOf(token); key != "" {
		var ok bool
		if s.bearers == nil {
			return false
		}
		if to, ok = s.bearers.Recall(key); !ok {
			return false
		}
	}
	return equal(s.token(prefix, id, to), token)
}

func equal(want, given string) bool {
	return subtle.ConstantTimeCompare([]byte(want), []byte(given)) == 1
}
