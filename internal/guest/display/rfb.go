package display

import (
	"encoding/binary"
	"fmt"
)

// viewOnlyFilter parses the messages of a VNC viewer, and drops every message that would change the display. Bytes arrive in
// chunks of any size.
type viewOnlyFilter struct {
	rest    []byte // start of an incomplete message
	greeted bool   // the handshake is over
	skip    int    // bytes of the current message to drop
	pass    int    // bytes of the current message to forward
	list    int    // encodings of the current list to forward after that
}

// versionSize is the length of the protocol version, which a viewer sends first.
const versionSize = 12

// encodings is the type of the SetEncodings message.
const encodings = 2

// maxHead is the length of the part of a message that determines its length and effect.
const maxHead = 9

// Encodings that a viewer announces.
const (
	// extendedClipboard makes the server send the clipboard without a request, which breaks noVNC's parser in view-only mode.
	extendedClipboard = 0xc0a1e5ce
	// noEncoding is unknown to servers.
	noEncoding = 0x7fffffff
)

// filter returns the part of msg to forward to the display.
func (w *viewOnlyFilter) filter(msg []byte) ([]byte, error) {
	out := make([]byte, 0, len(msg)+len(w.rest))
	data := append(w.rest, msg...)
	w.rest = nil
	for len(data) > 0 {
		switch {
		case !w.greeted:
			size, err := handshakeSize(data)
			if err != nil {
				return nil, err
			}
			if size == 0 {
				w.rest = append(w.rest, data...)
				return out, nil
			}
			w.greeted, w.pass = true, size
		case w.skip > 0:
			n := min(w.skip, len(data))
			data, w.skip = data[n:], w.skip-n
		case w.pass > 0:
			n := min(w.pass, len(data))
			out = append(out, data[:n]...)
			data, w.pass = data[n:], w.pass-n
		case w.list > 0:
			if len(data) < 4 {
				w.rest = append(w.rest, data...)
				return out, nil
			}
			encoding := binary.BigEndian.Uint32(data)
			if encoding == extendedClipboard {
				encoding = noEncoding
			}
			out = binary.BigEndian.AppendUint32(out, encoding)
			data, w.list = data[4:], w.list-1
		default:
			size, harmless, err := measure(data)
			if err != nil {
				return nil, err
			}
			if size == 0 {
				w.rest = append(w.rest, data...)
				return out, nil
			}
			switch {
			case data[0] == encodings:
				w.pass, w.list = 4, (size-4)/4
			case harmless:
				w.pass = size
			default:
				w.skip = size
			}
		}
	}
	return out, nil
}

// handshakeSize returns the length of the handshake: the version, the security type (since 3.7), and the shared flag. It
// refuses versions that the server might parse differently, because input could pass the filter.
func handshakeSize(data []byte) (size int, err error) {
	if len(data) < versionSize {
		return 0, nil
	}
	switch version := string(data[:versionSize]); version {
	case "RFB 003.003\n":
		return versionSize + 1, nil
	case "RFB 003.007\n", "RFB 003.008\n":
		return versionSize + 2, nil
	default:
		return 0, fmt.Errorf("unsupported protocol version %q", version)
	}
}

// measure returns the length of the first message in data, and whether it leaves the display unchanged. A size of 0 means that
// more data is needed.
func measure(data []byte) (size int, harmless bool, err error) {
	if len(data) > maxHead {
		data = data[:maxHead]
	}
	u16 := func(at int) int { return int(binary.BigEndian.Uint16(data[at:])) }
	need := func(n int) bool { return len(data) >= n }
	switch kind := data[0]; kind {
	case 0: // pixel format
		return 20, true, nil
	case encodings:
		if !need(4) {
			return 0, false, nil
		}
		return 4 + 4*u16(2), true, nil
	case 3: // request a picture
		return 10, true, nil
	case 4: // key
		return 8, false, nil
	case 5: // pointer; the high bit announces more buttons
		if !need(2) {
			return 0, false, nil
		}
		return 6 + int(data[1]>>7), false, nil
	case 6: // clipboard; the length of the extended form is negative
		if !need(8) {
			return 0, false, nil
		}
		n := int64(int32(binary.BigEndian.Uint32(data[4:])))
		return 8 + int(max(n, -n)), false, nil
	case 150: // continuous updates
		return 10, true, nil
	case 248: // fence
		if !need(9) {
			return 0, false, nil
		}
		return 9 + int(data[8]), true, nil
	case 250: // shut down, reboot
		return 4, false, nil
	case 251: // resize
		if !need(7) {
			return 0, false, nil
		}
		return 8 + 16*int(data[6]), false, nil
	case 255: // key with its scan code
		if !need(2) {
			return 0, false, nil
		}
		if data[1] != 0 {
			return 0, false, fmt.Errorf("unknown message type 255.%d", data[1])
		}
		return 12, false, nil
	default:
		return 0, false, fmt.Errorf("unknown message type %d", kind)
	}
}
