package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sendMany sends with sendmmsg.
func sendMany(fd int, to *unix.SockaddrInet4) error {
	addr := unix.RawSockaddrInet4{Family: unix.AF_INET, Port: uint16(to.Port>>8 | to.Port<<8), Addr: to.Addr}
	data := []byte("x")
	part := unix.Iovec{Base: &data[0]}
	part.SetLen(1)
	type message struct {
		unix.Msghdr
		sent uint32
	}
	list := make([]message, 2)
	for i := range list {
		list[i].Name, list[i].Namelen, list[i].Iov = (*byte)(unsafe.Pointer(&addr)), unix.SizeofSockaddrInet4, &part
		list[i].SetIovlen(1)
	}
	if _, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(&list[0])), 2, 0, 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// passed tries sockets that one process passes to another, or replaces while they connect.
func passed() []attempt {
	return []attempt{
		{"socket passed to another process", func() error { return withSocket(passSocket) }},
		{"socket passed after a connect to an allowed host", func() error {
			return withSocket(func(fd int) error {
				ips, err := net.LookupHost("web.ok.test")
				if err != nil {
					return err
				}
				if err := connectFD(fd, netip.AddrPortFrom(netip.MustParseAddr(ips[0]), 80)); err != nil {
					return nil // the attempt proves nothing
				}
				return passSocket(fd)
			})
		}},
		{"changing descriptor", flipDescriptor},
	}
}

// passSocket lets another process connect a socket.
func passSocket(fd int) error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pair[0])
	theirs := os.NewFile(uintptr(pair[1]), "")
	defer theirs.Close()
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fd), nil, 0); err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "receive", outsideAddr.String())
	cmd.ExtraFiles = []*os.File{theirs}
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	if text := strings.TrimSpace(string(out)); text != "REACHED" {
		return errors.New(text)
	}
	return nil
}

// receive connects a socket that another process passes over descriptor 3.
func receive(to netip.AddrPort) error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(3, make([]byte, 1), oob, 0)
	if err != nil {
		return err
	}
	list, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(list) != 1 {
		return errors.Join(errHeld, err)
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil {
		return err
	}
	return connectFD(fds[0], to)
}

// flipDescriptor connects to an allowed host while another thread replaces the descriptor. The hub records what was reached.
func flipDescriptor() error {
	ips, err := net.LookupHost("web.ok.test")
	if err != nil {
		return err
	}
	allowed := netip.AddrPortFrom(netip.MustParseAddr(ips[0]), 80)
	kinds := []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_STREAM | unix.SOCK_NONBLOCK}
	var stop atomic.Bool
	defer stop.Store(true)
	return withSocket(func(fd int) error {
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; !stop.Load(); i++ {
				if other, err := unix.Socket(unix.AF_INET, kinds[i%len(kinds)], 0); err == nil {
					unix.Dup3(other, fd, 0)
					unix.Close(other)
				}
			}
		}()
		for i := range 200 {
			to := allowed
			if i%2 == 1 {
				to = outsideAddr
			}
			connectFD(fd, to)
		}
		stop.Store(true)
		<-done
		return errHeld
	})
}

// secured tries to reach other names over TLS connections to an allowed name.
func secured() []attempt {
	connect := func(cfg *tls.Config) error {
		d := net.Dialer{Timeout: patience}
		raw, err := d.Dial("tcp", "web.ok.test:443")
		if err != nil {
			return err
		}
		defer raw.Close()
		raw.SetDeadline(time.Now().Add(patience))
		c := tls.Client(raw, cfg)
		return c.Handshake()
	}
	control := func() error {
		if err := connect(&tls.Config{ServerName: "web.ok.test", InsecureSkipVerify: true}); err != nil {
			return fmt.Errorf("an allowed name: %w", err)
		}
		return nil
	}
	foreign := func(cfg *tls.Config) func() error {
		return func() error {
			if err := control(); err != nil {
				fmt.Println(err) // a line without a result is an error of the test
			}
			return connect(cfg)
		}
	}
	return []attempt{
		{"foreign server name", foreign(&tls.Config{ServerName: "bad.test", InsecureSkipVerify: true})},
		{"no server name", foreign(&tls.Config{InsecureSkipVerify: true})},
		{"foreign outer server name", foreign(&tls.Config{ServerName: "web.ok.test", MinVersion: tls.VersionTLS13,
			EncryptedClientHelloConfigList: echConfig("bad.test")})},
	}
}

// echConfig returns a list of one configuration for an encrypted ClientHello with a public name.
func echConfig(public string) []byte {
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	pub := key.PublicKey().Bytes()
	short := binary.BigEndian.AppendUint16
	body := short([]byte{1}, 0x20) // its ID, and DHKEM(X25519, HKDF-SHA256)
	body = append(short(body, uint16(len(pub))), pub...)
	body = short(short(short(body, 4), 1), 1) // one suite: HKDF-SHA256, AES-128-GCM
	body = append(append(append(body, 0), byte(len(public))), public...)
	body = short(body, 0) // no extensions
	one := append(short(short(nil, 0xfe0d), uint16(len(body))), body...)
	return append(short(nil, uint16(len(one))), one...)
}
