// Package token makes and checks the tokens that open one sandbox to E2B's clients, and the
// signatures in URLs of its files.
//
// It stores nothing but a key: a token follows from the key and the sandbox's ID, and is valid
// as long as the sandbox exists. IDs are never reused.
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
	"sync"

	"github.com/cove-sandbox/cove/internal/atomicfile"
)

const keyBytes = 32

// Signer makes and checks tokens.
type Signer struct {
	key []byte

	mu     sync.Mutex
	access map[string]string // tokens by ID of sandboxes whose links were searched
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
		return nil, fmt.Errorf("the key of access tokens in %q has %d bytes, not %d; delete it to make a new one, which ends all tokens", path, len(key), keyBytes)
	}
	return &Signer{key: key}, nil
}

func (s *Signer) sign(kind, id string) string {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "%s\n%s", kind, id)
	return hex.EncodeToString(mac.Sum(nil))
}

// Access returns the token that opens a sandbox.
func (s *Signer) Access(id string) string { return "cova_" + s.sign("access", id) }

// Traffic returns the token that opens the ports of a sandbox, but not its files and processes.
func (s *Signer) Traffic(id string) string { return "covt_" + s.sign("traffic", id) }

// IsAccess reports whether a token opens a sandbox. It compares in constant time.
func (s *Signer) IsAccess(id, token string) bool { return equal(s.Access(id), token) }

// IsTraffic reports whether a token opens the ports of a sandbox.
func (s *Signer) IsTraffic(id, token string) bool { return equal(s.Traffic(id), token) }

func equal(want, given string) bool {
	return subtle.ConstantTimeCompare([]byte(want), []byte(given)) == 1
}
