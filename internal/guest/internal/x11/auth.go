package x11

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// CookieSize is the length of a MIT-MAGIC-COOKIE-1.
const CookieSize = 16

const authName = "MIT-MAGIC-COOKIE-1"

// NewCookie returns a random cookie for a display.
func NewCookie() []byte {
	b := make([]byte, CookieSize)
	rand.Read(b)
	return b
}

// WriteAuthority writes the cookie of a display to a file in the format of .Xauthority, for the -auth flag of servers and
// XAUTHORITY of clients. The entry applies to every host name, because the name of a sandbox may change. It replaces the file
// atomically. A new file has mode 0600.
func WriteAuthority(path string, display int, cookie []byte) error {
	return writeAuthority(path, display, cookie, nil)
}

func writeAuthority(path string, display int, cookie, others []byte) error {
	if len(cookie) != CookieSize {
		return fmt.Errorf("write x authority %s: cookie has %d bytes, want %d", path, len(cookie), CookieSize)
	}
	const familyWild = 65535
	b := binary.BigEndian.AppendUint16(nil, familyWild)
	for _, field := range []string{"", strconv.Itoa(display), authName, string(cookie)} {
		b = binary.BigEndian.AppendUint16(b, uint16(len(field)))
		b = append(b, field...)
	}
	b = append(b, others...)
	err := atomicfile.Replace(path, atomicfile.Options{Perm: 0o600}, func(f *os.File) error { _, err := f.Write(b); return err })
	if err != nil {
		return fmt.Errorf("write x authority: %w", err)
	}
	return nil
}
