// Package image stores OCI images on this machine: it unpacks them from a registry,
// a layout or an archive into folders that overlays can use, and packs folders into an
// archive.
//
// It owns one folder with records of images and unpacked layers. Layers are stored
// by the digest of their content and shared between images; each is complete or does
// not exist. All content of an image is considered hostile. The package refuses what
// does not match its digest, what is larger than allowed, names that lead out of a
// layer, device nodes and, unless configured otherwise, host paths as references,
// registries on private addresses and registries without TLS.
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
	ErrRegistry = fmt.Errorf("%w: registry does not answer", sandbox.ErrUnavailable)
	ErrNoSpace  = fmt.Errorf("%w: not enough space for the image", sandbox.ErrExhausted)
)

// Config says where images are stored and where they may come from. Only Dir is
// required.
type Config struct {
	// Dir is created if needed, for its owner only. It must be on a filesystem with
	// user xattrs, such as ext4, xfs or btrfs.
	Dir string
	Log *slog.Logger
	// LocalRefs lets Resolve and Pull accept oci:/path and tar:/path. It is for
	// hubs whose users may all read the whole machine.
	LocalRefs bool
	// Insecure lists registries, host or host:port, to contact without TLS. They may
	// have private addresses.
	Insecure []string
	// Private lists hosts, with a port if it is not 443, that may have private
	// addresses. For others they are refused, or a reference could reach this network.
	Private []string
	// Proxy, if set, returns the proxy for a request. The proxy's own address is
	// checked like any other; what it connects to is not checked.
	Proxy func(*http.Request) (*url.URL, error)
	// AuthFile is docker's config.json. Only credentials in the file itself are used;
	// credential helpers are not run.
	AuthFile string
	// Privileges keeps setuid and setgid bits and file capabilities of layers
	// that are unpacked from now on. Without root there are none.
	Privileges bool
	// Used lists the layer folders that sandboxes need. They are kept even if no image
	// has them any more.
	Used func() ([]string, error)
	// Grace is how long a layer is kept after Resolve returned it, until Used knows of
	// it; 10 minutes if 0, none if negative.
	Grace time.Duration

	MaxSize  int64 // of an image, unpacked; 32 GiB if 0
	MaxFiles int64 // of an image; 2 million if 0
	MinFree  int64 // disk space to keep free; 1 GiB if 0, nothing if negative
	// Cache bounds the pulled images that nothing is based on any more, which count for no owner.
	// 10 GiB if 0; none are kept if negative.
	Cache int64
}

// Image is an unpacked image.
type Image struct {
	Ref    string `json:"ref"`    // the full reference
	Digest string `json:"digest"` // of its manifest
	// Layers are folders to use as lower folders of an overlay with userxattr,
	// topmost first. Owners are as in the image, except that IDs above 65535 become
	// nobody; without root everything belongs to the user of this process.
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
	pulls   *flights[Image]
	layers  *flights[layerInfo]
	once    sync.Once
	end     error

	mu      sync.Mutex
	images  map[string]storedImage
	pins    map[string]int       // layers that a pull in progress needs
	handed  map[string]time.Time // when layers were last returned
	private bool                 // without root, all files have one owner
}

// Open locks the folder and removes what is unfinished.
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
	s.pulls, s.layers = newFlights[Image](ctx, &s.wg), newFlights[layerInfo](ctx, &s.wg)
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

// clean removes what earlier processes did not finish.
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
