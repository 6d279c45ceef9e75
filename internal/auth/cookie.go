package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// CookiePrefix is the prefix of the names of session cookies. No server behind a proxy may
// receive or set one.
const CookiePrefix = "cove_session_"

const (
	maxSession  = 1 << 10
	sessionHead = 16 // bytes before the length of the key's ID: end and ID of the session
	// operatorFlag is stored in the byte that holds the length of the key's ID.
	operatorFlag = 0x80
)

// cookies makes and reads session cookies.
type cookies struct {
	key  [32]byte // signs cookies and passes; new at every start
	name string   // empty: derived from the URL
	now  func() time.Time
}

func newCookies(name string, now func() time.Time) *cookies {
	c := &cookies{name: name, now: now}
	_, _ = rand.Read(c.key[:]) // never fails
	return c
}

// nameFor returns a name that differs for each base URL: a browser sends the cookies of localhost:8080 to
// localhost:8081 as well.
func (c *cookies) nameFor(base *url.URL) string {
	if c.name != "" {
		return c.name
	}
	sum := sha256.Sum256([]byte(base.Host + "\n" + base.Path))
	return CookiePrefix + hex.EncodeToString(sum[:6])
}

// make returns the cookie of a session. SameSite is Lax: with Strict, a page that is opened by
// a link on another site would appear signed out.
func (c *cookies) make(name string, base *url.URL, owner Identity, s session) *http.Cookie {
	path := base.Path
	if path == "" {
		path = "/"
	}
	return &http.Cookie{
		Name: name, Value: c.seal(owner, s), Path: path, MaxAge: int(s.end.Sub(c.now()).Round(time.Second) / time.Second),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: base.Scheme == "https",
	}
}

// seal returns the value of the cookie: end and ID of the session, key, site and subject, and
// their signature. It does not include the role, which depends on the key at each request.
func (c *cookies) seal(owner Identity, s session) string {
	s = s.begun()
	payload := binary.BigEndian.AppendUint64(make([]byte, 0, 64), uint64(s.end.Unix()))
	payload = append(payload, s.id[:]...)
	n := byte(len(owner.KeyID)) // identifyKey and recall limit it to far less than the flag
	if owner.Operator {
		n |= operatorFlag
	}
	payload = append(payload, n)
	payload = append(payload, owner.KeyID...)
	payload = append(payload, byte(len(owner.Site))) // part of a host name
	payload = append(payload, owner.Site...)
	payload = append(payload, owner.Subject...)
	return base64.RawURLEncoding.EncodeToString(payload) + "." + base64.RawURLEncoding.EncodeToString(c.sign(payload))
}

// open returns the owner and the session of a cookie that this process has signed and
// that has not expired.
func (c *cookies) open(value string) (owner Identity, s session, ok bool) {
	if len(value) > maxSession {
		return owner, s, false
	}
	first, second, ok := strings.Cut(value, ".")
	if !ok {
		return owner, s, false
	}
	strict := base64.RawURLEncoding.Strict()
	payload, err1 := strict.DecodeString(first)
	signature, err2 := strict.DecodeString(second)
	if err1 != nil || err2 != nil || len(payload) <= sessionHead || !hmac.Equal(signature, c.sign(payload)) {
		return owner, s, false
	}
	s.end = time.Unix(int64(binary.BigEndian.Uint64(payload)), 0)
	copy(s.id[:], payload[8:sessionHead])
	if !c.now().Before(s.end) {
		return owner, s, false
	}
	rest := payload[sessionHead+1:]
	n := int(payload[sessionHead] &^ operatorFlag)
	if n >= len(rest) {
		return owner, s, false
	}
	owner.KeyID, rest = string(rest[:n]), rest[n:]
	if n = int(rest[0]); n >= len(rest) {
		return owner, s, false
	}
	owner.Site, owner.Subject, owner.Operator = string(rest[1:1+n]), string(rest[1+n:]), payload[sessionHead]&operatorFlag != 0
	return owner, s, true
}

func (c *cookies) sign(payload []byte) []byte {
	mac := hmac.New(sha256.New, c.key[:])
	mac.Write(payload)
	return mac.Sum(nil)
}

// takeSessions removes session cookies from the header. It returns the values of those with the
// given name, and of those of links. It also removes the sessions of other sandboxes on the same
// host, which services behind us must not learn. Other cookies remain byte for byte.
func takeSessions(h http.Header, name string) (links, sessions []string) {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return nil, nil
	}
	var kept []string
	removed := false
	for _, line := range lines {
		var rest []string
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			n, v, _ := strings.Cut(part, "=")
			n = strings.TrimSpace(n)
			switch {
			case n == name && name != "":
				sessions = append(sessions, strings.TrimSpace(v))
				removed = true
			case strings.HasPrefix(n, name+linkMark) && name != "":
				links = append(links, strings.TrimSpace(v))
				removed = true
			case strings.HasPrefix(n, CookiePrefix):
				removed = true
			case part != "":
				rest = append(rest, part)
			}
		}
		if len(rest) > 0 {
			kept = append(kept, strings.Join(rest, "; "))
		}
	}
	if !removed {
		return nil, nil
	}
	h.Del("Cookie")
	for _, line := range kept {
		h.Add("Cookie", line)
	}
	return links, sessions
}
