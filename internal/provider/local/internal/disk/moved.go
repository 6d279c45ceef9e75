package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/record"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// BaseFolder and SnapshotsFolder are where bases and the records of snapshots are, in the
// state folder.
const (
	BaseFolder      = baseName
	SnapshotsFolder = snapshotsName
)

// ReadSnapshot returns the record of a snapshot, as it is in a file, and its disk. A hub may
// be using it.
func ReadSnapshot(path string) (raw []byte, d Disk, err error) {
	if raw, err = os.ReadFile(path); err != nil {
		return nil, d, err
	}
	rec := snapshot{}
	err = record.Load(filepath.Dir(path), filepath.Base(path), &rec)
	return raw, rec.Disk, err
}

// MoveSnapshot changes the record of a snapshot from another state folder.
func MoveSnapshot(path, from, to string) error {
	rec := snapshot{}
	if err := record.Load(filepath.Dir(path), filepath.Base(path), &rec); err != nil {
		return err
	}
	if err := rec.Move(from, to); err != nil {
		return err
	}
	return record.SaveDurable(filepath.Dir(path), filepath.Base(path), rec)
}

// Move changes where the disk finds its image, after a move of the state folder. It refuses a
// disk of anything that is not in the state folder.
func (d *Disk) Move(from, to string) error {
	if len(d.Layers) == 0 {
		return errors.New("it has no disk")
	}
	for _, l := range d.Layers {
		if !layer.IsName(l) {
			return fmt.Errorf("invalid layer %q", l)
		}
	}
	if d.Base != "" && !layer.IsName(d.Base) {
		return fmt.Errorf("invalid base %q", d.Base)
	}
	if d.Image == nil {
		return nil
	}
	for i, l := range d.Image.Layers {
		rel, ok := strings.CutPrefix(l, from+"/")
		if !ok || !filepath.IsLocal(rel) {
			return fmt.Errorf("the layer %q of its image is not in its state folder", l)
		}
		d.Image.Layers[i] = filepath.Join(to, rel)
	}
	return nil
}

// ReadVolume returns the record of a volume.
func ReadVolume(dir, name string) (info sandbox.VolumeInfo, err error) {
	return info, record.Load(dir, recordMark+name+jsonExt, &info)
}
