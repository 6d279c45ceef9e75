package desktop

import (
	"context"
	"crypto/des" //nolint:gosec // the VNC protocol requires DES
	"crypto/rand"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// passwordSize is the maximum length of a VNC password.
const passwordSize = 8

// fileKey encodes passwords in files. It is the same in all VNC programs: only the file's mode protects passwords.
var fileKey = []byte{23, 82, 107, 6, 35, 78, 88, 7}

// shareDisplay implements x11vnc: it serves the display to VNC clients on a loopback port.
func shareDisplay(ctx context.Context, c *command) error {
	if i := slices.Index(c.args, "-storepasswd"); i >= 0 {
		if len(c.args) < i+3 {
			return errors.New("usage: x11vnc -storepasswd PASSWORD FILE")
		}
		return storePassword(c.args[i+1], c.args[i+2])
	}
	if slices.Contains(c.args, "-id") {
		return errors.New("cannot share a single window; install the package x11vnc")
	}
	var password []byte
	if slices.Contains(c.args, "-usepw") {
		var err error
		if password, err = loadPassword(filepath.Join(c.env("HOME"), ".vnc", "passwd")); err != nil {
			return err
		}
	}
	number, err := parseDisplay(c.option("-display", c.env("DISPLAY")))
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(c.option("-rfbport", "5900"), 10, 16)
	if err != nil {
		return errors.New("invalid -rfbport; use a port such as 5900")
	}
	h, done, release, err := c.hold(ctx, "")
	if err != nil {
		return err
	}
	defer release()
	if real, err := filepath.EvalSymlinks(socketOf(number)); err != nil || real != socketOf(h.Number) {
		return fmt.Errorf("display :%d is not the sandbox's display :%d; install the package x11vnc to share it", number, h.Number)
	}
	ln, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.FormatUint(port, 10)))
	if err != nil {
		return err
	}
	c.announce()
	if _, err := fmt.Fprintf(c.Out, "PORT=%d\n", port); err != nil {
		return err
	}
	if f, ok := c.Out.(*os.File); ok {
		f.Close() // the parent process waits for the end of the output
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-done:
		case <-ctx.Done():
		}
		cancel()
	}()
	return serveViewers(ctx, ln, h.RFB, password)
}

// serveViewers accepts VNC clients until ctx ends.
func serveViewers(ctx context.Context, ln net.Listener, socket string, password []byte) error {
	defer context.AfterFunc(ctx, func() { ln.Close() })()
	var viewers sync.WaitGroup
	defer viewers.Wait()
	for {
		viewer, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		viewers.Go(func() {
			defer viewer.Close()
			defer context.AfterFunc(ctx, func() { viewer.Close() })()
			_ = serveViewer(viewer, socket, password) // the error concerns only the viewer
		})
	}
}

// handshakeTime is the timeout of a viewer's authentication.
const handshakeTime = 30 * time.Second

// version is the only supported version of the protocol. All clients since 2007 support it.
const version = "RFB 003.008\n"

func serveViewer(viewer net.Conn, socket string, password []byte) error {
	_ = viewer.SetDeadline(time.Now().Add(handshakeTime))
	if err := authenticate(viewer, password); err != nil {
		return err
	}
	server, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(handshakeTime))
	if err := connect(server); err != nil {
		return err
	}
	_ = viewer.SetDeadline(time.Time{})
	_ = server.SetDeadline(time.Time{})
	splice(viewer, server)
	return nil
}

// splice copies in both directions until one side ends.
func splice(a, b net.Conn) {
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		both.Go(func() {
			_, _ = io.Copy(pair[0], pair[1])
			a.Close()
			b.Close()
		})
	}
	both.Wait()
}

// Security types of the protocol.
const (
	withoutPassword = 1
	withPassword    = 2
)

// authenticate checks the password of a viewer, if there is one.
func authenticate(viewer io.ReadWriter, password []byte) error {
	if _, err := io.WriteString(viewer, version); err != nil {
		return err
	}
	theirs := make([]byte, len(version))
	if _, err := io.ReadFull(viewer, theirs); err != nil {
		return err
	}
	if string(theirs) != version {
		return errors.New("the viewer uses another protocol version")
	}
	kind := byte(withoutPassword)
	if password != nil {
		kind = withPassword
	}
	if _, err := viewer.Write([]byte{1, kind}); err != nil {
		return err
	}
	chosen := make([]byte, 1)
	if _, err := io.ReadFull(viewer, chosen); err != nil {
		return err
	}
	if chosen[0] != kind {
		return errors.New("the viewer selected another security type")
	}
	if password != nil && !checkPassword(viewer, password) {
		const why = "Authentication failed"
		refusal := binary.BigEndian.AppendUint32([]byte{0, 0, 0, 1}, uint32(len(why)))
		_, err := viewer.Write(append(refusal, why...))
		return errors.Join(errors.New("wrong password"), err)
	}
	_, err := viewer.Write([]byte{0, 0, 0, 0})
	return err
}

// checkPassword sends a challenge to a viewer and checks the response.
func checkPassword(viewer io.ReadWriter, password []byte) bool {
	challenge := make([]byte, 16)
	rand.Read(challenge)
	if _, err := viewer.Write(challenge); err != nil {
		return false
	}
	answer := make([]byte, len(challenge))
	if _, err := io.ReadFull(viewer, answer); err != nil {
		return false
	}
	return subtle.ConstantTimeCompare(answer, encrypt(reverseBits(password), challenge)) == 1
}

// reverseBits returns the key of a password: VNC reverses the bits of each byte.
func reverseBits(password []byte) []byte {
	key := make([]byte, passwordSize)
	for i := range min(len(password), passwordSize) {
		key[i] = bits.Reverse8(password[i])
	}
	return key
}

func encrypt(key, text []byte) []byte {
	block, err := des.NewCipher(key) //nolint:gosec // as above
	if err != nil {
		return nil // the key always has the right size
	}
	out := make([]byte, len(text))
	for i := 0; i+passwordSize <= len(text); i += passwordSize {
		block.Encrypt(out[i:], text[i:])
	}
	return out
}

// connect completes the handshake with the display's server, which requires no password.
func connect(server io.ReadWriter) error {
	theirs := make([]byte, len(version))
	if _, err := io.ReadFull(server, theirs); err != nil {
		return err
	}
	if _, err := io.WriteString(server, version); err != nil {
		return err
	}
	count := make([]byte, 1)
	if _, err := io.ReadFull(server, count); err != nil {
		return err
	}
	kinds := make([]byte, count[0])
	if _, err := io.ReadFull(server, kinds); err != nil {
		return err
	}
	if !slices.Contains(kinds, withoutPassword) {
		return errors.New("the display's server requires a password")
	}
	if _, err := server.Write([]byte{withoutPassword}); err != nil {
		return err
	}
	result := make([]byte, 4)
	if _, err := io.ReadFull(server, result); err != nil {
		return err
	}
	if result[3] != 0 {
		return errors.New("the display's server refused the connection")
	}
	return nil
}

// storePassword writes a password to a file in the format of VNC programs.
func storePassword(password, path string) error {
	if password == "" {
		return errors.New("the password is empty")
	}
	plain := make([]byte, passwordSize)
	copy(plain, password)
	return os.WriteFile(path, encrypt(reverseBits(fileKey), plain), 0o600)
}

func loadPassword(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the password: %w; store one with x11vnc -storepasswd", err)
	}
	if len(b) < passwordSize {
		return nil, fmt.Errorf("no password in %s", path)
	}
	block, err := des.NewCipher(reverseBits(fileKey)) //nolint:gosec // as above
	if err != nil {
		return nil, err
	}
	plain := make([]byte, passwordSize)
	block.Decrypt(plain, b)
	return plain, nil
}
