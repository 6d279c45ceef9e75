package local

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/runner"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ErrNoBackup reports that an archive is no backup, or cannot be restored here.
var ErrNoBackup = tree.ErrRefused

// RestoreConfig configures a restore.
type RestoreConfig struct {
	Dir   string   // state folder, which must be empty or missing
	Files []string // as in BackupConfig
	// Defaults are the default limits of sandboxes.
	Defaults sandbox.Resources
	// FirstID, ImageSize and NoImage are as in Config.
	FirstID   uint32
	ImageSize int64
	NoImage   bool
}

// restoringName marks a folder whose restore has not finished.
const restoringName = "restoring"

// Restored counts what was restored.
type Restored struct {
	Manifest
	Sandboxes, Snapshots, Volumes int
}

// Restore unpacks a backup into an empty state folder. After an error, the folder is empty. Running sandboxes are
// restored as stopped; the next request starts them.
func Restore(ctx context.Context, cfg RestoreConfig, r io.Reader) (_ Restored, err error) {
	if cfg.Dir, err = filepath.Abs(cfg.Dir); err != nil {
		return Restored{}, err
	}
	if err := tree.MakePrivate(cfg.Dir); err != nil {
		return Restored{}, fmt.Errorf("create state folder: %w", err)
	}
	lock, err := lockDir(cfg.Dir)
	if err != nil {
		return Restored{}, err
	}
	defer lock.Close()
	if err := checkEmpty(cfg.Dir); err != nil {
		return Restored{}, err
	}
	z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow))
	if err != nil {
		return Restored{}, err
	}
	defer z.Close()
	s := &restore{ctx: ctx, cfg: cfg, roots: map[string]*tree.Unpacker{}}
	s.stream = &spaceReader{r: z, dir: cfg.Dir}
	s.tar = tar.NewReader(s.stream)
	if err := s.readManifest(); err != nil {
		return s.out, err
	}
	err = s.run()
	if err = errors.Join(err, s.close()); err == nil {
		return s.out, os.Remove(filepath.Join(cfg.Dir, restoringName))
	}
	return s.out, errors.Join(err, empty(cfg.Dir))
}

func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != "lock" {
			return fmt.Errorf("%w: the state folder %q is not empty; move it or set --state to another folder", sandbox.ErrConflict, dir)
		}
	}
	return nil
}

// empty removes everything except the lock, and the mark of an unfinished restore last.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if e.Name() != "lock" && e.Name() != restoringName {
			err = errors.Join(err, tree.Remove(filepath.Join(dir, e.Name())))
		}
	}
	if err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, restoringName))
}

type restore struct {
	ctx    context.Context
	cfg    RestoreConfig
	stream io.Reader // input of tar
	tar    *tar.Reader
	layers *layer.Store
	roots  map[string]*tree.Unpacker // by section
	ended  bool
	out    Restored
}

const maxManifest = 1 << 20

// readManifest checks whether the backup can be restored here, before anything is written.
func (s *restore) readManifest() error {
	h, err := s.tar.Next()
	if err != nil {
		return fmt.Errorf("%w: it was not written by cove backup, or is damaged: %w", ErrNoBackup, err)
	}
	b, err := io.ReadAll(io.LimitReader(s.tar, maxManifest))
	if err == nil && h.Name == manifestName {
		err = json.Unmarshal(b, &s.out.Manifest)
	} else if err == nil {
		err = errors.New("it has no manifest")
	}
	m := s.out.Manifest
	switch {
	case err != nil:
		return damaged(err)
	case m.Format != backupFormat:
		return fmt.Errorf("%w: it has format %d, written by version %q; this program reads format %d", ErrNoBackup,
			m.Format, m.Version, backupFormat)
	case m.Root != (os.Geteuid() == 0):
		return fmt.Errorf("%w: its hub ran %s; run cove restore the same way", ErrNoBackup,
			map[bool]string{true: "as root", false: "without root"}[m.Root])
	}
	return nil
}

func (s *restore) run() (err error) {
	if err := os.WriteFile(filepath.Join(s.cfg.Dir, restoringName), nil, 0o600); err != nil {
		return err
	}
	if s.layers, err = layer.Open(layer.Config{Dir: s.cfg.Dir, ImageSize: s.cfg.ImageSize, NoImage: s.cfg.NoImage}); err != nil {
		return err
	}
	for {
		h, err := s.tar.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		if err := s.add(h); errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(err)
		} else if err != nil {
			return err
		}
	}
	if _, err := io.Copy(io.Discard, s.stream); err != nil { // the checksum follows the last entry
		return err
	}
	if !s.ended {
		return fmt.Errorf("%w: its end is missing", ErrNoBackup)
	}
	for _, u := range s.roots {
		if err := u.Finish(); err != nil {
			return err
		}
	}
	return s.adjustRecords()
}

// damaged explains an error of the archive.
func damaged(err error) error {
	if errors.Is(err, ErrNoBackup) || errors.Is(err, sandbox.ErrExhausted) {
		return err
	}
	return fmt.Errorf("%w: it is damaged or truncated: %w", ErrNoBackup, err)
}

// close closes all files, and writes everything to the disk.
func (s *restore) close() (err error) {
	for _, u := range s.roots {
		err = errors.Join(err, u.Finish(), u.Root.Close())
	}
	if s.layers != nil {
		err = errors.Join(err, record.SyncFilesystem(s.layers.Sandboxes()), s.layers.Close())
	}
	return errors.Join(err, record.SyncFilesystem(s.cfg.Dir))
}

func (s *restore) add(h *tar.Header) error {
	name := strings.TrimSuffix(h.Name, "/")
	if name == endName {
		s.ended = true
		return nil
	}
	section, rel, _ := strings.Cut(name, "/")
	if s.ended || !isSection(section) || rel == "" {
		return fmt.Errorf("%w: unexpected entry %q", ErrNoBackup, name)
	}
	if !filepath.IsLocal(rel) || path.Clean(rel) != rel {
		return fmt.Errorf("%w: entry %.200q leaves its folder", ErrNoBackup, name)
	}
	if err := s.check(section, rel, h); err != nil {
		return err
	}
	target := ""
	if h.Typeflag == tar.TypeLink {
		var ok bool
		if target, ok = strings.CutPrefix(h.Linkname, section+"/"); !ok {
			return fmt.Errorf("%w: entry %q is a link to another section", ErrNoBackup, name)
		}
	}
	u, err := s.section(section)
	if err != nil {
		return err
	}
	return u.Add(h, rel, target, s.tar)
}

// section returns the unpacker of a section.
func (s *restore) section(name string) (*tree.Unpacker, error) {
	if u := s.roots[name]; u != nil {
		return u, nil
	}
	dir := filepath.Join(s.cfg.Dir, name)
	u := &tree.Unpacker{}
	switch name {
	case hubSection:
		dir, u.Plain = s.cfg.Dir, true
	case disk.SnapshotsFolder:
		u.Plain = true
	case sandboxesSection: // the hub writes these files, not the sandbox
		dir, u.Plain = s.layers.Sandboxes(), true
	case layersSection:
		dir, u.Make = s.layers.Path(""), s.makeSubvolume(1)
	case volumesSection:
		dir, u.Make = s.layers.Volumes(), s.makeSubvolume(2)
	}
	if err := tree.MakePrivate(dir); err != nil {
		return nil, err
	}
	var err error
	u.Root, err = os.Open(dir)
	s.roots[name] = u
	return u, err
}

// makeSubvolume creates folders of a depth as subvolumes, if layers are subvolumes.
func (s *restore) makeSubvolume(depth int) func(root *os.File, name string) (bool, error) {
	return func(root *os.File, name string) (bool, error) {
		if strings.Count(name, "/") != depth-1 {
			return false, nil
		}
		return s.layers.MakeSubvolume(filepath.Join(root.Name(), name))
	}
}

// adjustRecords adapts the records to this machine and counts them.
func (s *restore) adjustRecords() error {
	dirs, err := filepath.Glob(filepath.Join(s.layers.Sandboxes(), "*"))
	if err != nil {
		return err
	}
	restorer := runner.NewRestorer(cmp.Or(s.cfg.FirstID, defaultFirstID))
	for _, dir := range dirs {
		err := restorer.Restore(dir, func(sb sandbox.Sandbox, d *disk.Disk) error {
			if err := d.Move(s.out.State, s.cfg.Dir); err != nil {
				return fmt.Errorf("%w: %w", ErrNoBackup, err)
			}
			return s.layers.SetLimit(d.Layers[len(d.Layers)-1], sb.Spec.Owner, cmp.Or(sb.Spec.Resources.Disk, s.cfg.Defaults.Disk))
		})
		if err != nil {
			return fmt.Errorf("restore sandbox %s: %w", filepath.Base(dir), err)
		}
		s.out.Sandboxes++
	}
	snapshots, err := filepath.Glob(filepath.Join(s.cfg.Dir, disk.SnapshotsFolder, "*", "*.json"))
	if err != nil {
		return err
	}
	for _, file := range snapshots {
		if err := disk.MoveSnapshot(file, s.out.State, s.cfg.Dir); err != nil {
			return fmt.Errorf("%w: snapshot %s: %w", ErrNoBackup, filepath.Base(file), err)
		}
	}
	volumes, err := filepath.Glob(filepath.Join(s.layers.Volumes(), "*", "[^.]*"))
	if err != nil {
		return err
	}
	for _, dir := range volumes {
		if !tree.Exists(disk.VolumeRecord(dir)) {
			return fmt.Errorf("%w: volume %s has no record", ErrNoBackup, filepath.Base(dir))
		}
	}
	if err := s.adjustVolumes(); err != nil {
		return err
	}
	s.out.Snapshots, s.out.Volumes = len(snapshots), len(volumes)
	return nil
}

// adjustVolumes checks the records of volumes and sets their limits.
func (s *restore) adjustVolumes() error {
	records, err := filepath.Glob(filepath.Join(s.layers.Volumes(), "*", ".*.json"))
	if err != nil {
		return err
	}
	for _, file := range records {
		info, err := disk.ReadVolume(file)
		if err != nil {
			return fmt.Errorf("%w: volume %s: %w", ErrNoBackup, filepath.Base(file), err)
		}
		dir := filepath.Join(filepath.Dir(file), info.Name)
		if info.Limit <= 0 || !tree.Exists(dir) {
			continue
		}
		if err := s.layers.SetLimitOf(dir, info.Owner, info.Limit); err != nil {
			return fmt.Errorf("restore a volume: %w", err)
		}
	}
	return nil
}

// spaceReader fails before an archive fills the disk.
type spaceReader struct {
	r    io.Reader
	dir  string
	left int64
}

const (
	checkInterval = 64 << 20  // bytes between checks
	minSpace      = 256 << 20 // bytes that must remain free
	// minFiles exceeds the number of files that checkInterval bytes of headers can create, with at least 512 bytes each.
	minFiles = 2 * checkInterval / 512
)

func (s *spaceReader) Read(p []byte) (int, error) {
	if s.left <= 0 {
		var st unix.Statfs_t
		// A filesystem that does not count files reports 0.
		if err := unix.Statfs(s.dir, &st); err == nil && (int64(st.Bavail)*st.Bsize < minSpace+checkInterval ||
			st.Files > 0 && st.Ffree < minFiles) {
			return 0, fmt.Errorf("%w: not enough space in %q; free space or set --state to a folder on another filesystem",
				sandbox.ErrExhausted, s.dir)
		}
		s.left = checkInterval
	}
	n, err := s.r.Read(p)
	s.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		err = damaged(err)
	}
	return n, err
}
