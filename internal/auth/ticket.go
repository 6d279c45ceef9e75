package auth

import (
	"container/list"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// A ticket is recognisable, so that a parameter of the same name that belongs to
// a service behind us passes untouched.
const (
	ticketPrefix = "tkt_"
	ticketBytes  = 32
	maxTickets   = 4096
)

// ErrTooManyTickets is returned while too many tickets are neither used nor expired.
var ErrTooManyTickets = errors.New("too many unused tickets: use some or wait until they expire")

// ticketStore remembers the hashes of tickets that can still be used. Used and
// expired ones are forgotten: an unknown ticket and a used one are alike.
type ticketStore struct {
	ttl time.Duration
	now func() time.Time

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*list.Element
	byAge  *list.List // of ticket, oldest first; all have the same life, so the first expires first
}

type ticket struct {
	hash    [sha256.Size]byte
	owner   Identity // who asked for it
	expires time.Time
}

func newTicketStore(ttl time.Duration, now func() time.Time) *ticketStore {
	return &ticketStore{ttl: ttl, now: now, byHash: make(map[[sha256.Size]byte]*list.Element), byAge: list.New()}
}

func (s *ticketStore) issue(owner Identity) (string, error) {
	var b [ticketBytes]byte
	_, _ = rand.Read(b[:]) // never fails
	text := ticketPrefix + base64.RawURLEncoding.EncodeToString(b[:])

	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for e := s.byAge.Front(); e != nil && !now.Before(e.Value.(ticket).expires); e = s.byAge.Front() {
		s.forget(e)
	}
	if s.byAge.Len() >= maxTickets {
		return "", ErrTooManyTickets
	}
	t := ticket{hash: sha256.Sum256([]byte(text)), owner: owner, expires: now.Add(s.ttl)}
	s.byHash[t.hash] = s.byAge.PushBack(t)
	return text, nil
}

// use spends a ticket. Of several concurrent callers one succeeds.
func (s *ticketStore) use(text string) (owner Identity, ok bool) {
	hash := sha256.Sum256([]byte(text))
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byHash[hash]
	if !ok {
		return Identity{}, false
	}
	t := e.Value.(ticket)
	s.forget(e)
	return t.owner, s.now().Before(t.expires)
}

func (s *ticketStore) forget(e *list.Element) {
	delete(s.byHash, e.Value.(ticket).hash)
	s.byAge.Remove(e)
}

// takeTickets removes our tickets from the request's URL and returns them. The
// other parameters keep their bytes and order.
func takeTickets(r *http.Request) []string {
	if r.URL.RawQuery == "" {
		return nil
	}
	var tickets, rest []string
	for part := range strings.SplitSeq(r.URL.RawQuery, "&") {
		key, value, _ := strings.Cut(part, "=")
		key, _ = url.QueryUnescape(key)
		value, _ = url.QueryUnescape(value)
		if key == "ticket" && isTicket(value) {
			tickets = append(tickets, value)
		} else {
			rest = append(rest, part)
		}
	}
	if tickets != nil {
		r.URL.RawQuery = strings.Join(rest, "&")
		r.URL.ForceQuery = false
		r.RequestURI = r.URL.RequestURI()
	}
	return tickets
}

func isTicket(s string) bool {
	text, ok := strings.CutPrefix(s, ticketPrefix)
	if !ok || base64.RawURLEncoding.DecodedLen(len(text)) != ticketBytes {
		return false
	}
	_, err := base64.RawURLEncoding.DecodeString(text)
	return err == nil
}
