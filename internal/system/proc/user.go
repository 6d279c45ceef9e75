package proc

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// User is the user of a child. Name and Home are for its environment.
type User struct {
	UID, GID uint32
	Groups   []uint32
	Name     string
	Home     string
}

// LookupUser finds a user by name or id in the system's user database.
func LookupUser(name string) (*User, error) {
	u, err := user.Lookup(name)
	if err != nil {
		if _, nan := strconv.ParseUint(name, 10, 32); nan != nil {
			return nil, fmt.Errorf("look up user %q: %w", name, err)
		}
		if u, err = user.LookupId(name); err != nil {
			return nil, fmt.Errorf("look up user %q: %w", name, err)
		}
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("look up the groups of user %q: %w", name, err)
	}
	found := &User{Name: u.Username, Home: u.HomeDir}
	for i, text := range append([]string{u.Uid, u.Gid}, ids...) {
		id, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("look up user %q: parse id %q: %w", name, text, err)
		}
		switch i {
		case 0:
			found.UID = uint32(id)
		case 1:
			found.GID = uint32(id)
		default:
			found.Groups = append(found.Groups, uint32(id))
		}
	}
	return found, nil
}

// credential returns the credential to set in the child. It is nil for an unprivileged
// process that keeps its user, because the kernel would refuse setgroups.
func (u *User) credential() *syscall.Credential {
	if u == nil {
		return nil
	}
	if uid := os.Geteuid(); uid != 0 && uid == int(u.UID) && os.Getegid() == int(u.GID) {
		return nil
	}
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}
