package display

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
)

// hello is the handshake of a viewer.
const hello = "RFB 003.008\n\x01\x01"

// messages are messages of a viewer, and whether the filter forwards them.
var messages = []struct {
	msg  string
	pass bool
}{
	{"\x00" + string(make([]byte, 19)), true},                  // pixel format
	{"\x02\x00\x00\x02\x00\x00\x00\x00\x00\x00\x00\x01", true}, // encodings
	{"\x03" + string(make([]byte, 9)), true},                   // request a picture
	{"\x04" + string(make([]byte, 7)), false},                  // key
	{"\x05" + string(make([]byte, 5)), false},                  // pointer
	{"\x05\x80" + string(make([]byte, 5)), false},              // pointer with more buttons
	{"\x06\x00\x00\x00\x00\x00\x00\x03\x04\x04\x04", false},    // clipboard with text like keys
	{"\x06\x00\x00\x00\xff\xff\xff\xfb\x05\x05\x05\x05\x05", false},
	{"\x06\x00\x00\x00\xff\xff\xff\xf8\x01\x00\x00\x01\x00\x00\x00\x00", false}, // clipboard capabilities
	{"\x96" + string(make([]byte, 9)), true},                                    // continuous updates
	{"\xf8\x00\x00\x00\x00\x00\x00\x00\x02\x04\x05", true},                      // fence
	{"\xfa\x00\x01\x02", false},                                                 // shut down
	{"\xfb\x00\x01\x00\x01\x00\x01\x00" + string(make([]byte, 16)), false},      // resize
	{"\xff" + string(make([]byte, 11)), false},                                  // key with its code
}

func TestViewOnlyFilterDropsInput(t *testing.T) {
	t.Parallel()
	all, want := hello, hello
	for _, s := range messages {
		all += s.msg
		if s.pass {
			want += s.msg
		}
	}
	for size := 1; size <= len(all); size++ {
		w := &viewOnlyFilter{}
		var got []byte
		for piece := range slices.Chunk([]byte(all), size) {
			out, err := w.filter(piece)
			if err != nil {
				t.Fatalf("in pieces of %d: %v", size, err)
			}
			got = append(got, out...)
		}
		if string(got) != want {
			t.Fatalf("in pieces of %d: %q passed, want %q", size, got, want)
		}
	}
	list := hello + "\x02\x00\x00\x03\x00\x00\x00\x07%s\xff\xff\xff\x11"
	got, err := (&viewOnlyFilter{}).filter(fmt.Appendf(nil, list, "\xc0\xa1\xe5\xce"))
	if want := fmt.Sprintf(list, "\x7f\xff\xff\xff"); err != nil || string(got) != want {
		t.Errorf("the list of encodings became %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"RFB 003.005\n", "RFB 004.000\n", "GET / HTTP/1.1\r\n", hello + "\x07", hello + "\xff\x01"} {
		if _, err := (&viewOnlyFilter{}).filter([]byte(bad)); err == nil {
			t.Errorf("%q was accepted, want an error", bad)
		}
	}
}

// FuzzViewOnlyFilter: the result does not depend on the chunks, and contains no message that changes the display.
func FuzzViewOnlyFilter(f *testing.F) {
	for _, s := range messages {
		f.Add([]byte(hello+s.msg), uint8(3))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		whole, errWhole := (&viewOnlyFilter{}).filter(data)
		w := &viewOnlyFilter{}
		var pieces []byte
		var err error
		for piece := range slices.Chunk(data, int(cut)+1) {
			var out []byte
			if out, err = w.filter(piece); err != nil {
				break
			}
			pieces = append(pieces, out...)
		}
		if (errWhole == nil) != (err == nil) || err == nil && !bytes.Equal(whole, pieces) {
			t.Fatalf("in pieces: got %q, %v, want as in one: %q, %v", pieces, err, whole, errWhole)
		}
		if len(w.rest) > versionSize {
			t.Fatalf("%d bytes are buffered, want at most %d bytes", len(w.rest), versionSize)
		}
		if err != nil || len(whole) < versionSize {
			return
		}
		checkPassed(t, whole)
	})
}

// checkPassed parses forwarded bytes as the display would.
func checkPassed(t *testing.T, data []byte) {
	size, err := handshakeSize(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(data) <= size {
		return
	}
	for data = data[size:]; len(data) > 0; {
		n := 0
		switch data[0] {
		case 0:
			n = 20
		case 2:
			if len(data) < 4 {
				return
			}
			n = 4 + 4*int(binary.BigEndian.Uint16(data[2:]))
		case 3, 150:
			n = 10
		case 248:
			if len(data) < 9 {
				return
			}
			n = 9 + int(data[8])
		default:
			t.Fatalf("a message of type %d passed, want 0, 2, 3, 150 or 248", data[0])
		}
		data = data[min(n, len(data)):]
	}
}
