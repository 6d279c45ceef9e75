package shell

import (
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pty"
)

// input types into a pseudo-terminal.
type input struct {
	tty *pty.PTY
	mu  sync.Mutex // held while typing
}

// reply types the terminal's reply to a query of a program. It never blocks: a program that
// does not read its input loses the reply.
func (in *input) reply(b []byte) {
	conn, err := in.tty.Master().SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) { _, _ = syscall.Write(int(fd), b) })
}

// typeKeys types keys. It waits while the terminal's input queue is full.
func (in *input) typeKeys(keys string, patience time.Duration) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	m := in.tty.Master()
	m.SetWriteDeadline(time.Now().Add(patience))
	n, err := in.tty.Write([]byte(keys))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return op.Errorf(op.Unavailable,
			"the program does not read its input (%d of %d bytes accepted); wait until it does, or end it", n, len(keys))
	}
	return errEnded
}

// interrupt discards unread input and presses Ctrl-C.
func (in *input) interrupt(patience time.Duration) error {
	_ = in.tty.DropInput() // Ctrl-C works without it
	return in.typeKeys("\x03", patience)
}

// translatesNewlines reports whether the terminal starts each line in the first column. After
// "stty raw" it does not.
func (in *input) translatesNewlines() bool {
	ok := true
	if conn, err := in.tty.Master().SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			if tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
				ok = tio.Oflag&(unix.OPOST|unix.ONLCR) == unix.OPOST|unix.ONLCR
			}
		})
	}
	return ok
}

// setModes makes Backspace erase characters instead of bytes while a program reads lines,
// and keeps Ctrl-C from discarding unread output, which may contain messages of the hooks.
func (in *input) setModes() {
	if conn, err := in.tty.Slave().SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			if tio, err := unix.IoctlGetTermios(int(fd), unix.TCGETS); err == nil {
				tio.Iflag |= unix.IUTF8
				tio.Lflag |= unix.NOFLSH
				_ = unix.IoctlSetTermios(int(fd), unix.TCSETS, tio)
			}
		})
	}
}
