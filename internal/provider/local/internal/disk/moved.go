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
	if err := isRecordOf(path, "", rec.Snapshot.Owner, rec.Snapshot.Name); err != nil {
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
		// Any other folder would show a sandbox what the hub keeps, such as its secrets.
		if below, _ := strings.CutPrefix(rel, imageLayers); !ok || !filepath.IsLocal(rel) || filepath.Join(imageLayers, below) != rel ||
			strings.Count(below, "/") != 1 {
			return fmt.Errorf("the layer %q of its image is not in its state folder", l)
		}
		d.Image.Layers[i] = filepath.Join(to, rel)
	}
	return nil
}

// imageLayers is where the layers of images are, in the state folder.
const imageLayers = "images/layers/"

// VolumeRecord returns the file with the record of the volume in a folder.
func VolumeRecord(dir string) string {
	return filepath.Join(filepath.Dir(dir), recordMark+filepath.Base(dir)+jsonExt)
}

// ReadVolume returns the record of a volume in a file, which must be where that volume belongs.
func ReadVolume(path string) (info sandbox.VolumeInfo, err error) {
	if err := record.Load(filepath.Dir(path), filepath.Base(path), &info); err != nil {
		return info, err
	}
	return info, isRecordOf(path, recordMark, info.Owner, info.Name)
}

// isRecordOf returns an error unless a record is in the file of what it names. Names become paths.
func isRecordOf(path, mark, owner, name string) error {
	if filepath.Base(path) != mark+name+jsonExt || filepath.Base(filepath.Dir(path)) != folderOf(owner) || sandbox.CheckName(name) != nil {
		return fmt.Errorf("it is the record of %q of %q", name, owner)
	}
	return nil
}
