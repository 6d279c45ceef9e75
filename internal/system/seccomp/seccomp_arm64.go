package seccomp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	auditArch = unix.AUDIT_ARCH_AARCH64
	mknod     = 0 // only mknodat
)

var oldDenied = map[syscall.Errno][]uint32{unix.EPERM: {unix.SYS_KEXEC_FILE_LOAD}}
