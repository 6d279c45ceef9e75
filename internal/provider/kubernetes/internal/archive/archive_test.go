//go:build linux

package archive

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/test/cluster"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newStore(t *testing.T, cfg bucket.Config) *Store {
	t.Helper()
	s, err := New(Config{Bucket: cfg, Hub: "one", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

func startStore(t *testing.T) bucket.Config {
	t.Helper()
	c := cluster.StartStore(t, "../../../../../.tools")
	return bucket.Config{Endpoint: c.Endpoint, Bucket: c.Bucket, Prefix: "p/", AccessKey: c.AccessKey, SecretKey: c.SecretKey}
}

func (s *Store) put(t *testing.T, owner, name, text string) catalog.Entry {
	t.Helper()
	key, size, err := s.Upload(t.Context(), owner, 1000, func(_ context.Context, w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	e := catalog.Entry{Snapshot: sandbox.Snapshot{Owner: owner, Name: name, Size: size, Created: time.Now().Round(0)},
		Source: catalog.Source{Archive: key, From: name}}
	if err := s.Add(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	s.Release(t.Context(), key)
	return e
}

// TestLoad: the next hub loads complete snapshots and removes other archives. It ignores invalid notes.
func TestLoad(t *testing.T) {
	t.Parallel()
	cfg := startStore(t)
	first := newStore(t, cfg)
	if err := first.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	good, used := first.put(t, "ann", "good", "text"), first.put(t, "ann", "used", "more")
	raw := first.bucket
	for key, data := range map[string]string{
		"archives/x/orphan.tar.gz":         "unused",
		noteKey("bob", "stolen"):           `{"snapshot":{"name":"good","owner":"ann"},"source":{"archive":"` + good.Source.Archive + `"}}`,
		noteKey("bob", "borrowed"):         `{"snapshot":{"name":"borrowed","owner":"bob"},"source":{"archive":"` + good.Source.Archive + `"}}`,
		noteKey("bob", "lost"):             `{"snapshot":{"name":"lost","owner":"bob"},"source":{"archive":"archives/none"}}`,
		noteKey("bob", "broken"):           `{`,
		noteKey("bob", "x") + "/../../odd": `{}`,
	} {
		if err := raw.Put(t.Context(), key, []byte(data)); err != nil && !strings.Contains(key, "..") {
			t.Fatal(err)
		}
	}
	next := newStore(t, cfg)
	next.Pin(used.Source.Archive)
	list, err := next.List(t.Context(), "")
	if err != nil || len(list) != 2 || list[0].Name != "good" || list[0].Size != 4 ||
		!list[0].Created.Equal(good.Snapshot.Created) || list[1].Name != "used" {
		t.Errorf("got %+v, %v, want the previous snapshots", list, err)
	}
	if list, err := next.List(t.Context(), "bob"); err != nil || len(list) != 0 {
		t.Errorf("got %+v, %v, want none of bob", list, err)
	}
	if keys, err := raw.List(t.Context(), keyArchives); err != nil || len(keys) != 2 {
		t.Errorf("got %q, %v, want no orphan", keys, err)
	}
	// A pinned archive is kept until Release.
	if err := next.Delete(t.Context(), "ann", "used"); err != nil {
		t.Fatal(err)
	}
	r, err := next.Open(t.Context(), used.Source.Archive)
	if err != nil {
		t.Fatal(err)
	}
	if data, err := io.ReadAll(r); string(data) != "more" || r.Close() != nil {
		t.Errorf("got %q, %v", data, err)
	}
	next.Release(t.Context(), used.Source.Archive)
	if keys, err := raw.List(t.Context(), keyArchives); err != nil || !slices.Equal(keys, []string{good.Source.Archive}) {
		t.Errorf("got %q, %v, want only the good one", keys, err)
	}
	if _, err := next.Find(t.Context(), "ann", "used"); !errors.Is(err, sandbox.ErrNoSnapshot) {
		t.Errorf("got %v, want ErrNoSnapshot", err)
	}
	foreign := newStore(t, cfg)
	foreign.cfg.Hub = "two"
	if err := foreign.Ready(t.Context()); !errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "another hub") {
		t.Errorf("got %v, want an error about the other hub", err)
	}
}

// TestUploads: slow uploads of one owner do not block other owners, and a name can be reserved once.
func TestUploads(t *testing.T) {
	t.Parallel()
	s := newStore(t, startStore(t))
	ctx, cancel := context.WithCancel(t.Context())
	begun, ended := make(chan struct{}), make(chan error)
	for range 2 * maxUploads {
		go func() {
			_, _, err := s.Upload(ctx, "slow", 1000, func(ctx context.Context, _ io.Writer) error {
				begun <- struct{}{}
				<-ctx.Done()
				return context.Cause(ctx)
			})
			ended <- err
		}()
	}
	for range maxOwnerUploads {
		<-begun
	}
	s.put(t, "quick", "name", "text")
	select {
	case <-begun:
		t.Error("an owner exceeds its limit of uploads")
	default:
	}
	cancel()
	for n := 0; n < 2*maxUploads; {
		select {
		case err := <-ended:
			if n++; !errors.Is(err, context.Canceled) {
				t.Errorf("got %v, want context.Canceled", err)
			}
		case <-begun: // at the last moment
		}
	}
	if len(s.limiter.owners) != 0 || len(s.limiter.all) != 0 {
		t.Errorf("got %d owners and %d slots, want none", len(s.limiter.owners), len(s.limiter.all))
	}
	if _, _, err := s.Upload(t.Context(), "ann", 10, func(_ context.Context, w io.Writer) error {
		_, err := w.Write(bytes.Repeat([]byte("x"), 11))
		return err
	}); !errors.Is(err, sandbox.ErrExhausted) {
		t.Errorf("got %v, want one about its size", err)
	}
	done, err := s.Reserve("ann", "name")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Reserve("ann", "name"); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
	done()
	if _, err := s.Reserve("quick", "name"); !errors.Is(err, sandbox.ErrConflict) {
		t.Errorf("got %v, want a conflict", err)
	}
}
