package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"
)

// verbs are what the probe does instead of attempts, by the first argument.
var verbs = map[string]func(args []string) error{
	"measure": measure,
	"child": func(args []string) error {
		fmt.Println(errText(connectFD(3, netip.MustParseAddrPort(args[0]))))
		return nil
	},
	"receive": func(args []string) error {
		fmt.Println(errText(receive(netip.MustParseAddrPort(args[0]))))
		return nil
	},
	"get":     get,
	"lookup":  lookup,
	"serve":   serve,
	"respond": respond,
	"root":    root,
}

// root runs a command as root, if this file is setuid.
func root(args []string) error {
	for _, set := range []func(int) error{unix.Setgid, unix.Setuid} {
		if err := set(0); err != nil {
			return err
		}
	}
	return unix.Exec(args[0], args, os.Environ())
}

// measure prints the median time of a connect in microseconds, and the throughput of one connection in MB/s.
func measure(args []string) error {
	var times []time.Duration
	for range 300 {
		began := time.Now()
		c, err := net.Dial("tcp", args[0])
		if err != nil {
			return err
		}
		times = append(times, time.Since(began))
		c.Close()
	}
	slices.Sort(times)
	c, err := net.Dial("tcp", args[0])
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Write([]byte("hi\n")); err != nil {
		return err
	}
	began, n, buf := time.Now(), 0, make([]byte, 1<<20)
	for {
		got, err := c.Read(buf)
		n += got
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	fmt.Println(times[len(times)/2].Microseconds(), int(float64(n)/1e6/time.Since(began).Seconds()))
	return nil
}

// get prints a page.
func get(args []string) error {
	resp, err := http.Get(args[0])
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

// lookup prints the address of a name. Like musl, it sends queries from a socket that is not connected, to the resolver of
// /etc/resolv.conf.
func lookup(args []string) error {
	conf, err := os.ReadFile("/etc/resolv.conf")
	if err != nil {
		return err
	}
	_, server, _ := strings.Cut(string(conf), "nameserver ")
	server, _, _ = strings.Cut(server, "\n")
	to, err := netip.ParseAddr(strings.TrimSpace(server))
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{}); err != nil {
		return err
	}
	query := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(args[0] + "."), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}}}
	packed, err := query.Pack()
	if err != nil {
		return err
	}
	if err := unix.Sendto(fd, packed, 0, &unix.SockaddrInet4{Port: 53, Addr: to.As4()}); err != nil {
		return err
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)})
	buf := make([]byte, 512)
	n, from, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return err
	}
	if f, ok := from.(*unix.SockaddrInet4); !ok || f.Addr != to.As4() || f.Port != 53 {
		return fmt.Errorf("the response is from %+v", from) // musl ignores it
	}
	if err := query.Unpack(buf[:n]); err != nil {
		return err
	}
	if len(query.Answers) == 0 {
		return fmt.Errorf("code %v", query.RCode)
	}
	fmt.Println(netip.AddrFrom4(query.Answers[0].Body.(*dnsmessage.AResource).A))
	return nil
}

// serve starts a server in the background, and prints its addresses.
func serve([]string) error {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		return err
	}
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", "respond")
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			fmt.Println(net.JoinHostPort(n.IP.String(), port))
		}
	}
	return nil
}

// respond accepts connections of the inherited socket.
func respond([]string) error {
	l, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		c.Close()
	}
}
