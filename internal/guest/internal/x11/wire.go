package x11

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"sync"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/randr"
	"github.com/jezek/xgb/xfixes"
	"github.com/jezek/xgb/xproto"
)

// initXGB makes xgb's package-level state safe for several connections in one process, before the first of them exists.
//
// The Init functions of xgb's extensions write to maps that the readers of all other connections read without a lock, so
// they are never called here: findExtensions registers the opcodes itself. Errors of extensions need a constructor; otherwise
// the reader drops them and the caller waits forever.
var initXGB = sync.OnceFunc(func() {
	xgb.Logger = log.New(io.Discard, "", 0)
	for code := 128; code < 256; code++ {
		xgb.NewErrorFuncs[code] = newExtensionError
	}
})

// extensionError is an error of an extension of the protocol.
type extensionError struct {
	code, major byte
	minor       uint16
	sequence    uint16
	bad         uint32
}

func newExtensionError(b []byte) xgb.Error {
	return extensionError{
		code: b[1], sequence: xgb.Get16(b[2:]), bad: xgb.Get32(b[4:]), minor: xgb.Get16(b[8:]), major: b[10],
	}
}

func (e extensionError) SequenceId() uint16 { return e.sequence }
func (e extensionError) BadId() uint32      { return e.bad }
func (e extensionError) Error() string {
	return fmt.Sprintf("x extension error %d for request %d.%d (value %#x)", e.code, e.major, e.minor, e.bad)
}

// wire is the socket that xgb uses. xgb reads its cookie only from the file named in the environment, so wire replaces the
// first write, the connection setup, with one that contains the caller's cookie.
type wire struct {
	net.Conn
	in    *bufio.Reader
	setup []byte

	mu      sync.Mutex
	readErr error
}

func (w *wire) Write(b []byte) (int, error) {
	if w.setup == nil {
		return w.Conn.Write(b)
	}
	setup := w.setup
	w.setup = nil
	if _, err := w.Conn.Write(setup); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.in.Read(b)
	if err != nil {
		w.mu.Lock()
		w.readErr = err
		w.mu.Unlock()
	}
	return n, err
}

// cause returns why reading ended.
func (w *wire) cause() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.readErr == nil || errors.Is(w.readErr, io.EOF) {
		return errors.New("the X server closed it")
	}
	return w.readErr
}

// open dials the socket and completes the handshake.
func open(ctx context.Context, socket string, cookie []byte) (*wire, *xgb.Conn, error) {
	if len(cookie) != 0 && len(cookie) != CookieSize {
		return nil, nil, fmt.Errorf("cookie has %d bytes; use %d bytes or none", len(cookie), CookieSize)
	}
	initXGB()
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, nil, err
	}
	w := &wire{Conn: nc, in: bufio.NewReaderSize(nc, 64<<10), setup: setupRequest(cookie)}
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	x, err := xgb.NewConnNet(w)
	if !stop() && err == nil {
		err = ctx.Err()
		x.Close()
	}
	if err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, nil, err
	}
	return w, x, nil
}

// setupRequest returns the first message of a client: little-endian, protocol 11.0, and its cookie.
func setupRequest(cookie []byte) []byte {
	name := authName
	if len(cookie) == 0 {
		name = ""
	}
	b := []byte{'l', 0}
	for _, v := range []int{11, 0, len(name), len(cookie), 0} {
		b = binary.LittleEndian.AppendUint16(b, uint16(v))
	}
	b = append(b, name...)
	b = append(b, make([]byte, xgb.Pad(len(b))-len(b))...)
	b = append(b, cookie...)
	return append(b, make([]byte, xgb.Pad(len(b))-len(b))...)
}

// extensions are the optional extensions of the server. XTEST is required.
type extensions struct{ shm, xfixes, randr bool }

func (c *Conn) findExtensions() (extensions, error) {
	found := map[string]bool{}
	for _, name := range []string{"XTEST", "MIT-SHM", "XFIXES", "RANDR"} {
		r, err := xproto.QueryExtension(c.x, uint16(len(name)), name).Reply()
		if err != nil {
			return extensions{}, err
		}
		if r.Present {
			c.x.ExtLock.Lock()
			c.x.Extensions[name] = r.MajorOpcode
			c.x.ExtLock.Unlock()
		}
		found[name] = r.Present
	}
	if !found["XTEST"] {
		return extensions{}, errors.New("the X server lacks the XTEST extension; start it without -tst")
	}
	// Both refuse requests of clients that have not negotiated a version.
	if found["XFIXES"] {
		if _, err := xfixes.QueryVersion(c.x, 4, 0).Reply(); err != nil {
			return extensions{}, err
		}
	}
	if found["RANDR"] {
		if _, err := randr.QueryVersion(c.x, 1, 3).Reply(); err != nil {
			return extensions{}, err
		}
	}
	return extensions{shm: found["MIT-SHM"], xfixes: found["XFIXES"], randr: found["RANDR"]}, nil
}

// atoms are the names that this package uses.
type atoms struct {
	clipboard, targets, timestamp, incr, utf8, text, plainUTF8, plain         xproto.Atom
	transfer, protocols, ping, supported, managerCheck, askFrame, frame, drag xproto.Atom
}

func (c *Conn) internAtoms() (atoms, error) {
	var a atoms
	for name, dst := range map[string]*xproto.Atom{
		"CLIPBOARD": &a.clipboard, "TARGETS": &a.targets, "TIMESTAMP": &a.timestamp, "INCR": &a.incr,
		"UTF8_STRING": &a.utf8, "TEXT": &a.text, "text/plain;charset=utf-8": &a.plainUTF8, "text/plain": &a.plain,
		"_COVE_TRANSFER": &a.transfer, "WM_PROTOCOLS": &a.protocols, "_NET_WM_PING": &a.ping,
		"_NET_SUPPORTED": &a.supported, "_NET_SUPPORTING_WM_CHECK": &a.managerCheck,
		"_NET_REQUEST_FRAME_EXTENTS": &a.askFrame, "_NET_FRAME_EXTENTS": &a.frame,
		"XdndSelection": &a.drag,
	} {
		id, err := c.intern(name)
		if err != nil {
			return atoms{}, err
		}
		*dst = id
	}
	return a, nil
}

func (c *Conn) intern(name string) (xproto.Atom, error) {
	r, err := xproto.InternAtom(c.x, false, uint16(len(name)), name).Reply()
	if err != nil {
		return 0, err
	}
	return r.Atom, nil
}
