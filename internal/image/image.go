// Package image brings OCI images to this machine: from a registry, a layout or
// an archive into folders that overlays can use, and from folders back into an
// archive.
//
// It owns one folder: records of images, and layers unpacked by the digest of
// their content, shared between images, each of which is whole or not there. All
// that an image says is taken for hostile. It refuses what does not match its
// digest, what is larger than allowed, names that lead out of a layer, device
// nodes, and, unless told otherwise, host paths as references, registries on
// private addresses and registries without TLS.
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

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Why an image is not to be had. Each is also one of package sandbox's.
var (
	ErrInvalid  = fmt.Errorf("%w: bad image", sandbox.ErrInvalid)
	ErrNotFound = fmt.Errorf("%w: no such image", sandbox.ErrInvalid)
	ErrPlatform = fmt.Errorf("%w: image is not made for this machine", sandbox.ErrInvalid)
	ErrDenied   = fmt.Errorf("%w: registry refuses", sandbox.ErrInvalid)
	ErrTooLarge = fmt.Errorf("%w: image is too large", sandbox.ErrInvalid)
	ErrNoSpace  = fmt.Errorf("%w: not enough space for the image", sandbox.ErrExhausted)
)

// Config says where images are kept and where they may come from. Only Dir must
// be given.
type Config struct {
	// Dir is made if needed, for its owner only. It must be on a filesystem with
	// user xattrs, such as ext4, xfs or btrfs.
	Dir string
	Log *slog.Logger
	// LocalRefs lets Resolve and Pull take oci:/path and tar:/path. It is for
	// hubs whose every user may read the whole machine.
	LocalRefs bool
	// Insecure are registries, host or host:port, that may be spoken to without
	// TLS, wherever they are.
	Insecure []string
	// Private are hosts, with a port if it is not 443, that may have private
	// addresses. Others may not, or a reference could reach into this network.
	Private []string
	// Proxy, if set, says which proxy a request goes through. The proxy's own
	// address is checked like any other, and what is behind it is its affair.
	Proxy func(*http.Request) (*url.URL, error)
	// AuthFile is docker's config.json. Only what it holds itself is used;
	// credential helpers are not run.
	AuthFile string
	// Privileges keeps setuid and setgid bits and file capabilities of layers
	// that are unpacked from now on. Without root there are none.
	Privileges bool
	// Used lists the layer folders that sandboxes need. They are kept although
	// no image has them any more.
	Used func() ([]string, error)
	// Grace is for how long a layer is kept after it was handed out, so that
	// Used can come to know of it; 10 minutes when 0, none when negative.
	Grace time.Duration

	MaxSize  int64 // of an image, unpacked; 32 GiB when 0
	MaxFiles int64 // of an image; 2 million when 0
	MinFree  int64 // what must stay free on the disk; 1 GiB when 0, nothing when negative
}

// Image is an unpacked image.
type Image struct {
	Ref    string `json:"ref"`    // as it was named, in full
	Digest string `json:"digest"` // of its manifest
	// Layers are folders to use as lower folders of an overlay with userxattr,
	// topmost first. Owners are as inside the image, except that IDs above 65535
	// are nobody's; without root all are this process's user's.
	Layers  []string          `json:"layers"`
	Command []string          `json:"command,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`
	User    string            `json:"user,omitempty"`
	Size    int64             `json:"size"` // of its files
	Pulled  time.Time         `json:"pulled"`
}

// Progress is told how much of an image has come, of how much, in bytes as they
// are transferred. It must not block.
type Progress func(done, total int64)

// Store keeps images.
type Store struct {
	cfg    Config
	lock   *os.File
	client *http.Transport
	stop   context.CancelFunc
	wg     sync.WaitGroup
	pulls  *flights[Image]
	units  *flights[unit]
	once   sync.Once
	end    error

	mu      sync.Mutex
	images  map[string]record
	pins    map[string]int       // layers that a pull in progress counts on
	handed  map[string]time.Time // when layers were last handed out
	private bool                 // no root: one owner for all
}

// Open takes hold of the folder and removes what was left half done.
func Open(cfg Config) (*Store, error) {
	if !filepath.IsAbs(cfg.Dir) {
		return nil, errors.New("image store: give an absolute Dir")
	}
	cfg.fill()
	for _, d := range []string{"", "images", "layers", "tmp"} {
		d = filepath.Join(cfg.Dir, d)
		if err := errors.Join(os.MkdirAll(d, 0o700), os.Chmod(d, 0o700)); err != nil {
			return nil, fmt.Errorf("make image store: %w", err)
		}
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s", sandbox.ErrInUse, cfg.Dir)
		}
		return nil, fmt.Errorf("lock %s: %w", cfg.Dir, err)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Store{cfg: cfg, lock: lock, stop: stop, images: map[string]record{}, pins: map[string]int{}, handed: map[string]time.Time{}, private: os.Geteuid() != 0}
	s.client = s.transport()
	s.pulls, s.units = newFlights[Image](ctx, &s.wg), newFlights[unit](ctx, &s.wg)
	if err := errors.Join(s.clean(), s.read()); err != nil {
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
	def((*int64)(&c.Grace), int64(10*time.Minute))
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
}

// Close ends what is in progress. What is stored stays.
func (s *Store) Close() error {
	s.once.Do(func() {
		s.pulls.close()
		s.units.close()
		s.stop()
		s.wg.Wait()
		s.client.CloseIdleConnections()
		s.end = s.lock.Close()
	})
	return s.end
}

// clean removes what earlier processes had not finished.
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

// space refuses to go on when the disk is nearly full.
func (s *Store) space(need int64) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(s.cfg.Dir, &fs); err != nil {
		return fmt.Errorf("ask for free space: %w", err)
	}
	free := int64(fs.Bavail) * fs.Bsize
	if free < need+max(0, s.cfg.MinFree) {
		return fmt.Errorf("%w: %d MiB are free in %s, and %d MiB must stay free; remove or prune images", ErrNoSpace, free>>20, s.cfg.Dir, (need+max(0, s.cfg.MinFree))>>20)
	}
	return nil
}
