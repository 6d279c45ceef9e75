package naming

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Owners refer to an imported image as imported/NAME. The reference that providers know contains
// a digest of the owner. Requests must not contain it, so no caller reaches another owner's image.
const (
	// Imported is the prefix of the names of imported images.
	Imported = "imported/"
	registry = "imported.invalid/"
)

// ImagePrefix is the common prefix of the references of all images that an owner imported.
func ImagePrefix(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return registry + hex.EncodeToString(sum[:16]) + "/"
}

// ResolveImage returns the reference of the image that an owner's request names.
func ResolveImage(owner, name string) (string, error) {
	if short, ok := strings.CutPrefix(name, Imported); ok {
		if err := sandbox.CheckName(short); err != nil {
			return "", op.Errorf(op.Invalid, "image: %w", err)
		}
		return ImagePrefix(owner) + short, nil
	}
	if strings.HasPrefix(name, registry) {
		return "", op.Errorf(op.Invalid, "image %.60q: write imported/NAME for an imported image", name)
	}
	return name, nil
}

// ImageName returns the name under which the owner of an image knows a reference.
func ImageName(ref string) string {
	if rest, ok := strings.CutPrefix(ref, registry); ok {
		if _, name, ok := strings.Cut(rest, "/"); ok {
			return Imported + name
		}
	}
	return ref
}
