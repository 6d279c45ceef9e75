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

// keyring holds the configured credentials, apart from those of sessions.
type keyring struct {
	c       Config
	token   *[sha256.Size]byte // nil if not configured
	apiKey  *[sha256.Size]byte
	sandbox []*[sha256.Size]byte // of SandboxKeys
	jwt     *jwt.Parser
}

func newKeyring(c Config) *keyring {
	k := &keyring{c: c, token: digest(c.Token), apiKey: digest(c.APIKey), jwt: newParser(c)}
	for _, key := range c.SandboxKeys {
		k.sandbox = append(k.sandbox, digest(key))
	}
	return k
}

// noBearer means that no bearer credential was sent.
const noBearer = "no bearer token"

// digest hashes a secret, so that a comparison takes the same time for any length.
func digest(secret string) *[sha256.Size]byte {
	if secret == "" {
		return nil
	}
	sum := sha256.Sum256([]byte(secret))
	return &sum
}

// equalsSecret compares in constant time; a secret that is not configured equals nothing.
func equalsSecret(want *[sha256.Size]byte, given string) bool {
	sum := sha256.Sum256([]byte(given))
	return want != nil && subtle.ConstantTimeCompare(want[:], sum[:]) == 1
}

// identifyKey identifies a key with the hook. It rejects an identity without a KeyID, or one
// that does not fit into a cookie.
func (k *keyring) identifyKey(secret string) (Identity, bool) {
	if k.c.Identify == nil || len(secret) > maxToken {
		return Identity{}, false
	}
	id, ok := k.c.Identify(secret)
	if !ok || id.KeyID == "" || len(id.KeyID) > maxKeyID || len(id.Subject) > maxSubject {
		return Identity{}, false
	}
	id.Via, id.Operator = ViaKey, false
	return id, true
}

// recall returns the current identity of the owner of a ticket or cookie. An owner without a
// key never changes.
func (k *keyring) recall(owner Identity, via string) (Identity, bool) {
	if owner.KeyID == "" {
		// An owner that is neither the operator nor a named subject has no identity.
		owner.Via = via
		return owner, owner.Operator || owner.Subject != ""
	}
	if k.c.Recall == nil || len(owner.KeyID) > maxKeyID {
		return Identity{}, false
	}
	current, ok := k.c.Recall(owner.KeyID)
	// A session must not outlive a change of the key's tenant.
	if !ok || current.KeyID != owner.KeyID || current.Subject != owner.Subject {
		return Identity{}, false
	}
	current.Via, current.Operator, current.Site = via, false, owner.Site
	return current, true
}

// newParser returns a parser that accepts only RS256, but neither "none" nor an HMAC whose key
// is the text of the public key.
func newParser(c Config) *jwt.Parser {
	options := []jwt.ParserOption{
		jwt.WithValidMethods([]string{jwt.SigningMethodRS256.Alg()}),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(leeway),
		jwt.WithTimeFunc(c.Now),
		jwt.WithStrictDecoding(),
	}
	if c.Issuer != "" {
		options = append(options, jwt.WithIssuer(c.Issuer))
	}
	if c.Audience != "" {
		options = append(options, jwt.WithAudience(c.Audience))
	}
	return jwt.NewParser(options...)
}

// bearer checks an Authorization header. The problem is empty on success, and never contains a
// part of the token.
func (k *keyring) bearer(header string) (id Identity, problem string) {
	scheme, token, ok := strings.Cut(header, " ")
	token = strings.TrimLeft(token, " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return Identity{}, noBearer
	}
	if equalsSecret(k.token, token) {
		return Identity{Via: ViaToken, Operator: true}, ""
	}
	if id, ok := k.identifyKey(token); ok {
		return id, ""
	}
	if k.c.JWTPublicKey == nil || strings.Count(token, ".") != 2 {
		return Identity{}, "invalid bearer token"
	}
	subject, problem := k.verify(token)
	if problem != "" {
		return Identity{}, problem
	}
	return Identity{Subject: subject, Via: ViaJWT}, ""
}

// verify checks a signed token and returns its subject.
func (k *keyring) verify(token string) (subject, problem string) {
	if len(token) > maxToken {
		return "", "the bearer token is too long"
	}
	var claims jwt.RegisteredClaims
	parsed, err := k.jwt.ParseWithClaims(token, &claims, func(*jwt.Token) (any, error) { return k.c.JWTPublicKey, nil })
	switch {
	case errors.Is(err, jwt.ErrTokenExpired):
		return "", "the bearer token has expired"
	case errors.Is(err, jwt.ErrTokenNotValidYet):
		return "", "the bearer token is not valid yet"
	case errors.Is(err, jwt.ErrTokenInvalidIssuer):
		return "", "the iss claim of the bearer token is not the required issuer"
	case errors.Is(err, jwt.ErrTokenInvalidAudience):
		return "", "the aud claim of the bearer token does not contain the required audience"
	case errors.Is(err, jwt.ErrTokenRequiredClaimMissing):
		return "", "a required claim is missing in the bearer token (exp, or iss or aud if the server requires them)"
	case err != nil || !parsed.Valid:
		return "", "invalid bearer token"
	}
	// "crit" lists extensions that a verifier must understand; we support none.
	if _, extended := parsed.Header["crit"]; extended {
		return "", "invalid bearer token"
	}
	// Tokens without a subject would all have the same owner.
	if strings.TrimSpace(claims.Subject) == "" {
		return "", "the bearer token has no sub claim"
	}
	// Logs and rules use the subject as the name of an owner, so it must not be truncated.
	if len(claims.Subject) > maxSubject || strings.ContainsFunc(claims.Subject, unicode.IsControl) {
		return "", "the sub claim of the bearer token is too long or contains control characters"
	}
	return claims.Subject, ""
}
