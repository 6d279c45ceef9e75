package token

import (
	"strings"
	"testing"
	"time"
)

func TestUpload(t *testing.T) {
	t.Parallel()
	s, other := New(), New()
	now := time.Unix(1000, 0)
	u := Upload{Owner: "ann", Hash: "h", Until: 2000}
	ticket := s.IssueUpload(u)
	if got, ok := s.CheckUpload(ticket, now); !ok || got != u {
		t.Errorf("got %+v %v", got, ok)
	}
	text, mac, _ := strings.Cut(ticket, ".")
	forged, _, _ := strings.Cut(s.IssueUpload(Upload{Owner: "bob", Hash: "h", Until: 2000}), ".")
	for name, bad := range map[string]string{"empty": "", "no signature": text, "of another hub": other.IssueUpload(u),
		"another owner": forged + "." + mac, "access token": s.Access(text, Bearer{})} {
		if _, ok := s.CheckUpload(bad, now); ok {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, ok := s.CheckUpload(ticket, time.Unix(2000, 0)); ok {
		t.Error("an expired ticket is accepted")
	}
}
