package local

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local/internal/disk"
)

// minIDs is the minimum number of user IDs of a sandbox. Its user has the ID 1000.
const minIDs = 4096

// extent is a range of user IDs that exist here.
type extent struct{ first, count uint32 }

// fitIDs makes sandboxes use IDs that exist in the user namespace of root. In a container, these are often only
// 65,536: all sandboxes then share the upper half, because the host's own users have the lower.
func (c *Config) fitIDs(uidMap, gidMap string) error {
	users, groups := parseIDMap(uidMap), parseIDMap(gidMap)
	c.ids = disk.IDRange
	if contains(users, c.FirstID, disk.IDRange) && contains(groups, c.FirstID, disk.IDRange) {
		return nil
	}
	var largest extent
	for _, e := range users {
		if e.count > largest.count {
			largest = e
		}
	}
	count := min(largest.count/2, disk.IDRange)
	first := largest.first + largest.count - count
	if count < minIDs || !contains(groups, first, count) {
		return fmt.Errorf("the user namespace of this process has only %d user IDs; map at least %d users and groups, or run as an "+
			"ordinary user", largest.count, disk.IDRange)
	}
	c.FirstID, c.ids, c.withoutIDMaps = first, count, true
	return nil
}

// contains reports whether a range is within one extent.
func contains(list []extent, first, count uint32) bool {
	for _, e := range list {
		if first >= e.first && uint64(first)+uint64(count) <= uint64(e.first)+uint64(e.count) {
			return true
		}
	}
	return false
}

// parseIDMap parses a map of IDs in the format of /proc/self/uid_map. Its lines are in the order of the IDs.
func parseIDMap(text string) (list []extent) {
	for line := range strings.Lines(text) {
		var inside, outside, count uint32
		if n, _ := fmt.Sscan(line, &inside, &outside, &count); n != 3 || count > math.MaxUint32-inside {
			continue
		}
		if n := len(list); n > 0 && list[n-1].first+list[n-1].count == inside {
			list[n-1].count += count
			continue
		}
		list = append(list, extent{inside, count})
	}
	return list
}

// readIDMaps fits the IDs of sandboxes to the maps of this process. Without root there are none to fit.
func (c *Config) readIDMaps() error {
	if os.Geteuid() != 0 {
		return nil
	}
	users, err := os.ReadFile("/proc/self/uid_map")
	groups, err2 := os.ReadFile("/proc/self/gid_map")
	if err := errors.Join(err, err2); err != nil {
		return fmt.Errorf("read the user IDs of this process: %w", err)
	}
	return c.fitIDs(string(users), string(groups))
}
