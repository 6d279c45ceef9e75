// Package image stores OCI images on this machine: it unpacks them from a registry, a layout or an archive into folders for
// overlays, and packs folders into an archive.
//
// It owns one folder with records of images and unpacked layers. Images share layers, which are stored by the digest of
// their content; each is complete or does not exist. The content of images is not trusted. The package rejects content
// that does not match its digest or exceeds limits, names outside of a layer, and device nodes. By default it also rejects
// host paths as references, registries with private addresses, and registries without TLS.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Why an image is not available. Each is also an error of package sandbox.
var (
	ErrInvalid  = fmt.Errorf("%w: bad image", sandbox.ErrInvalid)
	ErrNotFound = fmt.Errorf("%w: no such image", sandbox.ErrInvalid)
	ErrPlatform = fmt.Errorf("%w: image is for another platform", sandbox.ErrInvalid)
	ErrDenied   = fmt.Errorf("%w: access to the registry denied", sandbox.ErrInvalid)
	ErrTooLarge = fmt.Errorf("%w: image is too large", sandbox.ErrInvalid)
	ErrRegistry = fmt.Errorf("%w: registry does not answer", sandbox.ErrUpstream)
	ErrNoSpace  = fmt.Errorf("%w: not enough space for the image", sandbox.ErrExhausted)
)

// Config configures a Store. Only Dir is required.
type Config struct {
	// Dir is created if missing, with access only for its owner. Its filesystem must support user xattrs, such as ext4, xfs
	// or btrfs.
	Dir string
	Log *slog.Logger
	// LocalRefs allows oci:/path and tar:/path in Resolve and Pull. Enable it only if all users may read the whole machine.
	LocalRefs bool
	// Insecure lists registries (host or host:port) without TLS. They may have private addresses.
	Insecure []string
	// Private lists hosts, with a port if it is not 443, that may have private addresses. Otherwise a reference could access
	// the private network.
	Private []string
	// Proxy returns the proxy for a request; optional. The address of the proxy is checked like any other; the proxy's
	// destinations are not.
	Proxy func(*http.Request) (*url.URL, error)
	// AuthFile is Docker's config.json. Only credentials in the file are used; credential helpers are not run.
	AuthFile string
	// Privileges keeps setuid and setgid bits and file capabilities of new layers. It requires root.
	Privileges bool
	// Used lists the layer folders of sandboxes. They are kept even without an image.
	Used func() ([]string, error)
	// Grace is how long a layer is kept after Resolve has returned it, because Used may not list it yet. 0: 10 minutes;
	// negative: none.
	Grace time.Duration

	MaxSize  int64 // of an image, unpacked; 32 GiB if 0
	MaxFiles int64 // of an image; 2 million if 0
	MinFree  int64 // disk space to keep free; 1 GiB if 0, nothing if negative
	// Cache bounds unused pulled images, which count for no owner. 0: 10 GiB; negative: none are kept.
	Cache int64
}

// Image is an unpacked image.
type Image struct {
	Ref    string `json:"ref"`    // the full reference
	Digest string `json:"digest"` // of its manifest
	// Layers are the lower folders of an overlay with userxattr, topmost first. Files have the owners of the image; IDs above
	// 65535 become nobody (65534). Without root all files belong to the current user.
	Layers  []string          `json:"layers"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"`
	Size    int64             `json:"size"` // of its files
	Pulled  time.Time         `json:"pulled"`
}

// Progress is called with the number of bytes transferred so far and in total. It
// must not block.
type Progress func(done, total int64)

// Store stores images.
type Store struct {
	cfg     Config
	lock    *os.File
	client  *http.Transport
	stop    context.CancelFunc
	wg      sync.WaitGroup
	sweeper *sweeper
	pulls   *sharedCalls[Image]
	layers  *sharedCalls[layerInfo]
	once    sync.Once
	end     error

	mu      sync.Mutex
	images  map[string]storedImage
	pins    map[string]int       // layers that a pull in progress needs
	handed  map[string]time.Time // when layers were last returned
	private bool                 // without root, all files have one owner
}

// Open locks the folder and removes unfinished data.
func Open(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, errors.New("image store: an absolute Dir is required")
	}
	cfg.fill()
	for _, d := range []string{"", "images", "layers", "tmp"} {
		d = filepath.Join(cfg.Dir, d)
		if err := errors.Join(os.MkdirAll(d, 0o700), os.Chmod(d, 0o700)); err != nil {
			return nil, fmt.Errorf("create image store: %w", err)
		}
	}
	lock, err := lockfile.Open(filepath.Join(cfg.Dir, "lock"))
	switch {
	case errors.Is(err, lockfile.ErrLocked):
		return nil, fmt.Errorf("%w: %s", sandbox.ErrInUse, cfg.Dir)
	case err != nil:
		return nil, fmt.Errorf("open image store: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{cfg: cfg, lock: lock, stop: stop, images: map[string]storedImage{}, pins: map[string]int{},
		handed: map[string]time.Time{}, private: os.Geteuid() != 0}
	s.client = s.transport()
	s.sweeper = &sweeper{wg: &s.wg, run: func() { sweep(s) }}
	s.pulls, s.layers = newSharedCalls[Image](ctx, &s.wg), newSharedCalls[layerInfo](ctx, &s.wg)
	if err := errors.Join(s.clean(), s.loadRecords()); err != nil {
		return nil, errors.Join(fmt.Errorf("open image store: %w", err), s.Close())
	}
	return s, nil
}

func (c *Config) fill() {
	def := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxSize, 32<<30)
	def(&c.MaxFiles, 2_000_000)
	def(&c.MinFree, 1<<30)
	def(&c.Cache, 10<<30)
	def((*int64)(&c.Grace), int64(10*time.Minute))
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
}

// Close cancels what is in progress. Stored images stay.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.pulls.close()
		s.layers.close()
		s.sweeper.close()
		s.stop()
		s.wg.Wait()
		s.client.CloseIdleConnections()
		s.end = lockfile.Release(s.lock)
	})
	return s.end
}

// clean removes unfinished data of previous processes.
func (s *Store) clean() error {
	tmp := s.path("tmp")
	entries, err := os.ReadDir(tmp)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(tmp, e.Name())))
	}
	return err
}

func (s *Store) path(elem ...string) string {
	return filepath.Join(append([]string{s.cfg.Dir}, elem...)...)
}

// checkSpace returns ErrNoSpace when the disk is nearly full.
func (s *Store) checkSpace(need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &fs); err != nil {
		return fmt.Errorf("query free disk space: %w", err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if free < need+max(0, s.cfg.MinFree) {
		return fmt.Errorf("%w: %d MiB are free, and %d MiB are required; delete images", ErrNoSpace, free>>20, (need+max(0, s.cfg.MinFree))>>20)
	}
	return nil
}
