package outbound

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/egress"
)

// testSockets: sockets behave like direct ones, except for the address.
func testSockets(o *outside) {
	o.listen(7, func(c net.Conn) { _, _ = io.Copy(c, c) })
	o.setPort(8, silent)
	o.serve(egress.Config{}, "*.ok.test:7", "*.ok.test:8", "*.ok.test:9")
	own := ""
	if o.Kernel {
		own = "kernel"
	}
	if out := o.must("/usr/bin/python3 - " + own + " 2>&1 <<'E'\n" + socketScript + "E\n"); out != "ok\n" {
		o.Errorf("got %q, want %q", out, "ok\n")
	}
}

// socketScript checks what programs observe of their sockets.
const socketScript = `
import errno, fcntl, os, select, signal, socket, sys, threading
def check(got, want):
    if got != want: raise SystemExit(f"got {got}, want {want}")
ok = socket.gethostbyname("echo.ok.test")
check(socket.gethostbyaddr(ok)[0], "echo.ok.test")
for family, to in (socket.AF_INET, (ok, 7)), (socket.AF_INET6, ("::ffff:" + ok, 7)):
    # Blocking.
    s = socket.socket(family)
    s.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    s.connect(to)
    check(s.getsockopt(socket.SOL_TCP, socket.TCP_NODELAY), 1)
    check(s.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)
    check(s.getsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO), 0)
    check(fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK, 0)
    check(fcntl.fcntl(s, fcntl.F_GETFD), fcntl.FD_CLOEXEC)
    check(len(s.getpeername()), 2 if family == socket.AF_INET else 4)
    check(s.connect_ex(to), errno.EISCONN)
    s.sendall(b"hello\n"); s.shutdown(socket.SHUT_WR)
    check(s.recv(9), b"hello\n"); check(s.recv(9), b"")
    # Non-blocking: nothing is ready until the hub is connected, and a refusal is reported once.
    for port, want in (7, 0), (9, errno.ECONNREFUSED):
        s = socket.socket(family); s.setblocking(False)
        e = select.epoll(); e.register(s, select.EPOLLOUT)
        now = s.connect_ex(to[:1] + (port,))
        if want and now == want: continue # the hub was faster
        check(now, errno.EINPROGRESS)
        # After a refusal, the kernel can report the error before it reports that the socket is writable.
        ready = select.EPOLLOUT | (select.EPOLLERR if want else 0)
        check([bool(x[1] & ready) for x in e.poll(60)], [True])
        error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if want and error == errno.ECONNRESET: continue # see abort in package referee: the refusal follows
        check(error, want)
        check(s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR), 0)
    s = socket.socket(family); s.setblocking(False)
    e = select.epoll(); e.register(s, select.EPOLLOUT)
    check(s.connect_ex(to[:1] + (8,)), errno.EINPROGRESS)
    check(e.poll(0.2), [])
    check(s.connect_ex(to[:1] + (8,)), errno.EALREADY)
    s.close()
    check(s.fileno(), -1); check(e.poll(0.2), [])
    # A port that the rules deny, or that does not answer, fails at once.
    s = socket.socket(family); s.setblocking(False)
    error = s.connect_ex(to[:1] + (10,))
    if error == errno.EINPROGRESS: # the hub is busy, and the refusal follows
        select.select([], [s], [], 60)
        error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error != errno.ECONNRESET: check(error, errno.ECONNREFUSED)
    s = socket.socket(family)
    error = s.connect_ex(to[:1] + (9,))
    if not (sys.argv[1:] and error == errno.ECONNRESET): check(error, errno.ECONNREFUSED) # gVisor polls, see above
    s = s if error == errno.ECONNREFUSED else socket.socket(family)
    s.connect(to) # and the socket is still usable
# A bound socket keeps its port.
s = socket.socket(); s.bind(("", 0)); port = s.getsockname()[1]; s.connect((ok, 7)); check(s.getsockname()[1], port)
# A timeout and a signal interrupt a connect that blocks.
s = socket.socket(); s.settimeout(0.2)
try: s.connect((ok, 8)); check("connected", "a timeout")
except TimeoutError: pass
class Alarm(Exception): pass
def ring(*_): raise Alarm
signal.signal(signal.SIGALRM, ring); signal.setitimer(signal.ITIMER_REAL, 0.2)
s = socket.socket()
try: s.connect((ok, 8)); check("connected", "a signal")
except Alarm: pass
# Signals after which calls are repeated do not. GVisor repeats a connect without regard to its first result.
signal.signal(signal.SIGALRM, lambda *_: None); signal.siginterrupt(signal.SIGALRM, False)
if not sys.argv[1:]: signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(20):
    s = socket.socket(); s.connect((ok, 7)); s.sendall(b"x\n"); check(s.recv(1), b"x")
signal.setitimer(signal.ITIMER_REAL, 0)
# Many at once.
many = [socket.socket() for _ in range(200)]
for s in many: s.setblocking(False); check(s.connect_ex((ok, 7)), errno.EINPROGRESS)
for s in many: s.settimeout(60); s.sendall(b"x\n")
for s in many: check(s.recv(1), b"x")
# Unix sockets and servers inside do not concern the hub.
a = socket.create_server(("127.0.0.1", 0)); socket.create_connection(a.getsockname()).close()
try: socket.create_connection(("127.0.0.1", 1))
except ConnectionRefusedError: pass
a = socket.create_server(("127.0.0.1", 0)); c = socket.create_connection(a.getsockname()); s = a.accept()[0]
c.close(); check(s.recv(1), b"")
# The port of a socket that was closed is free.
s = socket.socket(); s.bind(("127.0.0.1", 0)); free = s.getsockname(); s.close()
s = socket.socket(); s.bind(free); s.listen(); s.close()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(free); s.close()
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(free); s.sendto(b"x", free); check(s.recv(1), b"x")
u = socket.socket(socket.AF_UNIX); u.bind("/tmp/s"); u.listen()
socket.socket(socket.AF_UNIX).connect("/tmp/s")
print("ok")
`

// testMany: a program can have 10,000 open connections, and open them faster than the hub admits them.
func testMany(o *outside) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		o.Fatal(err)
	}
	inside, err := strconv.Atoi(strings.TrimSpace(o.must("ulimit -Hn | sed s/unlimited/1000000/")))
	if err != nil {
		o.Fatal(err)
	}
	n := min(testenv.Times(2000, 10_000), (int(files.Cur)-2000)/filesPerConnection, inside-100)
	o.Logf("%d connections", n)
	o.listen(7, func(c net.Conn) { _, _ = io.Copy(c, c) })
	o.serve(egress.Config{}, "*.ok.test:7")
	if out := o.must(fmt.Sprintf("/usr/bin/python3 - %d 2>&1 <<'E'\n", n) + manyScript + "E\n"); out != "ok\n" {
		o.Errorf("got %q, want %q", out, "ok\n")
	}
}

// filesPerConnection are those of this process, which has the proxy, the server and, for some providers, a tunnel: sockets, and
// pipes to copy with.
const filesPerConnection = 16

// raiseFiles raises the maximum number of open files of this process, and of those that it starts, if it may.
func raiseFiles(t *testing.T) {
	t.Helper()
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		t.Fatal(err)
	}
	const want = 200_000
	_ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: max(want, now.Cur), Max: max(want, now.Max)}) // requires root
}

const manyScript = `
import errno, resource, socket, sys
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
to = socket.gethostbyname("echo.ok.test"), 7
many = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in many:
    s.setblocking(False)
    if (e := s.connect_ex(to)) != errno.EINPROGRESS: raise SystemExit(errno.errorcode[e])
for s in many: s.settimeout(300); s.sendall(b"x\n")
for s in many:
    if s.recv(1) != b"x": raise SystemExit("closed")
print("ok")
`
