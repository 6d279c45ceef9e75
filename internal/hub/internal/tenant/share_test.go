package tenant

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// refused fails unless the token is rejected for this reason, with the same message as for all reasons.
func (r *rig) refused(token string, why error) {
	r.t.Helper()
	sh, err := r.Verify(token)
	if !errors.Is(err, why) || sh != (Share{}) {
		r.t.Errorf("%.40q: %v (%v), want %v", token, sh, errors.Unwrap(err), why)
	} else if err.Error() != "the link is invalid or expired; ask its owner for a new one" {
		r.t.Errorf(`the error reveals the reason: got %v, want the error "the link is invalid or expired; ask its owner for a new one"`, err)
	}
}

func (r *rig) accepted(token string, want Share) {
	r.t.Helper()
	if got, err := r.Verify(token); err != nil || got != want {
		r.t.Errorf("%v (%v), want %+v, got %+v", err, errors.Unwrap(err), want, got)
	}
}

func TestShares(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, key := r.add("acme", RoleUser)
	full, one := r.share(Share{Sandbox: "sb-1", Tenant: "acme", KeyID: key.ID})
	port, two := r.share(Share{Sandbox: "sb-1", Tenant: "acme", Port: 3000, ReadOnly: true, KeyID: key.ID, Expires: r.now().Add(time.Minute)})
	keyless, three := r.share(Share{Sandbox: "sb-2"})
	all := map[string]Share{full: one, port: two, keyless: three}
	again := openRig(t, r.path) // the signing key survives
	for token, sh := range all {
		r.accepted(token, sh)
		again.accepted(token, sh)
		if !strings.HasPrefix(token, SharePrefix) || strings.Contains(token, key.ID) && sh.KeyID == "" {
			t.Errorf("%s", token)
		}
		if got, ok := again.ValidShare(sh.ID); !ok || got != sh {
			t.Errorf("%+v", got)
		}
	}
	info, err := os.Stat(r.path + ".shares")
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	acme := "acme"
	if d := cmp.Diff([]Share{one, two}, r.Shares(&acme)); d != "" {
		t.Errorf("got %v, want no difference", d)
	}
	if n := len(again.Shares(nil)); n != 3 {
		t.Errorf("%d shares", n)
	}
	// A share that another process created is valid at once.
	late, four := r.share(Share{Sandbox: "sb-3"})
	again.accepted(late, four)

	r.advance(time.Minute)
	r.refused(port, ErrExpired)
	if _, ok := r.ValidShare(two.ID); ok || len(r.Shares(nil)) != 3 {
		t.Error("an expired share is listed")
	}
	must(t, r.RevokeShare(one.ID))
	if err := r.RevokeShare(one.ID); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	r.refused(full, ErrRevoked)
	again.soon()
	again.refused(full, ErrRevoked)
	r.accepted(keyless, three)
	must(t, r.EndSandbox("sb-2"))
	must(t, r.EndSandbox("sb-2"))
	must(t, r.EndSandbox("nothing"))
	r.refused(keyless, ErrRevoked)
	r.accepted(late, four)
	// Without the file there are no shares, and a new file does not contain the old ones.
	must(t, os.Remove(r.path+".shares"))
	r.soon()
	r.refused(late, ErrForged)
	_, five := r.share(Share{Sandbox: "sb-4"})
	r.refused(late, ErrForged)
	if got := r.Shares(nil); len(got) != 1 || got[0] != five {
		t.Errorf("%+v", got)
	}
}

func TestShareEndsWithItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, key, err := r.Add("acme", RoleUser, "", r.now().Add(30*time.Minute))
	must(t, err)
	_, admin := r.add("ops", RoleAdmin)
	token, sh := r.share(Share{Sandbox: "sb-1", Tenant: "acme", KeyID: key.ID})
	foreign, other := r.share(Share{Sandbox: "sb-1", Tenant: "acme", KeyID: admin.ID})

	// If the role of a key is reduced, its shares are reduced as well.
	good := r.text()
	r.edit(replace(t, good, `"user"`, `"viewer"`))
	r.soon()
	sh.ReadOnly = true
	r.accepted(token, sh)
	sh.ReadOnly = false
	r.edit(replace(t, good, `"acme"`, `"globex"`))
	r.soon()
	r.refused(token, ErrRevoked)
	r.edit(good)
	r.soon()
	r.accepted(token, sh)

	cli := openRig(t, r.path)
	must(t, cli.Revoke(admin.ID))
	r.soon()
	r.refused(foreign, ErrRevoked)
	if _, ok := r.ValidShare(other.ID); ok {
		t.Error("it is still valid")
	}
	if text, err := os.ReadFile(r.path + ".shares"); err != nil || strings.Contains(string(text), other.ID) ||
		!strings.Contains(string(text), sh.ID) {
		t.Errorf("got %s %v, want no %q but %q in it", text, err, other.ID, sh.ID)
	}
	r.advance(30 * time.Minute)
	r.refused(token, ErrRevoked) // the key expired before the share
}

func TestSignRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, user := r.add("acme", RoleUser)
	_, viewer := r.add("acme", RoleViewer)
	_, dead := r.add("acme", RoleUser)
	must(t, r.Revoke(dead.ID))
	soon := r.now().Add(time.Hour)
	for name, sh := range map[string]Share{
		"no sandbox":         {Expires: soon},
		"odd sandbox":        {Sandbox: "a\nb", Expires: soon},
		"long sandbox":       {Sandbox: strings.Repeat("a", 129), Expires: soon},
		"odd tenant":         {Sandbox: "sb", Tenant: "a/b", Expires: soon},
		"negative port":      {Sandbox: "sb", Port: -1, Expires: soon},
		"high port":          {Sandbox: "sb", Port: 65536, Expires: soon},
		"no end":             {Sandbox: "sb"},
		"over already":       {Sandbox: "sb", Expires: r.now()},
		"too long":           {Sandbox: "sb", Expires: r.now().Add(25 * time.Hour)},
		"odd key":            {Sandbox: "sb", Tenant: "acme", KeyID: "x", Expires: soon},
		"unknown key":        {Sandbox: "sb", Tenant: "acme", KeyID: newID(), Expires: soon},
		"revoked key":        {Sandbox: "sb", Tenant: "acme", KeyID: dead.ID, Expires: soon},
		"another's sandbox":  {Sandbox: "sb", Tenant: "globex", KeyID: user.ID, Expires: soon},
		"more than the key":  {Sandbox: "sb", Tenant: "acme", KeyID: viewer.ID, Expires: soon},
		"an empty tenant":    {Sandbox: "sb", KeyID: user.ID, Expires: soon},
		"far too far ahead":  {Sandbox: "sb", Expires: r.now().AddDate(10000, 0, 0)},
		"an odd key's shape": {Sandbox: "sb", KeyID: strings.Repeat("a", 5000), Expires: soon},
	} {
		if token, _, err := r.Sign(sh); err == nil || token != "" {
			t.Errorf("%s: signed", name)
		}
	}
	r.share(Share{Sandbox: "sb", Tenant: "acme", KeyID: viewer.ID, ReadOnly: true})
}

func TestSharesAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, first := r.share(Share{Sandbox: "sb"})
	must(t, r.changeShares(func(f *shareFile) (bool, error) {
		for len(f.Shares) < maxTenantShares {
			sh := first
			sh.ID = newID()
			f.Shares = append(f.Shares, sh)
		}
		return true, nil
	}))
	if _, _, err := r.Sign(Share{Sandbox: "sb", Expires: r.now().Add(time.Minute)}); !errors.Is(err, ErrFull) {
		t.Errorf("got %v, want ErrFull", err)
	}
	r.share(Share{Sandbox: "sb", Tenant: "other"})
	r.advance(2 * time.Hour)
	r.share(Share{Sandbox: "sb"})
	if n := len(r.Store.shares.get(true).file.Shares); n != 1 {
		t.Errorf("%d shares are stored", n)
	}
}

func TestForgedShares(t *testing.T) {
	t.Parallel()
	r, other := newRig(t), newRig(t)
	token, sh := r.share(Share{Sandbox: "sb-1"})
	foreign, _ := other.share(Share{Sandbox: "sb-1"})
	raw, err := base64.RawURLEncoding.DecodeString(token[len(SharePrefix):])
	must(t, err)
	encode := func(b []byte) string { return SharePrefix + base64.RawURLEncoding.EncodeToString(b) }
	changed := sh
	changed.Sandbox = "sb-2"
	body, err := json.Marshal(changed)
	must(t, err)
	unsigned := shareFile{}
	empty, err := unsigned.token(sh)
	must(t, err)
	tokens := []string{
		"", SharePrefix, "x", foreign, empty, token + "A", token[:len(token)-1], token + "=", token + "\n", " " + token, token[len(SharePrefix):],
		strings.Replace(token, SharePrefix, "cove_", 1), encode(raw[:32]), encode(raw[:31]), encode(raw[32:]), encode(append(raw, ' ')),
		encode(append(append([]byte{}, raw[:32]...), body...)), encode(append(make([]byte, 32), body...)), token[:10] + "\n" + token[10:],
		token + strings.Repeat("A", maxToken), base64.StdEncoding.EncodeToString(raw),
	}
	for i := range raw {
		flipped := append([]byte{}, raw...)
		flipped[i] ^= 1
		tokens = append(tokens, encode(flipped))
	}
	// Signed, but not a share.
	f := r.Store.shares.get(true).file
	for _, body := range []string{"", "null x", "[]", `{"id":1}`, `{"unknown":1}`, string(raw[32:]) + "{}"} {
		tokens = append(tokens, encode(append(f.sign([]byte(body)), body...)))
	}
	for _, token := range tokens {
		r.refused(token, ErrForged)
	}
	// Signed by us, but never listed.
	unlisted := sh
	unlisted.ID = newID()
	token2, err := f.token(unlisted)
	must(t, err)
	r.refused(token2, ErrRevoked)
	r.accepted(token, sh)
}

func TestBrokenShareFile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	token, sh := r.share(Share{Sandbox: "sb-1"})
	path := r.path + ".shares"
	good, err := os.ReadFile(path)
	must(t, err)
	for _, text := range []string{"", "{", "{}", `{"version":1,"signing":"","shares":[]}`,
		`{"version":1,"signing":"AAAA","shares":[]}`, string(good[:len(good)-5])} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		r.soon()
		r.accepted(token, sh)
		if r.Fault() == nil {
			t.Errorf("%q: no fault", text)
		}
		if _, _, err := r.Sign(Share{Sandbox: "sb-1", Expires: r.now().Add(time.Minute)}); err == nil {
			t.Errorf("%q: the file was overwritten", text)
		}
		if _, err := Open(Config{Path: r.path}); err == nil || !strings.Contains(err.Error(), "delete it to revoke all links") {
			t.Errorf(`%q: got %v, want an error that contains "delete it to revoke all links"`, text, err)
		}
	}
}

func FuzzVerify(f *testing.F) {
	r := newRig(f)
	token, sh := r.share(Share{Sandbox: "sb-1", Tenant: "acme", Port: 80})
	for _, s := range []string{token, token[:50], token + "x", SharePrefix, "", "covs_%%%",
		"covs_" + strings.Repeat("A", 100), "cove_aaaaaaaaaaaa_" + strings.Repeat("0", 43)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := r.Verify(s)
		if (err == nil) != (s == token) || err == nil && got != sh {
			t.Errorf("%q: %+v %v", s, got, err)
		}
		if id, ok := r.Identify(s); ok {
			t.Errorf("%q: got %+v, want no identity", s, id)
		}
	})
}

func FuzzKeysFile(f *testing.F) {
	r := newRig(f)
	_, _ = r.add("acme", RoleUser)
	f.Add([]byte(r.text()))
	f.Add([]byte(`{"version":1,"keys":[],"limits":{"default":{"cpu":-1},"tenants":{"a":{"burst":1},"b":null}}}`))
	f.Add([]byte(`{"version":1,"limits":{"default":null}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if text == nil {
			return
		}
		ring, err := parseKeys(text, quota.Limits{})
		if err != nil {
			return
		}
		for id, k := range ring.byID {
			if k.ID != id || k.check() != nil {
				t.Errorf("%s: got %+v, want ID %q and a valid key", id, k, id)
			}
		}
		again, err := ring.file.encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseKeys(again, quota.Limits{}); err != nil {
			t.Errorf("the file that was read cannot be written again: %v\n%s", err, again)
		}
	})
}
