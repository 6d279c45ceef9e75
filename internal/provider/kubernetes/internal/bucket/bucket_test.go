//go:build linux

package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/test/cluster"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func open(t *testing.T, s *cluster.Store, change func(*bucket.Config)) *bucket.Bucket {
	t.Helper()
	cfg := bucket.Config{Endpoint: s.Endpoint, Bucket: s.Bucket, Prefix: "some/prefix/", AccessKey: s.AccessKey, SecretKey: s.SecretKey}
	if change != nil {
		change(&cfg)
	}
	b, err := bucket.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

// failing is a reader that ends with an error.
type failing struct {
	io.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if err == io.EOF {
		err = f.err
	}
	return n, err
}

// files lists the objects of a store, and leftovers of uploads.
func files(t *testing.T, s *cluster.Store) (all []string) {
	t.Helper()
	err := filepath.Walk(s.Dir, func(p string, info os.FileInfo, err error) error {
		if err == nil && info.Mode().IsRegular() {
			name, _ := filepath.Rel(s.Dir, p)
			all = append(all, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestBucket runs all operations with a real store.
func TestBucket(t *testing.T) {
	t.Parallel()
	s := cluster.StartStore(t, "../../../../../.tools")
	b, ctx := open(t, s, nil), t.Context()
	big := make([]byte, 20<<20)
	rand.NewChaCha8([32]byte{}).Read(big)
	want := []string{}
	for name, data := range map[string][]byte{"empty": nil, "small": []byte("hello"),
		"odd/na me+ä=&%?#~": []byte("odd"), "part": big[:8<<20], "parts": big, "two": big[:16<<20]} {
		if n, err := b.Upload(ctx, "k/"+name, bytes.NewReader(data)); err != nil || n != int64(len(data)) {
			t.Fatalf("upload %q: got %d, %v", name, n, err)
		}
		if got, err := b.Open(ctx, "k/"+name); err != nil {
			t.Errorf("open %q: %v", name, err)
		} else if text, err := io.ReadAll(got); err != nil || !bytes.Equal(text, data) || got.Close() != nil {
			t.Errorf("read %q: got %d bytes, %v, want %d", name, len(text), err, len(data))
		}
		want = append(want, "k/"+name)
	}
	slices.Sort(want)
	if got, err := b.List(ctx, "k/"); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if got, err := open(t, s, func(c *bucket.Config) { c.Prefix = "other/" }).List(ctx, ""); err != nil || len(got) != 0 {
		t.Errorf("below another prefix: got %q, %v, want nothing", got, err)
	}
	for _, key := range append(want, "never") {
		if err := b.Delete(ctx, key); err != nil {
			t.Error(err)
		}
	}
	if _, err := b.Get(ctx, "k/small"); !bucket.IsMissing(err) {
		t.Errorf("got %v, want a missing object", err)
	}
	// More than one page.
	for i := range 1005 {
		if err := b.Put(ctx, fmt.Sprintf("many/%04d", i), nil); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := b.List(ctx, "many/"); err != nil || len(got) != 1005 || got[1004] != "many/1004" {
		t.Errorf("got %d keys, %v, want 1005", len(got), err)
	}
	if err := b.Examine(ctx); err != nil {
		t.Error(err)
	}
}

// TestInterruptedUploads: an interrupted upload leaves nothing behind, or Sweep removes its parts.
func TestInterruptedUploads(t *testing.T) {
	t.Parallel()
	s := cluster.StartStore(t, "../../../../../.tools")
	b := open(t, s, nil)
	for _, size := range []int{0, 100, 9 << 20, 17 << 20} {
		broken := io.ErrUnexpectedEOF // that of a connection, not of the reader
		if _, err := b.Upload(t.Context(), "cut", &failing{bytes.NewReader(make([]byte, size)), broken}); !errors.Is(err, broken) {
			t.Errorf("after %d bytes: got %v, want %v", size, err, broken)
		}
		ctx, cancel := context.WithCancel(t.Context())
		called := &calling{Reader: bytes.NewReader(make([]byte, size)), after: size - 50, do: cancel}
		if _, err := b.Upload(ctx, "cut", called); !errors.Is(err, context.Canceled) {
			t.Errorf("canceled after %d bytes: got %v", size, err)
		}
		cancel()
	}
	if left := files(t, s); len(left) != 0 {
		t.Errorf("got %q, want nothing left", left)
	}
	// A killed hub leaves parts behind.
	var fail atomic.Bool
	proxy := front(t, s, func(r *http.Request) int {
		if fail.Load() && (r.URL.Query().Has("partNumber") && r.URL.Query().Get("partNumber") != "1" || r.Method == http.MethodDelete) {
			return http.StatusForbidden
		}
		return 0
	})
	fail.Store(true)
	via := open(t, s, func(c *bucket.Config) { c.Endpoint = proxy })
	if _, err := via.Upload(t.Context(), "cut", bytes.NewReader(make([]byte, 20<<20))); err == nil {
		t.Error("got no error, want the error of the store")
	}
	if left := files(t, s); len(left) == 0 {
		t.Error("no parts are left, so the test has no effect")
	}
	if err := open(t, s, func(c *bucket.Config) { c.Prefix = "some/other/" }).Sweep(t.Context()); err != nil || len(files(t, s)) == 0 {
		t.Errorf("got %v, %q, want unchanged uploads of others", err, files(t, s))
	}
	if err := b.Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	if left := files(t, s); len(left) != 0 {
		t.Errorf("got %q, want nothing left", left)
	}
}

type calling struct {
	io.Reader
	after, seen int
	do          func()
}

func (c *calling) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	if c.seen += n; c.seen > c.after {
		c.do()
	}
	return n, err
}

// front is a store with configurable errors.
func front(t *testing.T, s *cluster.Store, fault func(*http.Request) int) string {
	t.Helper()
	server := httptest.NewServer(s.Proxy(fault))
	t.Cleanup(server.Close)
	return server.URL
}

// TestErrors: errors contain the error of the store, and never a secret.
func TestErrors(t *testing.T) {
	t.Parallel()
	s := cluster.StartStore(t, "../../../../../.tools")
	for want, change := range map[string]func(*bucket.Config){
		"SignatureDoesNotMatch":    func(c *bucket.Config) { c.SecretKey = "another secret" },
		"XAdminUserNotFound":       func(c *bucket.Config) { c.AccessKey = "nobody" },
		"NoSuchBucket":             func(c *bucket.Config) { c.Bucket = "none" },
		"does not answer":          func(c *bucket.Config) { c.Endpoint = "http://127.0.0.1:1" },
		"307 Temporary Redirect":   func(c *bucket.Config) { c.Endpoint = front(t, s, func(*http.Request) int { return 307 }) },
		"507 Insufficient Storage": func(c *bucket.Config) { c.Endpoint = front(t, s, func(*http.Request) int { return 507 }) },
		"503 Service Unavailable":  func(c *bucket.Config) { c.Endpoint = front(t, s, func(*http.Request) int { return 503 }) },
	} {
		b := open(t, s, change)
		for what, err := range map[string]error{"put": b.Put(t.Context(), "x", nil), "examine": b.Examine(t.Context())} {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: got %v, want %s", what, err, want)
			}
		}
		if _, err := b.Get(t.Context(), "x"); err == nil || bucket.IsMissing(err) {
			t.Errorf("%s: got %v, want that it is not known whether the object exists", want, err)
		}
	}
	// A store with a temporary error.
	var calls atomic.Int64
	b := open(t, s, func(c *bucket.Config) {
		c.Endpoint = front(t, s, func(*http.Request) int {
			if calls.Add(1)%3 != 0 {
				return 503
			}
			return 0
		})
	})
	if err := b.Put(t.Context(), "x", []byte("y")); err != nil {
		t.Errorf("got %v, want a successful retry", err)
	}
	for _, cfg := range []bucket.Config{{}, {Endpoint: "s3.example.com", Bucket: "b", AccessKey: "a", SecretKey: "s"},
		{Endpoint: "https://x", AccessKey: "a", SecretKey: "s"}, {Endpoint: "https://x", Bucket: "b"},
		{Endpoint: "https://u:p@x", Bucket: "b", AccessKey: "a", SecretKey: "s"}} {
		if _, err := bucket.New(cfg); err == nil {
			t.Errorf("%v: got no error", cfg)
		}
	}
	cfg := bucket.Config{Endpoint: "https://x", Bucket: "b", AccessKey: "access-key", SecretKey: "secret-key"}
	if text := fmt.Sprintf("%v %+v %#v %s", cfg, cfg, cfg, cfg); strings.Contains(text, "-key") {
		t.Errorf("got %s, want no keys", text)
	}
}
