package peer

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// dialVariable makes this test program a client that keeps one connection open until its
// input ends, so that tests can connect as another user.
const dialVariable = "PEER_TEST_DIAL"

func TestMain(m *testing.M) {
	if address := os.Getenv(dialVariable); address != "" {
		c, err := net.Dial("tcp", address)
		if err != nil {
			panic(err)
		}
		if os.Getenv(dialVariable+"_CLOSE") != "" {
			c.Close()
		}
		os.Stdout.WriteString("connected\n")
		io.Copy(io.Discard, os.Stdin)
		return
	}
	testenv.Main(m)
}

// pair returns both ends of a connection.
func pair(t *testing.T, listen, dial string) (server, client net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	client, err = net.Dial("tcp", net.JoinHostPort(dial, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	return server, client
}

func TestOwnConnections(t *testing.T) {
	t.Parallel()
	for _, at := range [][2]string{{"127.0.0.1:0", "127.0.0.1"}, {"[::1]:0", "::1"}, {"[::]:0", "127.0.0.1"},
		{":0", "::1"}, {"127.3.2.1:0", "127.3.2.1"}} {
		server, _ := pair(t, at[0], at[1])
		if uid, err := User(server); uid != os.Getuid() || err != nil {
			t.Errorf("%v: got user %d and error %v, want %d", at, uid, err, os.Getuid())
		}
		from, to := plain(server.RemoteAddr().(*net.TCPAddr)), plain(server.LocalAddr().(*net.TCPAddr))
		if uid, err := readTables(from, to, false); uid != os.Getuid() || err != nil {
			t.Errorf("%v, by table: got user %d and error %v, want %d", at, uid, err, os.Getuid())
		}
	}
}

// A half-closed connection has an owner. A closed connection has none, and must not be
// attributed to root.
func TestClosedConnectionsHaveNoOwner(t *testing.T) {
	t.Parallel()
	server, client := pair(t, "127.0.0.1:0", "127.0.0.1")
	client.(*net.TCPConn).CloseWrite()
	if uid, err := User(server); uid != os.Getuid() || err != nil {
		t.Errorf("half closed: got user %d and error %v, want %d", uid, err, os.Getuid())
	}
	client.Close()
	// A program that another test starts holds the socket until it is executed.
	testenv.Poll(t, "a closed connection has no owner", func() bool {
		_, err := User(server)
		return errors.Is(err, ErrUnknown)
	})
	from, to := plain(server.RemoteAddr().(*net.TCPAddr)), plain(server.LocalAddr().(*net.TCPAddr))
	if uid, err := readTables(from, to, false); !errors.Is(err, ErrUnknown) {
		t.Errorf("closed, by table: got user %d and error %v, want ErrUnknown", uid, err)
	}
}

func TestOtherUsers(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for _, closes := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{dialVariable + "=" + l.Addr().String()}
		if closes {
			cmd.Env = append(cmd.Env, dialVariable+"_CLOSE=1")
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
			t.Fatalf("got %q and error %v, want the client to connect", line, err)
		}
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		uid, err := User(c)
		if closes && !errors.Is(err, ErrUnknown) || !closes && (uid != 65534 || err != nil) {
			t.Errorf("closed %v: got user %d and error %v, want 65534, or ErrUnknown once it is closed", closes, uid, err)
		}
		c.Close()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// dialAs connects as another user, in a process that keeps the connection until the returned
// function is called.
func dialAs(t *testing.T, uid uint32, address string) (end func()) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{dialVariable + "=" + address}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "connected\n" {
		t.Fatalf("got %q and error %v, want the client to connect", line, err)
	}
	return func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

func TestGuardClosesOtherUsers(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	for _, c := range []struct {
		users []int
		uid   uint32
		ok    bool
	}{{nil, 65534, false}, {[]int{65533}, 65534, false}, {[]int{65534}, 65534, true}, {nil, 0, true}} {
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l := Guard(inner, c.users, slog.New(slog.DiscardHandler))
		end := dialAs(t, c.uid, l.Addr().String())
		own, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		accepted, err := l.Accept() // the other user's first, if it is admitted
		if err != nil {
			t.Fatal(err)
		}
		if ours := accepted.RemoteAddr().String() == own.LocalAddr().String(); ours == c.ok {
			t.Errorf("user %d with %v: admitted %v, want %v", c.uid, c.users, !ours, c.ok)
		}
		accepted.Close()
		own.Close()
		end()
		inner.Close()
	}
}

// A connection that was reset has no owner, even if another user listens at its address. Its
// data can still be read.
func TestListenerIsNotTheOwnerOfAConnection(t *testing.T) {
	t.Parallel()
	server, client := pair(t, "127.0.0.1:0", "127.0.0.1")
	address := client.LocalAddr().String()
	client.(*net.TCPConn).SetLinger(0)
	client.Close()
	var l net.Listener
	testenv.Poll(t, "the address is free", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", address)
		return err == nil
	})
	defer l.Close()
	if uid, err := User(server); !errors.Is(err, ErrUnknown) {
		t.Errorf("got user %d and error %v, want ErrUnknown", uid, err)
	}
}

// A client determines the user of its server before and after the connection is accepted.
func TestServerHasAUser(t *testing.T) {
	t.Parallel()
	for _, at := range [][2]string{{"127.0.0.1:0", "127.0.0.1"}, {"[::1]:0", "::1"}, {"[::]:0", "127.0.0.1"}, {"0.0.0.0:0", "127.0.0.1"}} {
		l, err := net.Listen("tcp", at[0])
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		_, port, _ := net.SplitHostPort(l.Addr().String())
		c, err := net.Dial("tcp", net.JoinHostPort(at[1], port))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		from, to, _ := ends(c)
		for _, state := range []string{"waiting", "accepted"} {
			if uid, err := Server(c); uid != os.Getuid() || err != nil {
				t.Errorf("%v, %s: got user %d and error %v, want %d", at, state, uid, err, os.Getuid())
			}
			if uid, err := readTables(from, to, state == "waiting"); uid != os.Getuid() || err != nil {
				t.Errorf("%v, %s, by table: got user %d and error %v, want %d", at, state, uid, err, os.Getuid())
			}
			if state == "waiting" {
				s, err := l.Accept()
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
			}
		}
	}
}

func TestServerOfAUnixSocket(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if uid, err := Server(c); uid != os.Getuid() || err != nil {
		t.Errorf("got user %d and error %v, want %d", uid, err, os.Getuid())
	}
}

func TestPipesHaveNoUser(t *testing.T) {
	t.Parallel()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if uid, err := User(a); err == nil {
		t.Errorf("got user %d, want an error", uid)
	}
}

func TestForgedReplies(t *testing.T) {
	t.Parallel()
	for name, b := range map[string][]byte{"empty": nil, "short": make([]byte, 19),
		"cut": request(at("127.0.0.1:1"), at("127.0.0.1:2"))[:60], "zeros": make([]byte, 200)} {
		if uid, err := parse(b, false); err == nil {
			t.Errorf("%s: got user %d, want an error", name, uid)
		}
	}
	table := "header\n 0: " + cell(at("127.0.0.1:8080"), false) + " " + cell(at("127.0.0.1:9"), false) +
		" 01 00000000:00000000 00:00000000 00000000 %USER 0 77 1\n"
	for user, want := range map[string]int{"65534": 65534, "0": 0, "-1": -1, "x": -1, "99999999999": -1} {
		uid, err := scan(strings.NewReader(strings.ReplaceAll(table, "%USER", user)),
			func(f []string) bool { return f[1] == cell(at("127.0.0.1:8080"), false) })
		if (err == nil) != (want >= 0) || err == nil && uid != want {
			t.Errorf("user %q: got %s and error %v, want %d", user, strconv.Itoa(uid), err, want)
		}
	}
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
