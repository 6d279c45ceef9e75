package token

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTokensStay(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	a, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v and error %v, want 0600", info.Mode(), err)
	}
	b, err := Open(path)
	if err != nil || a.Access("sb-1", Bearer{}) != b.Access("sb-1", Bearer{}) || a.Traffic("sb-1", Bearer{}) != b.Traffic("sb-1", Bearer{}) {
		t.Errorf("got other tokens or error %v after a restart, want the same tokens", err)
	}
	if New().Access("sb-1", Bearer{}) == a.Access("sb-1", Bearer{}) {
		t.Error("got the same token of another key, want another")
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("a short key: got %v, want an error with advice", err)
	}
	if _, err := Open(t.TempDir()); err == nil {
		t.Error("a folder: got no error, want one")
	}
}

func TestTokensOpenOneSandbox(t *testing.T) {
	t.Parallel()
	s := New()
	access, traffic := s.Access("sb-1", Bearer{}), s.Traffic("sb-1", Bearer{})
	for what, c := range map[string]struct{ got, want bool }{
		"own":                   {s.IsAccess("sb-1", access), true},
		"own ports":             {s.IsTraffic("sb-1", traffic), true},
		"another's":             {s.IsAccess("sb-2", access), false},
		"another's ports":       {s.IsTraffic("sb-2", traffic), false},
		"ports for all":         {s.IsAccess("sb-1", traffic), false},
		"all for ports":         {s.IsTraffic("sb-1", access), false},
		"empty":                 {s.IsAccess("sb-1", ""), false},
		"cut":                   {s.IsAccess("sb-1", access[:len(access)-1]), false},
		"longer":                {s.IsAccess("sb-1", access+"0"), false},
		"upper case":            {s.IsAccess("sb-1", strings.ToUpper(access)), false},
		"ID with a line break":  {s.IsAccess("sb-1\nx", access), false},
		"kind within the ID":    {s.IsTraffic("", s.sign("traffic", "", Bearer{})), false},
		"access of an empty ID": {s.IsAccess("", access), false},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %v, want %v", what, c.got, c.want)
		}
	}
}

// sign signs a link as E2B's clients do.
func sign(l Link, token string) Link {
	operation := "read"
	if l.Write {
		operation = "write"
	}
	text := l.Path + ":" + operation + ":" + l.User + ":" + token
	if l.Expires != "" {
		text += ":" + l.Expires
	}
	sum := sha256.Sum256([]byte(text))
	l.Signature = "v1_" + strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "=")
	return l
}

func TestLinks(t *testing.T) {
	t.Parallel()
	s, now := New(), time.Unix(1_000_000, 0)
	ids := []string{"sb-1", "sb-2", "sb-3"}
	token := s.Access("sb-2", Bearer{})
	good := Link{Path: "/home/user/a:b.txt", User: "user", Expires: "1000000"}
	for what, c := range map[string]struct {
		link Link
		want bool
	}{
		"read":          {sign(good, token), true},
		"no expiry":     {sign(Link{Path: "x"}, token), true},
		"write":         {sign(Link{Path: "x", Write: true}, token), true},
		"empty path":    {sign(Link{}, token), true},
		"expired":       {sign(Link{Path: "x", Expires: "999999"}, token), false},
		"odd expiry":    {sign(Link{Path: "x", Expires: "soon"}, token), false},
		"traffic token": {sign(good, s.Traffic("sb-2", Bearer{})), false},
		"foreign token": {sign(good, New().Access("sb-2", Bearer{})), false},
		"other token":   {sign(good, s.Access("sb-9", Bearer{})), false},
		"no signature":  {good, false},
		"short":         {Link{Path: "x", Signature: "v1_AAAA"}, false},
		"no version":    {Link{Path: "x", Signature: strings.TrimPrefix(sign(Link{Path: "x"}, token).Signature, "v1_")}, false},
		"padded":        {Link{Path: "x", Signature: sign(Link{Path: "x"}, token).Signature + "="}, false},
	} {
		if got := s.IsSigned("sb-2", c.link, now); got != c.want {
			t.Errorf("%s: got %v, want %v", what, got, c.want)
		}
		id, found := s.FindSigned(ids, c.link, now)
		if found != c.want || found && id != "sb-2" {
			t.Errorf("%s: found %q, %v, want %v", what, id, found, c.want)
		}
		if s.IsSigned("sb-1", c.link, now) {
			t.Errorf("%s: another sandbox accepts it", what)
		}
	}
	for what, change := range map[string]func(*Link){
		"path": func(l *Link) { l.Path += "x" }, "user": func(l *Link) { l.User = "root" }, "operation": func(l *Link) { l.Write = true },
		"expiry": func(l *Link) { l.Expires = "2000000" }, "no expiry": func(l *Link) { l.Expires = "" },
	} {
		l := sign(good, token)
		change(&l)
		if s.IsSigned("sb-2", l, now) {
			t.Errorf("%s changed: got a valid link, want none", what)
		}
	}
}

// Tokens of deleted sandboxes are removed from memory.
func TestSearchIsBounded(t *testing.T) {
	t.Parallel()
	s := New()
	for turn := range 50 {
		ids := make([]string, 100)
		for i := range ids {
			ids[i] = fmt.Sprintf("sb-%d-%d", turn, i)
		}
		l := sign(Link{Path: "x"}, s.Access(ids[99], Bearer{}))
		if id, ok := s.FindSigned(ids, l, time.Now()); !ok || id != ids[99] {
			t.Fatalf("turn %d: got %q, %v, want %q", turn, id, ok, ids[99])
		}
		if len(s.access) > 400 {
			t.Fatalf("turn %d: got %d tokens in memory, want at most 400", turn, len(s.access))
		}
	}
}

// BenchmarkFindSigned measures the cost of a request without credentials, with a thousand sandboxes.
func BenchmarkFindSigned(b *testing.B) {
	s, ids := New(), make([]string, 1000)
	for i := range ids {
		ids[i] = "sb-" + strconv.Itoa(i)
	}
	for _, length := range []int{10, 60_000} {
		b.Run("path of "+strconv.Itoa(length), func(b *testing.B) {
			l := sign(Link{Path: strings.Repeat("x", length)}, "unowned")
			for b.Loop() {
				s.FindSigned(ids, l, time.Now())
			}
		})
	}
}

// keys are keys that a test can change.
type keys map[string]Bearer

func (k keys) Recall(key string) (Bearer, bool) { b, ok := k[key]; return b, ok }

func (k keys) Of(string) (all []Bearer) {
	for _, b := range k {
		all = append(all, b)
	}
	return all
}

// TestTokensExpireWithKey: a token and the URLs that it signed expire when its key is revoked or gets
// another role or tenant. Tokens of other keys stay valid.
func TestTokensExpireWithKey(t *testing.T) {
	t.Parallel()
	one, two := Bearer{"aaaaaaaaaaaa", "anna", "user"}, Bearer{"bbbbbbbbbbbb", "anna", "user"}
	for what, change := range map[string]func(keys){
		"revoked": func(k keys) { delete(k, one.Key) },
		"role":    func(k keys) { k[one.Key] = Bearer{one.Key, "anna", "admin"} },
		"tenant":  func(k keys) { k[one.Key] = Bearer{one.Key, "bert", "user"} },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			s, known, now := New(), keys{one.Key: one, two.Key: two}, time.Now()
			before := s.Access("sb-1", one) // before the first key exists
			s.Bind(known)
			valid := func(b Bearer) [4]bool {
				l := sign(Link{Path: "x"}, s.Access("sb-1", b))
				by, signed := s.SignedBy("sb-1", l, now)
				id, found := s.FindSigned([]string{"sb-0", "sb-1"}, l, now)
				return [4]bool{s.IsAccess("sb-1", s.Access("sb-1", b)), s.IsTraffic("sb-1", s.Traffic("sb-1", b)),
					signed && by == b.Key, found && id == "sb-1"}
			}
			all, none := [4]bool{true, true, true, true}, [4]bool{}
			for _, b := range []Bearer{one, two, {}} {
				if got := valid(b); got != all {
					t.Errorf("%+v: got %v, want all", b, got)
				}
			}
			if s.IsAccess("sb-1", before) {
				t.Error("a token from before the first key: got a valid one, want none")
			}
			change(known)
			for b, want := range map[Bearer][4]bool{one: none, two: all, {}: all} {
				if got := valid(b); got != want {
					t.Errorf("after the change, %+v: got %v, want %v", b, got, want)
				}
			}
			forged := "cova_" + two.Key + "_" + strings.TrimPrefix(s.Access("sb-1", one), "cova_"+one.Key+"_")
			if s.IsAccess("sb-1", forged) {
				t.Error("a token of one key with the ID of another: got a valid one, want none")
			}
		})
	}
}
