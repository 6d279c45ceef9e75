// Package imageref names the images that tenants import. Their owners call them
// imported/NAME. The reference that providers know contains a digest of the owner,
// and no request may spell it out: so nobody reaches another owner's image.
package imageref

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// Imported begins the names of imported images.
	Imported = "imported/"
	registry = "imported.invalid/"
)

// Prefix begins the references of all images that an owner imported.
func Prefix(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return registry + hex.EncodeToString(sum[:16]) + "/"
}

// Resolve returns the reference that the image in an owner's request stands for.
func Resolve(owner, name string) (string, error) {
	if short, ok := strings.CutPrefix(name, Imported); ok {
		if err := sandbox.CheckName(short); err != nil {
			return "", op.Errorf(op.Invalid, "image: %w", err)
		}
		return Prefix(owner) + short, nil
	}
	if strings.HasPrefix(name, registry) {
		return "", op.Errorf(op.Invalid, "image %.60q: write imported/NAME for an imported image", name)
	}
	return name, nil
}

// Name shows a reference as its owner wrote it.
func Name(ref string) string {
	if rest, ok := strings.CutPrefix(ref, registry); ok {
		if _, name, ok := strings.Cut(rest, "/"); ok {
			return Imported + name
		}
	}
	return ref
}
