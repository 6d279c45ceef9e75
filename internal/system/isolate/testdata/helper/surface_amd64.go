package main

import "golang.org/x/sys/unix"

// sysIOPL lets programs use the ports of devices.
const sysIOPL = unix.SYS_IOPL
