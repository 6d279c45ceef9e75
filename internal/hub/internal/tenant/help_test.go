package tenant

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(asWriter); path != "" {
		os.Exit(writer(path))
	}
	testenv.Main(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clock is a settable time.
type clock struct{ offset atomic.Int64 }

func (c *clock) now() time.Time          { return time.Now().Add(time.Duration(c.offset.Load())) }
func (c *clock) advance(d time.Duration) { c.offset.Add(int64(d)) }

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// rig is a store with its clock and log.
type rig struct {
	*Store
	clock
	t    testing.TB
	path string
	log  lockedBuffer
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return openRig(t, filepath.Join(t.TempDir(), "deep", "keys.json"))
}

func openRig(t testing.TB, path string) *rig {
	t.Helper()
	r := &rig{t: t, path: path}
	s, err := Open(Config{Path: path, Now: r.now, Log: slog.New(slog.NewTextHandler(&r.log, nil))})
	must(t, err)
	r.Store = s
	return r
}

func (r *rig) add(tenant string, role Role) (secret string, key Key) {
	r.t.Helper()
	secret, key, err := r.Add(tenant, role, "", time.Time{})
	must(r.t, err)
	return secret, key
}

func (r *rig) share(sh Share) (string, Share) {
	r.t.Helper()
	if sh.Expires.IsZero() {
		sh.Expires = r.now().Add(time.Hour)
	}
	token, made, err := r.Sign(sh)
	must(r.t, err)
	return token, made
}

// edit changes the file as a user with an editor does.
func (r *rig) edit(text string) {
	r.t.Helper()
	must(r.t, os.WriteFile(r.path, []byte(text), 0o600))
}

func (r *rig) text() string {
	r.t.Helper()
	b, err := os.ReadFile(r.path)
	must(r.t, err)
	return string(b)
}

func (r *rig) knows(secret string) bool {
	_, ok := r.Identify(secret)
	return ok
}

// soon advances the clock until a change in the file takes effect.
func (r *rig) soon() { r.advance(lookEvery) }

func replace(t testing.TB, text, old, with string) string {
	t.Helper()
	if !strings.Contains(text, old) {
		t.Fatalf("%q is not in %s", old, text)
	}
	return strings.Replace(text, old, with, 1)
}
