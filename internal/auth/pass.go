package auth

import (
	"container/list"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// A pass is a session in the path of a URL, limited to one site. It is for pages that are
// served without an origin, whose requests carry no cookies. Such a page can read its own
// pass, which gives access only to the site of the page.
const (
	passMark  = '~'
	passBytes = 24
	maxPasses = 16 << 10
)

type pass struct {
	text    string
	owner   Identity
	session session // without an end, it is valid until the process ends
}

// passStore holds the issued passes, most recently used first.
type passStore struct {
	mu     sync.Mutex
	byText map[string]*list.Element
	byUse  *list.List // of pass
}

func newPassStore() *passStore {
	return &passStore{byText: make(map[string]*list.Element), byUse: list.New()}
}

func (s *passStore) add(p pass) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e, ok := s.byText[p.text]; ok {
		s.byUse.MoveToFront(e)
		return
	}
	s.byText[p.text] = s.byUse.PushFront(p)
	for s.byUse.Len() > maxPasses {
		s.remove(s.byUse.Back())
	}
}

func (s *passStore) find(text string, now time.Time) (pass, bool) {
	if text == "" {
		return pass{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byText[text]
	if !ok {
		return pass{}, false
	}
	p := e.Value.(pass)
	if !p.session.end.IsZero() && !now.Before(p.session.end) {
		s.remove(e)
		return pass{}, false
	}
	s.byUse.MoveToFront(e)
	return p, true
}

func (s *passStore) remove(e *list.Element) {
	delete(s.byText, e.Value.(pass).text)
	s.byUse.Remove(e)
}

// Pass returns a path segment that carries the session of the caller in ctx, limited to one
// site. The same session gets the same pass for the same site, so that URLs are stable.
func (g *Guard) Pass(ctx context.Context, site string) string {
	owner, _ := FromContext(ctx)
	p := pass{owner: owner}
	p.owner.Site = site
	if !g.open {
		var found bool
		if p.session, found = sessionOf(ctx, g.c.Now()); !found {
			p.session.end = p.session.end.Truncate(time.Hour) // so that the pass stays the same
		}
	}
	mac := hmac.New(sha256.New, g.cookies.key[:])
	mac.Write([]byte("pass\n"))
	for _, field := range []string{owner.Subject, owner.KeyID, site} {
		mac.Write(binary.BigEndian.AppendUint32(nil, uint32(len(field))))
		mac.Write([]byte(field))
	}
	operator := byte(0)
	if owner.Operator {
		operator = 1
	}
	mac.Write(append(binary.BigEndian.AppendUint64(nil, uint64(p.session.end.Unix())), operator))
	mac.Write(p.session.id[:])
	p.text = string(passMark) + base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:passBytes])
	g.passes.add(p)
	return p.text
}

// IsPass reports whether a segment of a path has the form of a pass.
func IsPass(segment string) bool {
	if len(segment) != 1+base64.RawURLEncoding.EncodedLen(passBytes) || segment[0] != passMark {
		return false
	}
	_, err := base64.RawURLEncoding.DecodeString(segment[1:])
	return err == nil
}

// admitPass admits a request with a pass. Its other credentials are ignored, because they belong
// to the browser, not to the page.
func (g *Guard) admitPass(r *http.Request, p pass) (admission, *refusal) {
	id, ok := g.keys.recall(p.owner, ViaPass)
	if !ok || g.started.isOver(p.session.id) {
		return admission{}, g.unauthorized("the session of this page has ended")
	}
	out := originForm(r)
	takeTickets(out)
	takeSessions(out.Header, "")
	g.keys.removeSecrets(out.Header)
	return admission{request: out.WithContext(NewContext(r.Context(), id)), session: p.session}, nil
}

// isCopied reports whether a URL with the pass of another session was opened in a window, for
// example because it was copied. Requests of a page carry no cookies. A new window carries the
// cookie of the session. Forms that a page sends do not, but they are not GET requests.
func (g *Guard) isCopied(r *http.Request, p pass) bool {
	if g.open || r.Method != http.MethodGet || r.Header.Get("Sec-Fetch-Dest") != "document" || p.session.id == (sessionID{}) {
		return false
	}
	links, sessions := takeSessions(r.Header.Clone(), g.cookies.nameFor(Base(r, g.c.Trusted)))
	for _, value := range append(links, sessions...) {
		if _, s, ok := g.cookies.open(value); ok && s.id == p.session.id {
			return false
		}
	}
	return true
}

// withoutPass removes passes from an escaped path.
func withoutPass(path string) string {
	segments := slices.DeleteFunc(strings.Split(path, "/"), IsPass)
	return "/" + strings.TrimLeft(strings.Join(segments, "/"), "/")
}

// allowOpaque sets the headers that allow a page without an origin to read the response.
func allowOpaque(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Add("Vary", "Origin")
	if r.Header.Get("Origin") == opaque {
		h.Set("Access-Control-Allow-Origin", opaque)
		h.Set("Access-Control-Expose-Headers", exposed)
	}
}

// opaque is the Origin header of a page without an origin.
const opaque = "null"

// HidePass removes passes, and segments that look like one, from a path that is logged.
func HidePass(path string) string {
	if strings.IndexByte(path, passMark) < 0 {
		return path
	}
	segments := strings.Split(path, "/")
	for i, s := range segments {
		if strings.HasPrefix(s, string(passMark)) {
			segments[i] = string(passMark)
		}
	}
	return strings.Join(segments, "/")
}
