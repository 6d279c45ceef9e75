package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// reserved lists names that the hub uses, or can use, as host names under a domain. Sandboxes and tenants
// cannot have them, because their pages would share an origin with the hub.
var reserved = []string{"api", "www", "hub", "cove", "localhost"}

// IsReserved reports whether a name is reserved for the hub.
func IsReserved(name string) bool { return slices.Contains(reserved, strings.ToLower(name)) }

// CheckNewName returns an error for an invalid name of a new object. Existing objects keep their names.
func CheckNewName(name string) error {
	if IsReserved(name) {
		return fmt.Errorf("%w: name %q is reserved for the hub; choose another name", ErrInvalid, name)
	}
	return nil
}
