package config

import "syscall"

// sameDevice reports whether two directories are on one filesystem. In a Pod only the home may
// outlive a restart.
func sameDevice(a, b string) bool {
	var x, y syscall.Stat_t
	return syscall.Stat(a, &x) == nil && syscall.Stat(b, &y) == nil && x.Dev == y.Dev
}
