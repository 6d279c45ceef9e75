package sandbox

import (
	"fmt"
	"slices"
	"strings"
)

// reserved names are those that the hub itself uses or may use as a host name below a domain.
// Neither a sandbox nor a tenant can have one: its pages would share an origin with the hub.
var reserved = []string{"api", "www", "hub", "cove", "localhost"}

// IsReserved reports whether no sandbox and no tenant can have a name.
func IsReserved(name string) bool { return slices.Contains(reserved, strings.ToLower(name)) }

// CheckNewName returns what is wrong with the name of something that is about to be created.
// Objects that exist already keep their names.
func CheckNewName(name string) error {
	if IsReserved(name) {
		return fmt.Errorf("%w: name %q is reserved for the hub; choose another name", ErrInvalid, name)
	}
	return nil
}
