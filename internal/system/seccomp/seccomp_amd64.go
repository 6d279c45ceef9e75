package seccomp

import (
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	auditArch = unix.AUDIT_ARCH_X86_64
	mknod     = unix.SYS_MKNOD
)

var oldDenied = map[syscall.Errno][]uint32{
	unix.EPERM: {
		unix.SYS_KEXEC_FILE_LOAD, unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT,
		unix.SYS_SYSFS, unix.SYS__SYSCTL, unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE,
	},
}
