package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"time"
)

const (
	sessionLife   = 12 * time.Hour
	sessionPrefix = "cove_session_"
	maxSession    = 1 << 10
	// operatorFlag stands beside the length of the key's ID.
	operatorFlag = 0x80
)

// cookieName is distinct per address that a caller uses: a browser sends the cookies
// of localhost:8080 to localhost:8081 as well.
func (g *Guard) cookieName(base *url.URL) string {
	if g.c.CookieName != "" {
		return g.c.CookieName
	}
	sum := sha256.Sum256([]byte(base.Host + "\n" + base.Path))
	return sessionPrefix + hex.EncodeToString(sum[:6])
}

// newCookie begins a session. SameSite is Lax because Strict would make a page
// that was opened by a link elsewhere look signed out.
func (g *Guard) newCookie(name string, base *url.URL, owner Identity) *http.Cookie {
	path := base.Path
	if path == "" {
		path = "/"
	}
	return &http.Cookie{
		Name: name, Value: g.seal(owner, g.c.Now().Add(sessionLife)), Path: path, MaxAge: int(sessionLife / time.Second),
		HttpOnly: true, SameSite: http.SameSiteLaxMode, Secure: base.Scheme == "https",
	}
}

// seal makes the cookie's value: expiry, key and subject, then their signature. The
// role is not in it: it is asked for anew with the key.
func (g *Guard) seal(owner Identity, expires time.Time) string {
	payload := binary.BigEndian.AppendUint64(nil, uint64(expires.Unix()))
	n := byte(len(owner.KeyID)) // known and recall bound it to much less than the flag
	if owner.Operator {
		n |= operatorFlag
	}
	payload = append(payload, n)
	payload = append(payload, owner.KeyID...)
	payload = append(payload, owner.Subject...)
	return base64.RawURLEncoding.EncodeToString(payload) + "." + base64.RawURLEncoding.EncodeToString(g.sign(payload))
}

// openSession returns the owner of a cookie that this process signed and that has
// not expired.
func (g *Guard) openSession(value string) (owner Identity, ok bool) {
	if len(value) > maxSession {
		return Identity{}, false
	}
	first, second, ok := strings.Cut(value, ".")
	if !ok {
		return Identity{}, false
	}
	strict := base64.RawURLEncoding.Strict()
	payload, err1 := strict.DecodeString(first)
	signature, err2 := strict.DecodeString(second)
	if err1 != nil || err2 != nil || len(payload) < 9 || !hmac.Equal(signature, g.sign(payload)) {
		return Identity{}, false
	}
	if g.c.Now().Unix() >= int64(binary.BigEndian.Uint64(payload)) {
		return Identity{}, false
	}
	rest := payload[9:]
	n := int(payload[8] &^ operatorFlag)
	if n > len(rest) {
		return Identity{}, false
	}
	return Identity{KeyID: string(rest[:n]), Subject: string(rest[n:]), Operator: payload[8]&operatorFlag != 0}, true
}

func (g *Guard) sign(payload []byte) []byte {
	mac := hmac.New(sha256.New, g.session[:])
	mac.Write(payload)
	return mac.Sum(nil)
}

// takeSessions removes session cookies from the header and returns the values
// of those with the given name, those of links first: a browser sends them only
// where they count. Sessions of other sandboxes on the same host go too:
// what runs behind us must not learn them. Other cookies keep their bytes.
func takeSessions(h http.Header, name string) []string {
	lines := h["Cookie"]
	if len(lines) == 0 {
		return nil
	}
	var sessions, links, kept []string
	removed := false
	for _, line := range lines {
		var rest []string
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			n, v, _ := strings.Cut(part, "=")
			n = strings.TrimSpace(n)
			switch {
			case n == name:
				sessions = append(sessions, strings.TrimSpace(v))
				removed = true
			case strings.HasPrefix(n, name+linkMark):
				links = append(links, strings.TrimSpace(v))
				removed = true
			case strings.HasPrefix(n, sessionPrefix):
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
		return nil
	}
	h.Del("Cookie")
	for _, line := range kept {
		h.Add("Cookie", line)
	}
	return append(links, sessions...)
}
