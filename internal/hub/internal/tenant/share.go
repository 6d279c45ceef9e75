package tenant

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// SharePrefix is the prefix of tokens of shares.
const SharePrefix = "covs_"

const (
	maxToken        = 2 << 10
	maxShares       = 10000
	maxTenantShares = 1000
	maxSandboxID    = 128
	signingBytes    = 32
)

// Share is temporary access to one sandbox.
type Share struct {
	ID       string    `json:"id"`
	Sandbox  string    `json:"sandbox"` // its ID, which is never reused
	Tenant   string    `json:"tenant,omitempty"`
	Port     int       `json:"port,omitempty"` // 0: the whole sandbox
	ReadOnly bool      `json:"read_only,omitempty"`
	Expires  time.Time `json:"expires"`
	KeyID    string    `json:"key,omitempty"` // it expires with this key; empty: with no key
}

// Reasons for a rejected token, for logs and tests. Callers see only the text of refusedError.
var (
	ErrForged  = errors.New("the share has an invalid signature")
	ErrExpired = errors.New("the share has expired")
	ErrRevoked = errors.New("the share, its key or its sandbox was revoked or deleted")
)

// refusedError has the same text for all reasons; Unwrap returns the reason.
type refusedError struct{ why error }

func (e *refusedError) Error() string {
	return "the link is invalid or expired; ask its owner for a new one"
}
func (e *refusedError) Unwrap() error { return e.why }

func (s Share) check(now time.Time, most time.Duration) error {
	fault := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
	}
	switch {
	case !isID(s.ID):
		return fault("id %.40q: omit it", s.ID)
	case s.Sandbox == "" || len(s.Sandbox) > maxSandboxID || !printable(s.Sandbox):
		return fault("sandbox %.40q: use the ID of a sandbox", s.Sandbox)
	case s.Tenant != "" && CheckTenant(s.Tenant) != nil:
		return CheckTenant(s.Tenant)
	case s.Port < 0 || s.Port > 65535:
		return fault("port %d: use 1 to 65535, or 0 for all", s.Port)
	case s.KeyID != "" && !isID(s.KeyID):
		return fault("key %.40q: no such key", s.KeyID)
	case !s.Expires.After(now):
		return fault("expires %s: use a time in the future", s.Expires.Format(time.RFC3339))
	case s.Expires.After(now.Add(most)):
		return fault("expires %s: use at most %v from now", s.Expires.Format(time.RFC3339), most)
	}
	return nil
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' })
}

// shareFile contains the signing key and the valid shares. A share that is not in the file is invalid.
// Deleting the file revokes all shares.
type shareFile struct {
	Version int     `json:"version"`
	Signing []byte  `json:"signing"`
	Shares  []Share `json:"shares"`
}

// shareList is the parsed file. It is immutable.
type shareList struct {
	file shareFile
	byID map[string]Share
}

func parseShares(text []byte) (*shareList, error) {
	l := &shareList{byID: map[string]Share{}}
	if text == nil {
		return l, nil
	}
	if err := strict(text, &l.file); err != nil {
		return nil, err
	}
	switch f := l.file; {
	case f.Version != fileVersion:
		return nil, fmt.Errorf("version %d: %w: this program reads version %d", f.Version, ErrInvalid, fileVersion)
	case len(f.Signing) != signingBytes:
		return nil, fmt.Errorf("%w: the signing key must have %d bytes", ErrInvalid, signingBytes)
	case len(f.Shares) > maxShares:
		return nil, fmt.Errorf("%d shares: %w: use at most %d", len(f.Shares), ErrInvalid, maxShares)
	}
	for _, sh := range l.file.Shares {
		l.byID[sh.ID] = sh
	}
	return l, nil
}

// Sign creates a share with a generated ID, and its token.
func (s *Store) Sign(sh Share) (token string, made Share, err error) {
	now := s.cfg.Now()
	sh.ID, sh.Expires = newID(), sh.Expires.UTC().Truncate(time.Second)
	if err := sh.check(now, s.cfg.MaxShare); err != nil {
		return "", Share{}, fmt.Errorf("share a sandbox: %w", err)
	}
	if id, ok := s.Recall(sh.KeyID); sh.KeyID != "" {
		switch {
		case !ok:
			return "", Share{}, fmt.Errorf("share a sandbox: key %s: %w", sh.KeyID, ErrUnknown)
		case id.Tenant != sh.Tenant && !id.Role.May(Admin), !sh.ReadOnly && !id.Role.May(Write):
			return "", Share{}, fmt.Errorf("share a sandbox: %w: key %s lacks the access that the link would give", ErrInvalid, sh.KeyID)
		}
	}
	err = s.changeShares(func(f *shareFile) (bool, error) {
		f.Shares = slices.DeleteFunc(f.Shares, func(o Share) bool { return !now.Before(o.Expires) })
		own := 0
		for _, o := range f.Shares {
			if o.Tenant == sh.Tenant {
				own++
			}
		}
		if len(f.Shares) >= maxShares || own >= maxTenantShares {
			return false, fmt.Errorf("%w: %d shares of this tenant, %d of all", ErrFull, own, len(f.Shares))
		}
		f.Shares = append(f.Shares, sh)
		token, err = f.token(sh)
		return true, err
	})
	if err != nil {
		return "", Share{}, fmt.Errorf("share a sandbox: %w", err)
	}
	return token, sh, nil
}

func (f shareFile) token(sh Share) (string, error) {
	body, err := json.Marshal(sh)
	if err != nil {
		return "", err
	}
	return SharePrefix + base64.RawURLEncoding.EncodeToString(append(f.sign(body), body...)), nil
}

// sign includes the purpose in the signature, so that the key could be used for others.
func (f shareFile) sign(body []byte) []byte {
	mac := hmac.New(sha256.New, f.Signing)
	mac.Write([]byte("cove share 1\n"))
	mac.Write(body)
	return mac.Sum(nil)
}

// Verify returns the share of a token. All errors have the same text; they wrap ErrForged, ErrExpired or
// ErrRevoked.
func (s *Store) Verify(token string) (Share, error) {
	sh, err := s.verify(token)
	if err != nil {
		return Share{}, &refusedError{err}
	}
	return sh, nil
}

func (s *Store) verify(token string) (Share, error) {
	l := s.shares.get(false)
	sh, err := l.file.open(token)
	if err == nil && l.byID[sh.ID].ID == "" || err != nil && len(l.file.Signing) == 0 {
		// Find a share that another process has just created.
		l = s.shares.get(true)
		sh, err = l.file.open(token)
	}
	if err != nil {
		return Share{}, err
	}
	now := s.cfg.Now()
	if !now.Before(sh.Expires) {
		return Share{}, ErrExpired
	}
	if _, ok := l.byID[sh.ID]; !ok {
		return Share{}, ErrRevoked
	}
	return s.standing(sh)
}

// ValidShare returns a verified share, if it is still valid.
func (s *Store) ValidShare(id string) (Share, bool) {
	sh, ok := s.shares.get(false).byID[id]
	if !ok || !s.cfg.Now().Before(sh.Expires) {
		return Share{}, false
	}
	sh, err := s.standing(sh)
	return sh, err == nil
}

// standing limits a share to the current permissions of the key that created it.
func (s *Store) standing(sh Share) (Share, error) {
	if sh.KeyID == "" {
		return sh, nil
	}
	id, ok := s.Recall(sh.KeyID)
	if !ok || id.Tenant != sh.Tenant && !id.Role.May(Admin) {
		return Share{}, ErrRevoked
	}
	sh.ReadOnly = sh.ReadOnly || !id.Role.May(Write)
	return sh, nil
}

// open checks the signature of a token before it parses the token.
func (f shareFile) open(token string) (Share, error) {
	text, ok := strings.CutPrefix(token, SharePrefix)
	if !ok || len(token) > maxToken || len(f.Signing) != signingBytes {
		return Share{}, ErrForged
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < sha256.Size || strings.ContainsAny(text, "\r\n") {
		return Share{}, ErrForged
	}
	mac, body := raw[:sha256.Size], raw[sha256.Size:]
	if !hmac.Equal(mac, f.sign(body)) {
		return Share{}, ErrForged
	}
	var sh Share
	if err := strict(body, &sh); err != nil {
		return Share{}, ErrForged
	}
	return sh, nil
}

// Shares lists the valid shares of a tenant, or of all tenants if tenant is nil.
func (s *Store) Shares(tenant *string) []Share {
	now := s.cfg.Now()
	out := []Share{}
	for _, sh := range s.shares.get(true).file.Shares {
		if (tenant == nil || *tenant == sh.Tenant) && now.Before(sh.Expires) {
			if sh, err := s.standing(sh); err == nil {
				out = append(out, sh)
			}
		}
	}
	return out
}

// RevokeShare revokes a share. The caller must check its owner.
func (s *Store) RevokeShare(id string) error {
	if _, ok := s.shares.get(true).byID[id]; !ok {
		return fmt.Errorf("revoke share %.40q: %w", id, ErrUnknown)
	}
	return s.dropShares(func(sh Share) bool { return sh.ID == id })
}

// EndSandbox revokes the shares of a deleted sandbox.
func (s *Store) EndSandbox(id string) error {
	return s.dropShares(func(sh Share) bool { return sh.Sandbox == id })
}

// dropShares does not write if no share is removed, which is the usual case.
func (s *Store) dropShares(drop func(Share) bool) error {
	if !slices.ContainsFunc(s.shares.get(true).file.Shares, drop) {
		return nil
	}
	now := s.cfg.Now()
	return s.changeShares(func(f *shareFile) (bool, error) {
		before := len(f.Shares)
		f.Shares = slices.DeleteFunc(f.Shares, func(sh Share) bool { return drop(sh) || !now.Before(sh.Expires) })
		return len(f.Shares) != before, nil
	})
}

// changeShares is changeKeys for shares. It creates the signing key if there is none.
func (s *Store) changeShares(change func(*shareFile) (bool, error)) error {
	return s.shares.change(func(l *shareList) ([]byte, error) {
		f := l.file
		f.Shares = append([]Share{}, f.Shares...)
		if f.Signing == nil {
			f.Signing = make([]byte, signingBytes)
			_, _ = rand.Read(f.Signing) // never fails
		}
		if changed, err := change(&f); err != nil || !changed {
			return nil, err
		}
		f.Version = fileVersion
		text, err := json.Marshal(f)
		return append(text, '\n'), err
	})
}
