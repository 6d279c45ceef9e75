package auth

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"

	"github.com/golang-jwt/jwt/v5"
)

// removeSecrets removes our remaining credentials from headers: those in the wrong header, and
// expired tokens. Other values remain, because they are for a service behind us.
func (k *keyring) removeSecrets(h http.Header) {
	for _, name := range []string{"Authorization", "Proxy-Authorization", "X-Api-Key", keyHeader} {
		for _, value := range h[name] {
			if k.containsSecret(value) {
				h.Del(name)
				break
			}
		}
	}
}

// removeSecretParameters removes our credentials from the query, where they are never
// accepted. Other parameters remain byte for byte.
func (k *keyring) removeSecretParameters(r *http.Request) {
	if r.URL.RawQuery == "" {
		return
	}
	var kept []string
	removed := false
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		_, value, _ := strings.Cut(part, "=")
		if value, err := url.QueryUnescape(value); err == nil && k.containsSecret(value) {
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

// containsSecret reports whether a value contains one of our credentials: alone, after a
// scheme, or as the user or password of basic authentication.
func (k *keyring) containsSecret(value string) bool {
	scheme, rest, ok := strings.Cut(strings.TrimSpace(value), " ")
	if !ok {
		return k.isSecret(scheme)
	}
	rest = strings.TrimSpace(rest)
	if strings.EqualFold(scheme, "Basic") {
		if b, err := base64.StdEncoding.DecodeString(rest); err == nil {
			user, password, _ := strings.Cut(string(b), ":")
			return k.isSecret(user) || k.isSecret(password)
		}
	}
	return k.isSecret(rest)
}

func (k *keyring) isSecret(s string) bool {
	if s == "" || len(s) > maxToken {
		return false
	}
	if equalsSecret(k.token, s) || equalsSecret(k.apiKey, s) || k.isKey(s) {
		return true
	}
	if _, ok := k.identifyKey(s); ok {
		return true
	}
	return k.c.JWTPublicKey != nil && strings.Count(s, ".") == 2 && k.signed(s)
}

// signed reports whether our issuer signed a token, regardless of its claims.
func (k *keyring) signed(token string) bool {
	p := jwt.NewParser(jwt.WithValidMethods([]string{jwt.SigningMethodRS256.Alg()}), jwt.WithoutClaimsValidation())
	_, err := p.Parse(token, func(*jwt.Token) (any, error) { return k.c.JWTPublicKey, nil })
	return err == nil
}
