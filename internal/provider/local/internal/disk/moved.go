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

// Folders of bases and of the records of snapshots, in the state folder.
const (
	BaseFolder      = baseName
	SnapshotsFolder = snapshotsName
)

// ReadSnapshot returns the encoded record of a snapshot in a file, and its disk. A hub may be using it.
func ReadSnapshot(path string) (raw []byte, d Disk, err error) {
	if raw, err = os.ReadFile(path); err != nil {
		return nil, d, err
	}
	rec := snapshot{}
	err = record.Load(filepath.Dir(path), filepath.Base(path), &rec)
	return raw, rec.Disk, err
}

// MoveSnapshot adapts the record of a snapshot from another state folder.
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

// Move adapts the paths of the image layers to another state folder. It fails if the disk uses anything outside of the
// state folder.
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
		// Other folders could expose files of the hub, such as secrets.
		if below, _ := strings.CutPrefix(rel, imageLayers); !ok || !filepath.IsLocal(rel) || filepath.Join(imageLayers, below) != rel ||
			strings.Count(below, "/") != 1 {
			return fmt.Errorf("the layer %q of its image is not in its state folder", l)
		}
		d.Image.Layers[i] = filepath.Join(to, rel)
	}
	return nil
}

// imageLayers is the folder of image layers in the state folder.
const imageLayers = "images/layers/"

// VolumeRecord returns the record file of a volume.
func VolumeRecord(dir string) string {
	return filepath.Join(filepath.Dir(dir), recordMark+filepath.Base(dir)+jsonExt)
}

// ReadVolume returns the record of a volume. It fails if the path does not match the record.
func ReadVolume(path string) (info sandbox.VolumeInfo, err error) {
	if err := record.Load(filepath.Dir(path), filepath.Base(path), &info); err != nil {
		return info, err
	}
	return info, isRecordOf(path, recordMark, info.Owner, info.Name)
}

// isRecordOf returns an error unless the path of a record matches its owner and name, which become paths.
func isRecordOf(path, mark, owner, name string) error {
	if filepath.Base(path) != mark+name+jsonExt || filepath.Base(filepath.Dir(path)) != folderOf(owner) || sandbox.CheckName(name) != nil {
		return fmt.Errorf("it is the record of %q of %q", name, owner)
	}
	return nil
}
