package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	base := tarOf(t, file("base", strings.Repeat("b", 300<<10)))
	for i := range 4 {
		h.push(fmt.Sprintf("app%d:1", i), config(), base, tarOf(t, file("own", fmt.Sprint(i))))
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			img, err := s.Resolve(t.Context(), fmt.Sprintf("%s/app%d:1", h.host, i%4))
			if err != nil || len(img.Layers) != 2 {
				t.Errorf("got %+v, %v, want two layers", img, err)
			}
		})
	}
	wg.Wait()
	h.blobs.mu.Lock()
	defer h.blobs.mu.Unlock()
	// Each repository shows once that it has the layer.
	if n := h.blobs.m[sum(gzipped(t, base)).Hex]; n < 1 || n > 4 {
		t.Errorf("downloads of the shared layer: got %d, want 1 to 4", n)
	}
	if dirs, _ := os.ReadDir(s.path("layers")); len(dirs) != 5 {
		t.Errorf("layers: got %d, want 5", len(dirs))
	}
}

// TestCancel: canceling the first caller does not cancel the others. After all are canceled nothing
// is left, and a new pull works.
func TestCancel(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	raw := tarOf(t, file("f", "x"))
	h.push("app:1", config(), raw)
	ref, packed := h.host+"/app:1", gzipped(t, raw)
	stuck, free := make(chan struct{}, 8), make(chan struct{})
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, sum(packed).String()) {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(packed)))
		w.Write(packed[:20])
		w.(http.Flusher).Flush()
		stuck <- struct{}{}
		select {
		case <-free:
			w.Write(packed[20:])
		case <-r.Context().Done():
		}
		return true
	}
	result := make(chan error, 2)
	resolve := func() context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := s.Resolve(ctx, ref)
			result <- err
		}()
		return cancel
	}
	cancel := resolve()
	<-stuck
	if n, _ := os.ReadDir(s.path("tmp")); len(n) != 1 {
		t.Errorf("temporary folders during the download: got %d, want 1", len(n))
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	first := resolve()
	<-stuck
	second := resolve()
	defer second()
	testenv.Poll(t, "two share the effort", func() bool {
		s.pulls.mu.Lock()
		defer s.pulls.mu.Unlock()
		f := s.pulls.m[ref]
		return f != nil && f.waiting == 2
	})
	first()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	close(free)
	if err := <-result; err != nil {
		t.Errorf("the other caller: %v", err)
	}
}

func TestCloseWhilePulling(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	h.push("app:1", config(), tarOf(t, file("f", "x")))
	stuck := make(chan struct{}, 8)
	h.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			stuck <- struct{}{}
			<-r.Context().Done()
			return true
		}
		return false
	}
	result := make(chan error, 1)
	go func() {
		_, err := s.Resolve(t.Context(), h.host+"/app:1")
		result <- err
	}()
	<-stuck
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-result; err == nil {
		t.Error("the pull succeeded although the store is closed")
	}
	if _, err := s.Resolve(t.Context(), h.host+"/app:1"); !errors.Is(err, sandbox.ErrClosed) {
		t.Errorf("after the end: %v, want %v", err, sandbox.ErrClosed)
	}
}

// TestOthersCannotDelayALayer: another registry claims to have a well-known layer, and never sends it.
func TestOthersCannotDelayALayer(t *testing.T) {
	t.Parallel()
	good, evil := newHub(t), newHub(t)
	s := openStore(t, trusting(good), trusting(evil))
	raw := tarOf(t, file("f", "x"))
	good.push("app:1", config(), raw)
	evil.push("app:1", config(), raw)
	stuck := make(chan struct{}, 8)
	evil.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, sum(gzipped(t, raw)).String()) {
			stuck <- struct{}{}
			<-r.Context().Done()
			return true
		}
		return false
	}
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := s.Resolve(ctx, evil.host+"/app:1")
		result <- err
	}()
	<-stuck
	if _, err := s.Resolve(t.Context(), good.host+"/app:1"); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-result; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// TestFailureAffectsOneRegistry: in one registry, an image names a layer that it does
// not have, while another one has it.
func TestFailureAffectsOneRegistry(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	raw, junk := tarOf(t, file("f", "x")), tarOf(t, file("junk", "y"))
	h.push("good:1", config(), raw)
	bad := config()
	bad.RootFS.DiffIDs = []v1.Hash{sum(raw)}
	h.push("bad:1", bad, junk)
	stuck, free := make(chan struct{}, 8), make(chan struct{})
	h.before = func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, sum(gzipped(t, junk)).String()) {
			stuck <- struct{}{}
			<-free
		}
		return false
	}
	results := make(chan error, 2)
	resolve := func(ref string) {
		_, err := s.Resolve(t.Context(), h.host+ref)
		results <- err
	}
	go resolve("/bad:1")
	<-stuck
	go resolve("/good:1")
	testenv.Poll(t, "two wait for the layer", func() bool {
		s.layers.mu.Lock()
		defer s.layers.mu.Unlock()
		f := s.layers.m[h.host+" "+sum(raw).Hex]
		return f != nil && f.waiting == 2
	})
	close(free)
	one, two := <-results, <-results
	if (one == nil) == (two == nil) {
		t.Errorf("got %v and %v, want one success and one failure", one, two)
	}
}
