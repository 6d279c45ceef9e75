// Package pty opens Linux pseudo-terminals and asks the kernel about them.
//
// It owns the two ends of one pseudo-terminal: size, foreground process group, line-discipline modes and the
// closing of both ends. It starts no process (a child gets the slave from its starter) and interprets no byte
// that passes through.
//
// All requests to the kernel leave the master non-blocking, so that a Read waiting on it always ends with Close
// or a deadline. That is why the descriptor is never taken out of its os.File: (*os.File).Fd would switch it to
// blocking for good.
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

// Open makes a pseudo-terminal of that many columns and rows. Both ends are closed on exec.
func Open(cols, rows int) (*PTY, error) {
	fd, err := retry(func() (int, error) {
		return unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	})
	if err != nil {
		return nil, fmt.Errorf("open a pseudo-terminal (is devpts mounted with a free entry?): %w",
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
		return nil, fmt.Errorf("open the terminal side %s: %w", name, err)
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

// openSlave opens the terminal side through the master, which is right even where /dev/pts belongs to another
// mount namespace; kernels and kernel look-alikes without that request get the path. The slave stays blocking:
// it becomes a child's standard input, and most programs take EAGAIN there for an error.
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

// Master is the end that types and reads what programs print. It supports deadlines.
func (p *PTY) Master() *os.File { return p.master }

// Slave is the terminal for a child to run on.
func (p *PTY) Slave() *os.File { return p.slave }

// Name is the terminal's device, such as /dev/pts/3.
func (p *PTY) Name() string { return p.slave.Name() }

// Read reads what the programs on the terminal printed. It returns io.EOF once every process has closed the
// terminal, which can only happen after CloseSlave.
func (p *PTY) Read(b []byte) (int, error) {
	n, err := p.master.Read(b)
	// The kernel says "input/output error" for "nobody holds the other end any more".
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

// Write types b. It waits while the terminal's input queue is full, until Close or the master's write deadline.
func (p *PTY) Write(b []byte) (int, error) { return p.master.Write(b) }

// Resize sets the size and lets the kernel tell the foreground processes with SIGWINCH.
func (p *PTY) Resize(cols, rows int) error {
	if cols < 1 || rows < 1 || cols > math.MaxUint16 || rows > math.MaxUint16 {
		return fmt.Errorf("resize the terminal: %d columns by %d rows is out of range, give 1 to %d of each",
			cols, rows, math.MaxUint16)
	}
	ws := &unix.Winsize{Col: uint16(cols), Row: uint16(rows)}
	err := control(p.master, func(fd int) error { return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, ws) })
	if err != nil {
		return fmt.Errorf("resize the terminal: %w", err)
	}
	return nil
}

// Size tells the size last set, by Resize or by a program on the terminal.
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

// Foreground is the process group that the terminal's keys reach now, 0 when no session has the terminal.
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

// Mode is what the program on the terminal asked of its line discipline.
type Mode struct {
	Echo      bool // typed characters are shown; off while a password is asked for
	Canonical bool // input is handed over by the line; off in editors and line editors
	Signals   bool // ^C, ^\ and ^Z raise signals instead of being read
}

// Mode reads the present modes.
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

// DropInput forgets what was typed and not read yet.
func (p *PTY) DropInput() error {
	err := control(p.slave, func(fd int) error { return unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) })
	if err != nil {
		return fmt.Errorf("drop the terminal's input: %w", err)
	}
	return nil
}

// Own gives the terminal to a user, who can otherwise not open /dev/stderr and its like by name when the
// terminal was made by somebody else (root, for a child that runs as a user).
func (p *PTY) Own(uid, gid int) error {
	if err := p.slave.Chown(uid, gid); err != nil {
		return fmt.Errorf("change the owner of the terminal to user %d: %w", uid, err)
	}
	return nil
}

// CloseSlave drops this process's hold on the terminal side once a child has it; while it is held, Read never
// sees the end.
func (p *PTY) CloseSlave() error { return closeOnce(p.slave) }

// Close closes both ends: pending reads and writes return, and the processes on the terminal get SIGHUP.
func (p *PTY) Close() error {
	// The master first: a pending Read then says that it was closed, not that the programs ended.
	return errors.Join(closeOnce(p.master), closeOnce(p.slave))
}

func closeOnce(f *os.File) error {
	if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// control runs one request on f's descriptor without changing its mode.
func control(f *os.File, request func(fd int) error) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := c.Control(func(fd uintptr) { inner = request(int(fd)) }); err != nil {
		return os.ErrClosed // the only reason, but reported as an error that cannot be named
	}
	return inner
}
