package auth

import (
	"container/list"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A ticket has a recognizable form, so that a parameter of the same name for a service behind
// us is not removed.
const (
	ticketPrefix = "tkt_"
	ticketBytes  = 32
	maxTickets   = 4096
)

// Errors of issuing a ticket.
var (
	ErrTooManyTickets = errors.New("too many unused tickets; wait until some expire")
	ErrSessionOver    = errors.New("the session has ended; sign in again")
)

// ticketStore holds the hashes of unused tickets. It removes used and expired ones, so unknown
// and used tickets are treated the same.
type ticketStore struct {
	now func() time.Time

	mu     sync.Mutex
	byHash map[[sha256.Size]byte]*list.Element
	byAge  *list.List // of ticket, oldest first; most have the same lifetime, so the first expires first
}

type ticket struct {
	hash    [sha256.Size]byte
	owner   Identity // its creator; Site is the only site where it is valid
	session session  // of the creator, or one that starts with the ticket
	expires time.Time
}

func newTicketStore(now func() time.Time) *ticketStore {
	return &ticketStore{now: now, byHash: make(map[[sha256.Size]byte]*list.Element), byAge: list.New()}
}

func (s *ticketStore) issue(t ticket) (string, error) {
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
	t.hash = sha256.Sum256([]byte(text))
	s.byHash[t.hash] = s.byAge.PushBack(t)
	return text, nil
}

// use consumes a ticket. Exactly one of several concurrent callers succeeds.
func (s *ticketStore) use(text string) (t ticket, ok bool) {
	hash := sha256.Sum256([]byte(text))
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.byHash[hash]
	if !ok {
		return ticket{}, false
	}
	t = e.Value.(ticket)
	s.forget(e)
	return t, s.now().Before(t.expires)
}

func (s *ticketStore) forget(e *list.Element) {
	delete(s.byHash, e.Value.(ticket).hash)
	s.byAge.Remove(e)
}

// takeTickets removes our tickets from the URL of a request and returns them. Other
// parameters remain byte for byte, in order.
func takeTickets(r *http.Request) []string {
	tickets, rest := cutParameter(r.URL.RawQuery, "ticket", isTicket)
	if tickets != nil {
		r.URL.RawQuery = rest
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
