package auth

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// removeSecrets removes what remains of our credentials in headers: those that were sent in
// the place of another, or with a token that has expired. What is not ours stays, as it is
// meant for a service behind us.
func (g *Guard) removeSecrets(h http.Header) {
	for _, name := range []string{"Authorization", "Proxy-Authorization", "X-Api-Key", keyHeader} {
		for _, value := range h[name] {
			if g.containsSecret(value) {
				h.Del(name)
				break
			}
		}
	}
}

// removeSecretParameters removes our credentials from the query, where they are never
// accepted. Other parameters remain byte for byte.
func (g *Guard) removeSecretParameters(r *http.Request) {
	if r.URL.RawQuery == "" {
		return
	}
	var kept []string
	removed := false
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		_, value, _ := strings.Cut(part, "=")
		if value, err := url.QueryUnescape(value); err == nil && g.containsSecret(value) {
			removed = true
			continue
		}
		kept = append(kept, part)
	}
	if removed {
		r.URL.RawQuery = strings.Join(kept, "&")
		r.URL.ForceQuery = false
		r.RequestURI = r.URL.RequestURI()
	}
}

// containsSecret reports whether a value is, or carries, a credential of ours: alone, after
// a scheme, or as the user or password of basic authentication.
func (g *Guard) containsSecret(value string) bool {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(value), " ")
	if !ok {
		return g.isSecret(scheme)
	}
	rest = strings.TrimSpace(rest)
	if strings.EqualFold(scheme, "Basic") {
		if b, err := base64.StdEncoding.DecodeString(rest); err == nil {
			user, password, _ := strings.Cut(string(b), ":")
			return g.isSecret(user) || g.isSecret(password)
		}
	}
	return g.isSecret(rest)
}

func (g *Guard) isSecret(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	if equalsSecret(g.token, s) || equalsSecret(g.apiKey, s) || g.isKey(s) {
		return true
	}
	if _, ok := g.identifyKey(s); ok {
		return true
	}
	return g.c.JWTPublicKey != nil && strings.Count(s, ".") == 2 && g.signed(s)
}

// signed reports whether a token has our issuer's signature, whatever it claims.
func (g *Guard) signed(token string) bool {
	p := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodRS256.Alg()}), jwt.WithoutClaimsValidation())
	_, err := p.Parse(token, func(*jwt.Token) (any, error) { return g.c.JWTPublicKey, nil })
	return err == nil
}
