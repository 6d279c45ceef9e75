package local

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/layer"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/runner"
	"github.com/cove-sandbox/cove/internal/provider/local/internal/tree"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// shape is the required kind of an entry of a backup. The hub opens, mounts and writes some entries by path: a link
// would lead out of the state folder, a pipe would block the hub, and a sparse file of a terabyte would use its memory.
type shape int

const (
	unexpected shape = iota // backups have no such entry
	isFolder
	isRecord // a small file without holes, which is read as a whole
	isFile   // a file without holes
	isAny    // content of a disk, which is accessible only inside a sandbox
)

// maxRecord bounds a record. The largest part is the spec of a sandbox, which is smaller than a megabyte.
const maxRecord = 8 << 20

// check returns an error if an entry of a section does not have the shape that its name requires.
func (s *restore) check(section, rel string, h *tar.Header) error {
	var err error
	switch want := s.shapeOf(section, strings.Split(rel, "/")); {
	case want == unexpected:
		err = errors.New("unexpected name")
	case want == isFolder && h.Typeflag != tar.TypeDir:
		err = errors.New("it must be a folder")
	case (want == isRecord || want == isFile) && h.Typeflag != tar.TypeReg:
		err = errors.New("it must be a file")
	case want == isRecord && (h.Size > maxRecord || tree.HasHoles(h)):
		err = errors.New("it is too large")
	case want == isFile && tree.HasHoles(h):
		err = errors.New("it has holes")
	default:
		return nil
	}
	return fmt.Errorf("%w: entry %.200q: %w", ErrNoBackup, h.Name, err)
}

// shapeOf returns the shape of the entry with these parts of a path in a section.
func (s *restore) shapeOf(section string, parts []string) shape {
	switch section {
	case hubSection:
		return s.shapeOfHub(parts[0])
	case layersSection:
		return shapeOfLayer(parts)
	case disk.BaseFolder:
		return shapeOfBase(parts)
	case sandboxesSection:
		return shapeOfSandbox(parts)
	case volumesSection:
		return shapeOfVolume(parts)
	case imagesSection:
		return shapeOfImage(parts)
	case disk.SnapshotsFolder:
		if !disk.IsOwnerFolder(parts[0]) || len(parts) > 2 {
			return unexpected
		}
		return byDepth(parts, isFolder, isRecord)
	}
	return unexpected
}

// byDepth returns the shape for the number of parts; the last shape is for all deeper entries.
func byDepth(parts []string, shapes ...shape) shape { return shapes[min(len(parts), len(shapes))-1] }

// shapeOfHub allows the files of the hub, and files below them. A backup has no entries for their folders.
func (s *restore) shapeOfHub(top string) shape {
	if slices.ContainsFunc(s.cfg.Files, func(f string) bool { return f == top || strings.HasPrefix(f, top+"/") }) {
		return isFile
	}
	return unexpected
}

// shapeOfLayer: a layer has a folder for each tree, and the overlays' work folder, which also has one for each tree.
func shapeOfLayer(parts []string) shape {
	switch {
	case !layer.IsName(parts[0]):
		return unexpected
	case len(parts) <= 2, len(parts) == 3 && parts[1] == layer.WorkName:
		return isFolder
	}
	return isAny
}

// shapeOfBase: the hub follows the path to the trees below var.
func shapeOfBase(parts []string) shape {
	switch inside := strings.Join(parts[1:], "/"); {
	case !layer.IsName(parts[0]):
		return unexpected
	case inside == "", inside == "var", inside == "var/lib":
		return isFolder
	}
	return isAny
}

func shapeOfSandbox(parts []string) shape {
	switch {
	case sandbox.CheckName(parts[0]) != nil || len(parts) > 2:
		return unexpected
	case len(parts) == 2 && parts[1] == runner.RecordName:
		return isRecord
	}
	return byDepth(parts, isFolder, isAny) // the section allows only files and folders
}

func shapeOfVolume(parts []string) shape {
	switch {
	case !disk.IsOwnerFolder(parts[0]):
		return unexpected
	case len(parts) == 1:
		return isFolder
	}
	name, hidden := strings.CutPrefix(parts[1], ".")
	name, isJSON := strings.CutSuffix(name, ".json")
	switch {
	case sandbox.CheckName(name) != nil || hidden != isJSON || hidden && len(parts) > 2:
		return unexpected
	case hidden:
		return isRecord
	}
	return byDepth(parts, isFolder, isFolder, isAny)
}

// shapeOfImage: images/X.json are records; layers/SUM has layer.json and the folder root.
func shapeOfImage(parts []string) shape {
	switch parts[0] {
	case "images":
		if len(parts) > 2 {
			return unexpected
		}
		return byDepth(parts, isFolder, isRecord)
	case "layers":
		return shapeOfImageLayer(parts[1:])
	}
	return unexpected
}

func shapeOfImageLayer(parts []string) shape {
	if len(parts) == 0 {
		return isFolder
	}
	if sum, err := hex.DecodeString(parts[0]); err != nil || len(sum) != sha256.Size {
		return unexpected
	}
	switch {
	case len(parts) == 1:
		return isFolder
	case parts[1] == "root":
		return byDepth(parts[1:], isFolder, isAny)
	case len(parts) == 2:
		return isRecord
	}
	return unexpected
}
