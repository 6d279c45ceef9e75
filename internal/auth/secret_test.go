package auth

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Clients send one secret in several places, and expired tokens together with a session.
func TestNoSecretReachesAService(t *testing.T) {
	t.Parallel()
	ring := newKeyFile()
	c := closed()
	c.Identify, c.Recall = ring.identify, ring.recall
	s := serve(t, c)
	expired := sign(t, jwt.SigningMethodRS256, signer(), jwt.MapClaims{"sub": "alice", "exp": time.Now().Add(-time.Hour).Unix()}, nil)
	basic := func(user, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(user+":"+password))
	}
	secrets := []string{theToken, theKey, "cove_k1_hunter4", goodJWT(t), expired}
	for _, secret := range secrets {
		for _, header := range []string{
			"Authorization: Bearer " + secret, "Authorization: " + secret, "Authorization: Token " + secret,
			"Authorization: " + basic("x", secret), "Authorization: " + basic(secret, ""),
			"Proxy-Authorization: Bearer " + secret, "X-Api-Key: " + secret, "X-Api-Key: Bearer " + secret,
		} {
			r := s.send("GET /proxy/3000/?a=1&token="+secret+"&b=2", header, "Cookie: "+s.openSession())
			if got := r.seen(t); strings.Contains(r.body, secret) ||
				strings.Contains(r.body, base64.StdEncoding.EncodeToString([]byte("x:"+secret))) || got.Query != "a=1&b=2" {
				t.Errorf("%.60s: got %s, want no secret behind the guard", header, r.body)
			}
		}
	}
	for _, theirs := range []string{"Authorization: Bearer theirs", "Authorization: " + basic("user", "theirs"),
		"Authorization: Digest username=theirs", "X-Api-Key: theirs",
		"Authorization: Bearer " + sign(t, jwt.SigningMethodHS256, []byte("theirs"), jwt.MapClaims{"sub": "x"}, nil)} {
		name, value, _ := strings.Cut(theirs, ": ")
		if got := s.send("GET /proxy/3000/?token=theirs", theirs, "Cookie: "+s.openSession()).
			seen(t); got.Header.Get(name) != value || got.Query != "token=theirs" {
			t.Errorf("%.60s: got %v, want other values unchanged", theirs, got.Header)
		}
	}
}

func TestRequiredClaims(t *testing.T) {
	t.Parallel()
	c := closed()
	c.Issuer, c.Audience = "https://id.example", "cove"
	s := serve(t, c)
	plain := serve(t, closed())
	full := jwt.MapClaims{"sub": "alice", "exp": time.Now().Add(time.Hour).Unix(), "iss": "https://id.example", "aud": []string{"x", "cove"}}
	change := func(key string, value any) string {
		claims := jwt.MapClaims{}
		for k, v := range full {
			claims[k] = v
		}
		claims[key] = value
		if value == nil {
			delete(claims, key)
		}
		return "Authorization: Bearer " + sign(t, jwt.SigningMethodRS256, signer(), claims, nil)
	}
	for _, tt := range []struct {
		key         string
		value       any
		want, plain int
	}{
		{"sub", "alice", 200, 200}, {"aud", "cove", 200, 200},
		{"sub", nil, 401, 401}, {"sub", "", 401, 401}, {"sub", "  ", 401, 401}, {"sub", 0, 401, 401}, {"sub", []string{"alice"}, 401, 401},
		{"iss", nil, 401, 200}, {"iss", "", 401, 200}, {"iss", "https://id.example/", 401, 200},
		{"iss", "https://evil.example", 401, 200}, {"iss", "HTTPS://ID.EXAMPLE", 401, 200},
		{"aud", nil, 401, 200}, {"aud", "", 401, 200}, {"aud", "other", 401, 200}, {"aud", []string{}, 401, 200},
		{"aud", "cove ", 401, 200}, {"aud", "COVE", 401, 200}, {"aud", "cove,x", 401, 200},
	} {
		header := change(tt.key, tt.value)
		if r := s.send("GET /", header); r.status != tt.want {
			t.Errorf("%s %v: got status %d %s, want %d", tt.key, tt.value, r.status, r.body, tt.want)
		}
		if r := plain.send("GET /", header); r.status != tt.plain {
			t.Errorf("%s %v, nothing required: got status %d %s, want %d", tt.key, tt.value, r.status, r.body, tt.plain)
		}
	}
	if r := s.send("GET /", change("sub", nil)); !strings.Contains(r.body, "no sub claim") {
		t.Errorf("got %s, want the missing claim", r.body)
	}
}
