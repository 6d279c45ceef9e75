package token

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"hash"
	"strconv"
	"strings"
	"time"
)

// Link is what a signed URL of a file says.
type Link struct {
	Path      string
	User      string
	Write     bool
	Expires   string // Unix seconds; empty: never
	Signature string
}

// signaturePrefix is the version of signatures.
const signaturePrefix = "v1_"

// IsSigned reports whether a URL was signed with the access token of a sandbox, and has not
// expired.
func (s *Signer) IsSigned(id string, l Link, now time.Time) bool {
	c, ok := newCheck(l, now)
	return ok && c.matches(s.Access(id))
}

// FindSigned returns the sandbox whose access token has signed a URL that has not expired.
// Anybody can ask, so it derives each token only once, and reads a long path only once.
func (s *Signer) FindSigned(ids []string, l Link, now time.Time) (id string, ok bool) {
	c, ok := newCheck(l, now)
	if !ok {
		return "", false
	}
	for i, t := range s.accessOf(ids) {
		if c.matches(t) {
			return ids[i], true
		}
	}
	return "", false
}

// accessOf returns the access tokens of all sandboxes, and forgets those of others.
func (s *Signer) accessOf(ids []string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.access == nil || len(s.access) > 2*len(ids)+100 {
		s.access = make(map[string]string, len(ids))
	}
	tokens := make([]string, len(ids))
	for i, id := range ids {
		t, ok := s.access[id]
		if !ok {
			t = s.Access(id)
			s.access[id] = t
		}
		tokens[i] = t
	}
	return tokens
}

// check compares the signature of a URL with that of a token.
type check struct {
	head hash.Cloner // has read what precedes the token
	tail string      // follows it
	want []byte
}

// newCheck refuses what no token can have signed.
func newCheck(l Link, now time.Time) (check, bool) {
	text, ok := strings.CutPrefix(l.Signature, signaturePrefix)
	want, err := base64.RawStdEncoding.DecodeString(text)
	if !ok || err != nil || len(want) != sha256.Size {
		return check{}, false
	}
	c := check{want: want}
	if l.Expires != "" {
		at, err := strconv.ParseInt(l.Expires, 10, 64)
		if err != nil || now.Unix() > at {
			return check{}, false
		}
		c.tail = ":" + l.Expires
	}
	operation := "read"
	if l.Write {
		operation = "write"
	}
	head := sha256.New()
	head.Write([]byte(l.Path + ":" + operation + ":" + l.User + ":"))
	c.head, ok = head.(hash.Cloner)
	return c, ok
}

func (c check) matches(token string) bool {
	h, err := c.head.Clone()
	if err != nil {
		return false
	}
	h.Write([]byte(token + c.tail))
	return subtle.ConstantTimeCompare(h.Sum(nil), c.want) == 1
}
