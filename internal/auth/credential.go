package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"strings"
	"time"
	"unicode"

	"github.com/golang-jwt/jwt/v5"
)

const (
	leeway     = 15 * time.Second // between the clocks of issuer and server
	maxToken   = 8 << 10
	maxSubject = 256
	maxKeyID   = 64
)

// noBearer means that no bearer credential was sent.
const noBearer = "no bearer token"

// digest hashes a secret, so that comparing takes equal time for any length.
func digest(secret string) *[sha256.Size]byte {
	if secret == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(secret))
	return &sum
}

// same compares in constant time; a secret that is not configured equals nothing.
func same(want *[sha256.Size]byte, given string) bool {
	sum := sha256.Sum256([]byte(given))
	return want != nil && subtle.ConstantTimeCompare(want[:], sum[:]) == 1
}

// known asks for a key that is configured elsewhere. An answer that could be taken
// for somebody without a key, or that no cookie could carry, is none.
func (g *Guard) known(secret string) (Identity, bool) {
	if g.c.Identify == nil || len(secret) > maxToken {
		return Identity{}, false
	}
	id, ok := g.c.Identify(secret)
	if !ok || id.KeyID == "" || len(id.KeyID) > maxKeyID || len(id.Subject) > maxSubject {
		return Identity{}, false
	}
	id.Via, id.Operator = ViaKey, false
	return id, true
}

// recall returns the owner of a ticket or cookie as they are now. Those who came
// without a key are as they were.
func (g *Guard) recall(owner Identity, via string) (Identity, bool) {
	if owner.KeyID == "" {
		return Identity{Subject: owner.Subject, Operator: owner.Operator, Via: via}, true
	}
	if g.c.Recall == nil || len(owner.KeyID) > maxKeyID {
		return Identity{}, false
	}
	now, ok := g.c.Recall(owner.KeyID)
	// A key that changed hands must not take a session along.
	if !ok || now.KeyID != owner.KeyID || now.Subject != owner.Subject {
		return Identity{}, false
	}
	now.Via, now.Operator = via, false
	return now, true
}

// newParser accepts RS256 and nothing else: neither none, nor an HMAC whose
// key would be the public key's text.
func newParser(now func() time.Time) *jwt.Parser {
	return jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodRS256.Alg()}),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway),
		jwt.WithTimeFunc(now),
		jwt.WithStrictDecoding(),
	)
}

// bearer checks an Authorization header. The problem is empty on success, and
// never holds any part of the token.
func (g *Guard) bearer(header string) (id Identity, problem string) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimLeft(token, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Identity{}, noBearer
	}
	if same(g.token, token) {
		return Identity{Via: ViaToken, Operator: true}, ""
	}
	if id, ok := g.known(token); ok {
		return id, ""
	}
	if g.c.JWTPublicKey == nil || strings.Count(token, ".") != 2 {
		return Identity{}, "the bearer token is not valid"
	}
	subject, problem := g.verify(token)
	if problem != "" {
		return Identity{}, problem
	}
	return Identity{Subject: subject, Via: ViaJWT}, ""
}

// verify checks a signed token and returns its subject.
func (g *Guard) verify(token string) (subject, problem string) {
	if len(token) > maxToken {
		return "", "the bearer token is too long"
	}
	var claims jwt.RegisteredClaims
	parsed, err := g.jwt.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return g.c.JWTPublicKey, nil })
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return "", "the bearer token has expired"
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return "", "the bearer token is not valid yet"
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return "", "the bearer token has no exp claim"
	case err != nil || !parsed.Valid:
		return "", "the bearer token is not valid"
	}
	// "crit" names extensions that a verifier must understand; we know none.
	if _, extended := parsed.Header["crit"]; extended {
		return "", "the bearer token is not valid"
	}
	// A subject is an owner's name in logs and rules; cutting it could make two equal.
	if len(claims.Subject) > maxSubject || strings.ContainsFunc(claims.Subject, unicode.IsControl) {
		return "", "the bearer token has a sub claim that is too long or holds control characters"
	}
	return claims.Subject, ""
}
