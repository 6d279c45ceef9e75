// Package pty opens Linux pseudo-terminals and queries their state.
//
// It owns the two ends of a pseudo-terminal: size, foreground process group, line-discipline
// modes and closing. It starts no process and does not interpret the data.
//
// The master always stays non-blocking, so that Close or a deadline ends a pending Read.
// Therefore the package never calls (*os.File).Fd, which would make it blocking.
package pty

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// PTY is one pseudo-terminal. Its methods may be called concurrently.
type PTY struct {
	master, slave *os.File
}

// Open opens a pseudo-terminal with a size. Both ends are closed on exec.
func Open(cols, rows int) (*PTY, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal: %w; check that devpts is mounted and not full",
			&os.PathError{Op: "open", Path: "/dev/ptmx", Err: err})
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("unlock the pseudo-terminal: %w", err)
	}
	name := "/dev/pts/" + strconv.FormatUint(uint64(n), 10)
	slave, err := openSlave(fd, name)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open the slave %s: %w", name, err)
	}
	p := &PTY{
		master: os.NewFile(uintptr(fd), "/dev/ptmx"),
		slave:  os.NewFile(uintptr(slave), name),
	}
	if err := p.Resize(cols, rows); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// openSlave opens the slave through the master, which also works if /dev/pts belongs to
// another mount namespace. If the kernel does not support this request, it opens the path.
// The slave stays blocking: as standard input of a child it must not return EAGAIN.
func openSlave(master int, name string) (int, error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY | unix.O_CLOEXEC
	fd, err := retry(func() (int, error) {
		fd, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(master), unix.TIOCGPTPEER, flags)
		if errno != 0 {
			return -1, errno
		}
		return int(fd), nil
	})
	if err == nil {
		return fd, nil
	}
	return retry(func() (int, error) { return unix.Open(name, flags, 0) })
}

func retry(open func() (int, error)) (int, error) {
	for {
		fd, err := open()
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// Master is the end that types input and reads output. It supports deadlines.
func (p *PTY) Master() *os.File { return p.master }

// Slave is the terminal of child processes.
func (p *PTY) Slave() *os.File { return p.slave }

// Name is the terminal's device, such as /dev/pts/3.
func (p *PTY) Name() string { return p.slave.Name() }

// Read reads the output of programs on the terminal. It returns io.EOF after all processes
// have closed the terminal, which requires CloseSlave.
func (p *PTY) Read(b []byte) (int, error) {
	n, err := p.master.Read(b)
	// The kernel returns EIO if no process has the slave open.
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

// Write types b. While the terminal's input queue is full, it waits until Close or the
// master's write deadline.
func (p *PTY) Write(b []byte) (int, error) { return p.master.Write(b) }

// Resize sets the size. The kernel sends SIGWINCH to the foreground processes.
func (p *PTY) Resize(cols, rows int) error {
	if cols < 1 || rows < 1 || cols > math.MaxUint16 || rows > math.MaxUint16 {
		return fmt.Errorf("resize the terminal: %d columns by %d rows is out of range; use 1 to %d of each",
			cols, rows, math.MaxUint16)
	}
	ws := &unix.Winsize{Col: uint16(cols), Row: uint16(rows)}
	err := control(p.master, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws) })
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// Size returns the size that Resize or a program on the terminal has set.
func (p *PTY) Size() (cols, rows int, err error) {
	err = control(p.master, func(fd int) error {
		ws, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
		if err == nil {
			cols, rows = int(ws.Col), int(ws.Row)
		}
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("read the terminal's size: %w", err)
	}
	return cols, rows, nil
}

// Foreground returns the foreground process group, or 0 if no session has the terminal.
func (p *PTY) Foreground() (pgid int, err error) {
	err = control(p.master, func(fd int) error {
		var v uint32
		v, err := unix.IoctlGetUint32(fd, unix.TIOCGPGRP)
		pgid = int(int32(v))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("read the terminal's foreground process group: %w", err)
	}
	return pgid, nil
}

// Mode has modes of the line discipline.
type Mode struct {
	Echo      bool // input is echoed; off for password prompts
	Canonical bool // input is read line by line; off in editors and line editors
	Signals   bool // ^C, ^\ and ^Z send signals
}

// Mode returns the current modes.
func (p *PTY) Mode() (m Mode, err error) {
	err = control(p.master, func(fd int) error {
		tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			m = Mode{
				Echo:      tio.Lflag&unix.ECHO != 0,
				Canonical: tio.Lflag&unix.ICANON != 0,
				Signals:   tio.Lflag&unix.ISIG != 0,
			}
		}
		return err
	})
	if err != nil {
		return Mode{}, fmt.Errorf("read the terminal's modes: %w", err)
	}
	return m, nil
}

// DropInput discards unread input.
func (p *PTY) DropInput() error {
	err := control(p.slave, func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) })
	if err != nil {
		return fmt.Errorf("drop the terminal's input: %w", err)
	}
	return nil
}

// Own sets the owner of the terminal. Otherwise, if root opened the terminal, processes of
// the user cannot open paths such as /dev/stderr.
func (p *PTY) Own(uid, gid int) error {
	if err := p.slave.Chown(uid, gid); err != nil {
		return fmt.Errorf("change the owner of the terminal to user %d: %w", uid, err)
	}
	return nil
}

// CloseSlave closes the slave in this process after a child has inherited it. While it is
// open, Read never returns io.EOF.
func (p *PTY) CloseSlave() error { return closeOnce(p.slave) }

// Close closes both ends: pending reads and writes return, and processes on the terminal
// receive SIGHUP.
func (p *PTY) Close() error {
	// Close the master first, so that a pending Read returns os.ErrClosed and not io.EOF.
	return errors.Join(closeOnce(p.master), closeOnce(p.slave))
}

func closeOnce(f *os.File) error {
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// control runs a request on f's descriptor without making it blocking.
func control(f *os.File, request func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = request(int(fd)) }); err != nil {
		return os.ErrClosed // the only cause, but Control returns an unexported error
	}
	return inner
}
