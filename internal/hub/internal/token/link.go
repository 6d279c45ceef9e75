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

// Link is the content of a signed URL of a file.
type Link struct {
	Path      string
	User      string
	Write     bool
	Expires   string // Unix seconds; empty: never
	Signature string
}

// signaturePrefix is the version of signatures.
const signaturePrefix = "v1_"

// IsSigned reports whether a URL was signed with an access token of a sandbox, and has not
// expired.
func (s *Signer) IsSigned(id string, l Link, now time.Time) bool {
	_, ok := s.SignedBy(id, l, now)
	return ok
}

// SignedBy returns the ID of the key whose access token of a sandbox has signed a URL that has not
// expired; empty: the token has no key.
func (s *Signer) SignedBy(id string, l Link, now time.Time) (key string, ok bool) {
	found, ok := s.findSigned([]string{id}, l, now)
	return found.to.Key, ok
}

// FindSigned returns the sandbox whose access token has signed a URL that has not expired. Unauthenticated
// callers can trigger it, so it derives each token and hashes a long path only once.
func (s *Signer) FindSigned(ids []string, l Link, now time.Time) (id string, ok bool) {
	found, ok := s.findSigned(ids, l, now)
	return found.id, ok
}

func (s *Signer) findSigned(ids []string, l Link, now time.Time) (issue, bool) {
	c, ok := newCheck(l, now)
	if !ok {
		return issue{}, false
	}
	issues := s.issuesOf(ids)
	for i, t := range s.accessOf(issues) {
		if c.matches(t) {
			return issues[i], true
		}
	}
	return issue{}, false
}

// issuesOf lists the valid tokens of sandboxes.
func (s *Signer) issuesOf(ids []string) []issue {
	all := make([]issue, 0, 2*len(ids))
	for _, id := range ids {
		all = append(all, issue{id: id})
		if s.bearers != nil {
			for _, b := range s.bearers.Of(id) {
				all = append(all, issue{id, b})
			}
		}
	}
	return all
}

// accessOf returns access tokens, and removes other tokens from the cache.
func (s *Signer) accessOf(issues []issue) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.access == nil || len(s.access) > 2*len(issues)+100 {
		s.access = make(map[issue]string, len(issues))
	}
	tokens := make([]string, len(issues))
	for i, one := range issues {
		t, ok := s.access[one]
		if !ok {
			t = s.Access(one.id, one.to)
			s.access[one] = t
		}
		tokens[i] = t
	}
	return tokens
}

// check compares the signature of a URL with that of a token.
type check struct {
	head hash.Cloner // of the text before the token
	tail string      // follows it
	want []byte
}

// newCheck rejects links that no token can have signed.
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
