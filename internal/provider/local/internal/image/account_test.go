package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// ownerQuota is the quota of one owner.
type ownerQuota struct {
	mu   sync.Mutex
	left int64
	used int64
}

var errPoor = errors.New("no room left")

func (p *ownerQuota) take(bytes int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used+bytes > p.left {
		return errPoor
	}
	p.used += bytes
	return nil
}

func (p *ownerQuota) context(t *testing.T, owned ...string) context.Context {
	return WithCharge(t.Context(), Charge{Take: p.take, Owned: func() (map[string]bool, error) { return IDs(owned), nil }})
}

// archiveOf writes an image of plain tars as docker save does.
func archiveOf(t *testing.T, tars ...[]byte) string {
	t.Helper()
	s := openStore(t)
	e := Export{Command: []string{"/server"}}
	for _, raw := range tars {
		e.Layers = append(e.Layers, reader(raw))
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "image.tar"))
	if err == nil {
		err = errors.Join(s.Save(t.Context(), f, e), f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return archivePrefix + f.Name()
}

// left lists what a store holds.
func left(t *testing.T, s *Store) (names []string) {
	t.Helper()
	for _, part := range []string{"images", "layers", "tmp"} {
		found, err := filepath.Glob(s.path(part, "*"))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// TestAttackArchivesStayWithinTheQuota: unpacking stops at the quota of the owner, and nothing
// of the archive is kept.
func TestAttackArchivesStayWithinTheQuota(t *testing.T) {
	t.Parallel()
	const quota = 1 << 20
	var empty, links, folders, attrs, big []entry
	links = append(links, file("f", "x"))
	for i := range 400 {
		empty = append(empty, file(fmt.Sprintf("e%d", i), ""))
		links = append(links, hardlink(fmt.Sprintf("l%d", i), "f"))
		folders = append(folders, file(fmt.Sprintf("a%d/b/f", i), ""))
		attrs = append(attrs, file(fmt.Sprintf("x%d", i%100), "", xattr(fmt.Sprintf("user.a%d", i), strings.Repeat("v", 3000))))
	}
	for i := range 20 {
		big = append(big, file(fmt.Sprintf("d/%d", i), strings.Repeat("x", 100<<10)))
	}
	small := tarOf(t, file("small", "complete"))
	for name, layers := range map[string][][]byte{
		"content":              {tarOf(t, big...)},
		"zeros":                {tarOf(t, file("z", strings.Repeat("\x00", 2<<20)))},
		"holes":                {sparse(t, 1<<30)},
		"empty files":          {tarOf(t, empty...)},
		"hard links":           {tarOf(t, links...)},
		"implicit folders":     {tarOf(t, folders...)},
		"attributes":           {tarOf(t, attrs...)},
		"a later layer":        {small, tarOf(t, big...)},
		"several, all too big": {tarOf(t, big[:8]...), tarOf(t, big[8:]...), small},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, p := openStore(t), &ownerQuota{left: quota}
			if _, err := s.Load(p.context(t), archiveOf(t, layers...), "imported/a:1", nil); !errors.Is(err, errPoor) {
				t.Errorf("got %v, want %v", err, errPoor)
			}
			testenv.Poll(t, "nothing is left", func() bool { return len(left(t, s)) == 0 })
		})
	}
}

// TestImagesAreChargedOnce: an owner pays for what an image adds, in all.
func TestImagesAreChargedOnce(t *testing.T) {
	t.Parallel()
	s := openStore(t)
	base, own := tarOf(t, file("base", strings.Repeat("b", 100<<10))), tarOf(t, file("own", "1"))
	p := &ownerQuota{left: 200 << 10}
	img, err := s.Load(p.context(t), archiveOf(t, base, own, base), "imported/a:1", nil)
	if err != nil || p.used != s.Footprint(img.Layers) || p.used < 100<<10 || p.used > 120<<10 {
		t.Errorf("got %d bytes charged, %v, want %d, once for each layer", p.used, err, s.Footprint(img.Layers))
	}
	// Layers that the owner has already do not count against the remaining quota.
	poor := &ownerQuota{left: 5 << 10}
	if _, err := s.Load(poor.context(t, img.Layers...), archiveOf(t, base, tarOf(t, file("other", "2"))),
		"imported/b:1", nil); err != nil || poor.used == 0 {
		t.Errorf("an image on a layer that the owner has: got %v and %d bytes charged, want only the new layer", err, poor.used)
	}
	other := &ownerQuota{left: 5 << 10}
	if _, err := s.Load(other.context(t), archiveOf(t, base), "imported/c:1", nil); !errors.Is(err, errPoor) {
		t.Errorf("another owner, for a stored layer: got %v, want %v", err, errPoor)
	}
}

// TestPullsAreCharged: every owner is charged, also for layers that another owner downloaded; an owner
// without quota does not fail the others.
func TestPullsAreCharged(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := openStore(t, trusting(h))
	h.push("app:1", config(), tarOf(t, file("f", strings.Repeat("x", 100<<10))))
	ref := h.host + "/app:1"
	poor, rich, late := &ownerQuota{left: 50 << 10}, &ownerQuota{left: 200 << 10}, &ownerQuota{left: 200 << 10}
	if _, err := s.Resolve(poor.context(t), ref); !errors.Is(err, errPoor) {
		t.Errorf("got %v, want %v", err, errPoor)
	}
	testenv.Poll(t, "nothing is left", func() bool { return len(left(t, s)) == 0 })
	var all sync.WaitGroup
	for _, p := range []*ownerQuota{poor, rich, late} {
		all.Go(func() {
			_, err := s.Resolve(p.context(t), ref)
			if want := p == poor; errors.Is(err, errPoor) != want || !want && err != nil {
				t.Errorf("with room for %d: got %v", p.left, err)
			}
		})
	}
	all.Wait()
	if rich.used < 100<<10 || late.used < 100<<10 {
		t.Errorf("charged: got %d and %d, want the image twice", rich.used, late.used)
	}
	if _, err := s.Resolve(poor.context(t), ref); !errors.Is(err, errPoor) {
		t.Errorf("a stored image: got %v, want %v", err, errPoor)
	}
}

// TestUnusedPullsAreEvicted: images that nothing is based on stay within the cache, the last used
// longest; imported ones stay.
func TestUnusedPullsAreEvicted(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	var mu sync.Mutex
	var used []string
	s := openStore(t, trusting(h), func(c *Config) {
		c.Cache = 250 << 10
		c.Used = func() ([]string, error) { mu.Lock(); defer mu.Unlock(); return used, nil }
	})
	if _, err := s.Load(t.Context(), archiveOf(t, tarOf(t, file("own", strings.Repeat("i", 300<<10)))),
		"imported.invalid/a:1", nil); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		h.push(fmt.Sprintf("app%d:1", i), config(), tarOf(t, file("f", strings.Repeat(fmt.Sprint(i), 100<<10))))
		img, err := s.Resolve(t.Context(), fmt.Sprintf("%s/app%d:1", h.host, i))
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			mu.Lock()
			used = img.Layers
			mu.Unlock()
		}
	}
	testenv.Poll(t, "the oldest unused image is evicted", func() bool {
		var refs []string
		for _, m := range s.List() {
			refs = append(refs, strings.TrimPrefix(m.Ref, h.host+"/"))
		}
		layers, err := filepath.Glob(s.path("layers", "*"))
		return err == nil && len(layers) == 4 && slices.Equal(refs, []string{"app0:1", "app2:1", "app3:1", "imported.invalid/a:1"})
	})
}
