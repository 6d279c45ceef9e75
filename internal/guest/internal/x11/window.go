package x11

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"github.com/jezek/xgb/xproto"
)

// Window is a window of an application.
type Window struct {
	ID      uint32
	Class   string // second part of WM_CLASS
	Title   string
	Visible bool
}

func (w Window) named() bool { return w.Class != "" || w.Title != "" }

// maxWindows is the maximum number of windows that Windows visits.
const maxWindows = 10_000

// Windows returns the windows of applications, in tree order: those with a class or a title.
func (c *Conn) Windows(ctx context.Context) ([]Window, error) {
	return do(ctx, c, c.screen, func() (list []Window, err error) {
		queue := []xproto.Window{c.root}
		for n := 0; len(queue) > 0 && n < maxWindows; n++ {
			w := queue[0]
			queue = queue[1:]
			tree, err := xproto.QueryTree(c.x, w).Reply()
			if err != nil {
				if err := ignoreX(err); err != nil {
					return nil, err
				}
				continue // it has just been closed
			}
			queue = append(queue, tree.Children...)
			found, err := c.describe(w)
			if err != nil {
				return nil, err
			}
			if found.named() {
				list = append(list, found)
			}
		}
		return list, nil
	})
}

// Window returns one window.
func (c *Conn) Window(ctx context.Context, id uint32) (Window, error) {
	return do(ctx, c, c.screen, func() (Window, error) {
		if _, err := xproto.GetWindowAttributes(c.x, xproto.Window(id)).Reply(); err != nil {
			return Window{}, fmt.Errorf("no such window: %d", id)
		}
		return c.describe(xproto.Window(id))
	})
}

// Focused returns the application window with the keyboard focus.
func (c *Conn) Focused(ctx context.Context) (uint32, error) {
	return do(ctx, c, c.screen, func() (uint32, error) {
		focus, err := xproto.GetInputFocus(c.x).Reply()
		if err != nil {
			return 0, err
		}
		for w := focus.Focus; w > 1 && w != c.root; { // 0 means none, 1 the window below the pointer
			found, err := c.describe(w)
			if err != nil {
				return 0, err
			}
			if found.named() {
				return uint32(w), nil
			}
			tree, err := xproto.QueryTree(c.x, w).Reply()
			if err != nil {
				return uint32(focus.Focus), ignoreX(err)
			}
			w = tree.Parent
		}
		return uint32(focus.Focus), nil
	})
}

// Managed reports whether a window manager runs on the display.
func (c *Conn) Managed(ctx context.Context) (bool, error) {
	return do(ctx, c, c.screen, c.supportsFrameQuery)
}

// Detach closes the connection without releasing pressed buttons and keys.
func (c *Conn) Detach() {
	c.shutOnce.Do(c.shut)
	<-c.pumped
}

func (c *Conn) describe(w xproto.Window) (Window, error) {
	found := Window{ID: uint32(w)}
	attributes, err := xproto.GetWindowAttributes(c.x, w).Reply()
	if err != nil {
		return found, ignoreX(err)
	}
	found.Visible = attributes.MapState == xproto.MapStateViewable
	class, err := c.property(w, xproto.AtomWmClass)
	if err != nil {
		return found, err
	}
	if parts := bytes.Split(class, []byte{0}); len(parts) > 1 {
		found.Class = string(parts[1])
	}
	name, err := c.intern("_NET_WM_NAME")
	if err != nil {
		return found, err
	}
	title, err := c.property(w, name)
	if err == nil && len(title) == 0 {
		title, err = c.property(w, xproto.AtomWmName)
	}
	found.Title = string(bytes.TrimRight(title, "\x00"))
	return found, err
}

// property returns the start of a property, or nothing.
func (c *Conn) property(w xproto.Window, name xproto.Atom) ([]byte, error) {
	const most = 1024 // of 4 bytes
	p, err := xproto.GetProperty(c.x, false, w, name, xproto.GetPropertyTypeAny, 0, most).Reply()
	if err != nil {
		return nil, ignoreX(err)
	}
	return p.Value, nil
}

// entry is an entry of an authority file: the cookie of a display.
type entry struct {
	raw    []byte
	number string
	name   string
	cookie []byte
}

// parseAuthority splits an authority file. It drops everything after an invalid entry.
func parseAuthority(b []byte) (list []entry) {
	for len(b) > 2 {
		rest := b[2:]
		var fields [4][]byte // address, number, name, data
		for i := range fields {
			if len(rest) < 2 {
				return list
			}
			n := int(binary.BigEndian.Uint16(rest))
			if len(rest) < 2+n {
				return list
			}
			fields[i], rest = rest[2:2+n], rest[2+n:]
		}
		list = append(list, entry{raw: b[:len(b)-len(rest)], number: string(fields[1]), name: string(fields[2]), cookie: fields[3]})
		b = rest
	}
	return list
}

// ReadAuthority returns the cookie of a display in an authority file, or nil.
func ReadAuthority(path string, display int) []byte {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for _, e := range parseAuthority(b) {
		if e.name == authName && len(e.cookie) == CookieSize && (e.number == strconv.Itoa(display) || e.number == "") {
			return e.cookie
		}
	}
	return nil
}

// AddAuthority adds the cookie of a display to an authority file, and keeps those of other displays.
func AddAuthority(path string, display int, cookie []byte) error {
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("read x authority: %w", err)
	}
	var others []byte
	for _, e := range parseAuthority(b) {
		if e.number != strconv.Itoa(display) {
			others = append(others, e.raw...)
		}
	}
	return writeAuthority(path, display, cookie, others)
}
