package auth

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// keyFile is a set of keys that can change while a server runs.
type keyFile struct {
	mu   sync.Mutex
	keys map[string]Identity // by secret
}

func newKeyFile() *keyFile {
	return &keyFile{keys: map[string]Identity{
		"cove_k1_hunter4": {Subject: "acme", Role: "user", KeyID: "k1", Via: "a lie"},
		"cove_k2_hunter5": {Subject: "acme", Role: "viewer", KeyID: "k2"},
		"no-id-hunter6":   {Subject: "acme", Role: "admin"},
		"long-id-hunter7": {Subject: "acme", Role: "admin", KeyID: strings.Repeat("k", maxKeyID+1)},
	}}
}

func (k *keyFile) identify(secret string) (Identity, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id, ok := k.keys[secret]
	return id, ok
}

func (k *keyFile) recall(keyID string) (Identity, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range k.keys {
		if id.KeyID == keyID {
			return id, true
		}
	}
	return Identity{}, false
}

func (k *keyFile) set(secret string, id Identity) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.keys, secret)
	if id.KeyID != "" {
		k.keys[secret] = id
	}
}

func TestKeysAreAdmitted(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{"alone": {Public: healthOnly}, "with other credentials": closed()} {
		ring := newKeyFile()
		c.Identify, c.Recall, c.Open, c.Insecure = ring.identify, ring.recall, true, true
		s := serve(t, c)
		acme := Identity{Subject: "acme", Role: "user", KeyID: "k1", Via: ViaKey}
		for _, header := range []string{"Authorization: Bearer cove_k1_hunter4",
			"authorization: bearer  cove_k1_hunter4", "X-API-Key: cove_k1_hunter4"} {
			r := s.send("GET /x", header)
			if got := r.seen(t); got.Identity != acme || got.Header.Get("Authorization") != "" || got.Header.Get("X-Api-Key") != "" {
				t.Errorf("%s, %s: got %+v, want %+v without the key", name, header, got, acme)
			}
		}
		if got := s.send("GET /x", "X-API-Key: cove_k2_hunter5").seen(t); got.Identity.Role != "viewer" || got.Identity.KeyID != "k2" {
			t.Errorf("%s: got %+v, want the viewer k2", name, got)
		}
		// The first key is used, and the second is removed too.
		got := s.send("GET /x", "Authorization: Bearer cove_k2_hunter5", "X-API-Key: cove_k1_hunter4").seen(t)
		if got.Identity.KeyID != "k2" || got.Header.Get("X-Api-Key") != "" {
			t.Errorf("%s, two keys: got %+v, want k2 and neither key", name, got)
		}
		for _, header := range []string{
			"X-Nothing: 1", "Authorization: Bearer cove_k1_hunter", "X-API-Key: cove_k1_",
			"Authorization: Basic cove_k1_hunter4", "Cookie: key=cove_k1_hunter4",
			"Authorization: Bearer no-id-hunter6", "X-API-Key: long-id-hunter7", "X-API-Key: " + strings.Repeat("x", maxToken+1),
			"Authorization: Bearer cove_k1_hunter4\r\nAuthorization: Bearer cove_k1_hunter4",
		} {
			if r := s.send("GET /x?key=cove_k1_hunter4&ticket=cove_k1_hunter4", header); r.status != 401 || strings.Contains(r.body, "hunter") {
				t.Errorf("%s, %.60s: got status %d %s, want 401 without the key", name, header, r.status, r.body)
			}
		}
		if r := s.send("GET /x"); !strings.Contains(r.body, "Bearer <token>") || !strings.Contains(r.body, "X-API-Key: <key>") {
			t.Errorf("%s: got %s, want both ways to send a key", name, r.body)
		}
		ring.set("cove_k1_hunter4", Identity{})
		if r := s.send("GET /x", "X-API-Key: cove_k1_hunter4"); r.status != 401 {
			t.Errorf("%s, revoked: got status %d, want 401", name, r.status)
		}
		if strings.Contains(s.log.String(), "hunter") {
			t.Errorf("%s: got log %s, want no key in it", name, s.log.String())
		}
	}
}

// A server that requires keys is not open if no key exists.
func TestNoKeysAdmitNoCaller(t *testing.T) {
	t.Parallel()
	c := Config{Open: true, Insecure: true, Identify: func(string) (Identity, bool) { return Identity{}, false }}
	if !c.HasCredentials() {
		t.Error("got no credentials, want keys to count as such")
	}
	if r := serve(t, c).send("GET /", "X-API-Key: x"); r.status != 401 {
		t.Errorf("got status %d, want 401", r.status)
	}
	if err := CheckListen("0.0.0.0:80", c, false); err != nil {
		t.Errorf("got error %v, want none with keys", err)
	}
}

// Tickets and cookies expire with the key of their creator, and always have its current role.
func TestSessionsEndWithTheirKey(t *testing.T) {
	t.Parallel()
	ring := newKeyFile()
	c := closed()
	c.Identify, c.Recall = ring.identify, ring.recall
	s := serve(t, c)
	ticket := func() string {
		id, _ := ring.recall("k1")
		ticket, _, err := s.Issue(NewContext(context.Background(), id))
		if err != nil {
			t.Fatal(err)
		}
		return ticket
	}
	unused := []string{ticket(), ticket()}
	r := s.send("GET /?ticket=" + ticket())
	cookie, _, _ := strings.Cut(r.header.Get("Set-Cookie"), ";")
	if got := r.seen(t).Identity; got != (Identity{Subject: "acme", Role: "user", KeyID: "k1", Via: ViaTicket}) {
		t.Errorf("ticket: got %+v, want the owner of k1", got)
	}
	if got := s.send("GET /", "Cookie: "+cookie).seen(t).Identity; got != (Identity{Subject: "acme", Role: "user",
		KeyID: "k1", Via: ViaCookie}) {
		t.Errorf("cookie: got %+v, want the owner of k1", got)
	}
	ring.set("cove_k1_hunter4", Identity{Subject: "acme", Role: "viewer", KeyID: "k1"})
	if got := s.send("GET /", "Cookie: "+cookie).seen(t).Identity; got.Role != "viewer" {
		t.Errorf("lowered role: got %+v, want viewer", got)
	}
	ring.set("cove_k1_hunter4", Identity{Subject: "other", Role: "user", KeyID: "k1"})
	if r := s.send("GET /", "Cookie: "+cookie); r.status != 401 {
		t.Errorf("key that belongs to another tenant: got status %d, want 401", r.status)
	}
	if r := s.send("GET /?ticket=" + unused[0]); r.status != 401 {
		t.Errorf("key that belongs to another tenant: got status %d, want 401", r.status)
	}
	ring.set("cove_k1_hunter4", Identity{})
	if r := s.send("GET /", "Cookie: "+cookie); r.status != 401 {
		t.Errorf("cookie of a revoked key: got status %d, want 401", r.status)
	}
	if r := s.send("GET /?ticket=" + unused[1]); r.status != 401 || r.header.Get("Set-Cookie") != "" {
		t.Errorf("ticket of a revoked key: got status %d, want 401 and no cookie", r.status)
	}
	// Sessions without a key remain valid.
	if got := s.send("GET /", "Cookie: "+s.openSession()).seen(t).Identity; got != (Identity{Subject: "alice", Via: ViaCookie}) {
		t.Errorf("got %+v, want the owner of the session", got)
	}
	c.Recall = nil
	s = serve(t, c)
	ring.set("cove_k1_hunter4", Identity{Subject: "acme", Role: "user", KeyID: "k1"})
	if r := s.send("GET /?ticket=" + ticket()); r.status != 401 {
		t.Errorf("without Recall: got status %d, want 401", r.status)
	}
}

// A guest with a link can get a ticket without a key.
func TestTicketForAGuest(t *testing.T) {
	t.Parallel()
	guest := Identity{Subject: "share:1", Role: "viewer", KeyID: "share:1"}
	var over atomic.Bool
	s := serve(t, Config{
		Identify: func(string) (Identity, bool) { return Identity{}, false },
		Recall:   func(keyID string) (Identity, bool) { return guest, keyID == guest.KeyID && !over.Load() },
	})
	ticket, _, err := s.Issue(NewContext(context.Background(), guest))
	if err != nil {
		t.Fatal(err)
	}
	cookie, _, _ := strings.Cut(s.send("GET /?ticket="+ticket).header.Get("Set-Cookie"), ";")
	if got := s.send("GET /", "Cookie: "+cookie).seen(t).Identity; got != (Identity{Subject: "share:1",
		Role: "viewer", KeyID: "share:1", Via: ViaCookie}) {
		t.Errorf("got %+v, want the owner of the session", got)
	}
	over.Store(true)
	if r := s.send("GET /", "Cookie: "+cookie); r.status != 401 {
		t.Errorf("after it expired: got status %d, want 401", r.status)
	}
}
