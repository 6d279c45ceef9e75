package local

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/runner"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
)

// A backup is a tar file, compressed with zstd. It starts with a manifest and ends with an end entry. The first part of
// each name is its section.
const (
	manifestName = "cove-backup.json"
	endName      = "cove-backup.end"
	backupFormat = 1

	hubSection       = "hub" // files of the hub
	layersSection    = "layers"
	sandboxesSection = "sandboxes"
	volumesSection   = "volumes"
	imagesSection    = "images"
)

// Manifest describes a backup.
type Manifest struct {
	Format  int       `json:"format"`
	Version string    `json:"version"` // of the program that wrote it
	Created time.Time `json:"created"`
	State   string    `json:"state"` // the state folder
	Root    bool      `json:"root"`  // whether the hub had root
}

// BackupConfig configures a backup.
type BackupConfig struct {
	Dir     string // state folder
	Version string
	// Files are the names of the hub's files in the state folder, in reading order. Missing files are skipped.
	Files []string
	// Warn is called for everything that is left out.
	Warn func(what string)
}

// Backup writes a backup of a state folder, whose hub may be running. Layers and volumes that are subvolumes are
// copied atomically. In other folders, files that a sandbox writes during the backup may be inconsistent.
func Backup(ctx context.Context, cfg BackupConfig, w io.Writer) (err error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return err
	}
	if !tree.Exists(filepath.Join(dir, "lock")) {
		return fmt.Errorf("no hub has used the folder %q; set --state to the state folder of the hub", dir)
	}
	cfg.Dir = dir
	layers, err := layer.Attach(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, layers.Close()) }()
	z, err := zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithWindowSize(maxWindow))
	if err != nil {
		return err
	}
	b := &backup{ctx: ctx, cfg: cfg, layers: layers, tar: tar.NewWriter(z)}
	if err := b.write(); err != nil {
		z.Close()
		return err
	}
	return errors.Join(b.tar.Close(), z.Close())
}

const maxWindow = 4 << 20

type backup struct {
	ctx    context.Context
	cfg    BackupConfig
	layers *layer.Store
	tar    *tar.Writer
}

func (b *backup) write() error {
	m, err := json.Marshal(Manifest{backupFormat, b.cfg.Version, time.Now().UTC(), b.cfg.Dir, os.Geteuid() == 0})
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return b.add(manifestName, m) },
		b.addHubFiles, b.addDisks, b.addVolumes, b.addImages,
		func() error { return b.add(endName, []byte("complete\n")) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// add adds a file with a content in memory.
func (b *backup) add(name string, content []byte) error {
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: int64(len(content)), ModTime: time.Now(), Format: tar.FormatPAX}
	if err := b.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err := b.tar.Write(content)
	return err
}

// addFile adds a file, which may grow during the copy.
func (b *backup) addFile(file, name string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o600, Size: info.Size(), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if err := b.tar.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(b.tar, f, info.Size())
	return err
}

func (b *backup) warn(format string, args ...any) {
	if b.cfg.Warn != nil {
		b.cfg.Warn(fmt.Sprintf(format, args...))
	}
}

// addHubFiles adds the files of the hub, which the hub only replaces or appends to.
func (b *backup) addHubFiles() error {
	added := map[string]bool{}
	for _, name := range b.cfg.Files {
		err := filepath.WalkDir(filepath.Join(b.cfg.Dir, name), func(file string, e fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(b.cfg.Dir, file)
			switch {
			case errors.Is(err, fs.ErrNotExist):
				return nil
			case err != nil:
				return err
			case added[rel] || e.IsDir() || !e.Type().IsRegular() || e.Name() == "lock" || strings.HasPrefix(e.Name(), "."):
				return nil
			}
			added[rel] = true
			return b.addFile(file, path.Join(hubSection, rel))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// recorded is a record with its disk.
type recorded struct {
	name string // in the backup
	dir  string // of a sandbox
	raw  []byte
	disk disk.Disk
}

// addDisks adds sandboxes and snapshots with their layers. Records are read first: layers that they name exist
// afterwards, unless they are deleted concurrently.
func (b *backup) addDisks() (err error) {
	pinned := map[string]layer.Pinned{}
	defer func() {
		for name, p := range pinned {
			if failed := p.Release(); failed != nil && err == nil {
				err = fmt.Errorf("layer %s was removed during the backup, because a hub was started; rerun the backup: %w", name, failed)
			}
		}
	}()
	var records []recorded
	for range 3 {
		if records, err = b.readRecords(); err != nil {
			return err
		}
		complete := true
		for i, r := range records {
			if !b.pin(pinned, r.disk) {
				complete, records[i].raw = false, nil
			}
		}
		if complete {
			break
		}
	}
	bases := map[string]bool{}
	for _, r := range records {
		if r.raw == nil {
			b.warn("%s is left out: its disk does not exist", r.name)
			continue
		}
		if bases[r.disk.Base] = true; r.dir != "" {
			if err := tree.Pack(b.ctx, b.tar, r.dir, path.Dir(r.name), runner.RecordName, runner.SavedName); err != nil {
				return err
			}
		}
		if err := b.add(r.name, r.raw); err != nil {
			return err
		}
	}
	delete(bases, "")
	for base := range bases {
		if err := b.pack(filepath.Join(b.cfg.Dir, disk.BaseFolder, base), path.Join(disk.BaseFolder, base)); err != nil {
			return err
		}
	}
	for name, p := range pinned {
		if err := tree.Pack(b.ctx, b.tar, p.Path, path.Join(layersSection, name)); err != nil {
			return err
		}
	}
	return nil
}

// pin pins the layers of a disk and reports whether all exist.
func (b *backup) pin(pinned map[string]layer.Pinned, d disk.Disk) bool {
	for _, name := range d.Layers {
		if _, ok := pinned[name]; ok {
			continue
		}
		p, err := b.layers.Pin(b.layers.Path(name))
		if err != nil {
			return false
		}
		pinned[name] = p
	}
	return true
}

func (b *backup) readRecords() (records []recorded, err error) {
	dirs, err := filepath.Glob(filepath.Join(b.layers.Sandboxes(), "*"))
	if err != nil {
		return nil, err
	}
	for _, dir := range dirs {
		raw, d, err := runner.ReadRecord(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // unfinished or deleted
		}
		if err != nil {
			b.warn("sandbox %s is left out: %v", filepath.Base(dir), err)
			continue
		}
		records = append(records, recorded{path.Join(sandboxesSection, filepath.Base(dir), runner.RecordName), dir, raw, d})
	}
	files, err := filepath.Glob(filepath.Join(b.cfg.Dir, disk.SnapshotsFolder, "*", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		raw, d, err := disk.ReadSnapshot(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			b.warn("snapshot %s is left out: %v", file, err)
			continue
		}
		rel, _ := filepath.Rel(b.cfg.Dir, file)
		records = append(records, recorded{name: rel, raw: raw, disk: d})
	}
	return records, nil
}

// pack adds a folder, if it exists.
func (b *backup) pack(dir, name string) error {
	if !tree.Exists(dir) {
		return nil
	}
	return tree.Pack(b.ctx, b.tar, dir, name)
}

// addVolumes adds the volumes, each with its record.
func (b *backup) addVolumes() error {
	dirs := []string{b.layers.Volumes()}
	if old := filepath.Join(b.cfg.Dir, volumesSection); old != dirs[0] {
		dirs = append(dirs, old) // an earlier hub may have used it
	}
	for _, dir := range dirs {
		records, err := filepath.Glob(filepath.Join(dir, "*", ".*.json"))
		if err != nil {
			return err
		}
		for _, r := range records {
			owner, name := filepath.Base(filepath.Dir(r)), strings.TrimSuffix(strings.TrimPrefix(filepath.Base(r), "."), ".json")
			if err := b.addVolume(r, filepath.Join(filepath.Dir(r), name), path.Join(volumesSection, owner)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (b *backup) addVolume(record, dir, owner string) (err error) {
	raw, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	p, err := b.layers.Pin(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // deleted or unfinished
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Release()) }()
	if err := b.add(path.Join(owner, filepath.Base(record)), raw); err != nil {
		return err
	}
	return tree.Pack(b.ctx, b.tar, p.Path, path.Join(owner, filepath.Base(dir)))
}

// addImages adds the images: first the records, which name layers, then the layers.
func (b *backup) addImages() error {
	for _, part := range []string{"images", "layers"} {
		if err := b.pack(filepath.Join(b.cfg.Dir, imagesSection, part), path.Join(imagesSection, part)); err != nil {
			return err
		}
	}
	return nil
}

// sections are the sections of a backup.
var sections = []string{hubSection, layersSection, sandboxesSection, volumesSection, imagesSection, disk.BaseFolder, disk.SnapshotsFolder}

// isSection reports whether a backup can have a section.
func isSection(name string) bool { return slices.Contains(sections, name) }
