package e2e

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// exhaustInotify allocates all inotify instances and watches that the kernel grants to a program in the sandbox, and keeps them.
const exhaustInotify = `cat > /tmp/flood.py <<'P'
import ctypes, os, resource, time
libc = ctypes.CDLL(None, use_errno=True)
h = resource.getrlimit(resource.RLIMIT_NOFILE)[1]; resource.setrlimit(resource.RLIMIT_NOFILE, (h, h))
fds = []
while len(fds) < 60000 and (fd := libc.inotify_init()) >= 0: fds.append(fd)
watches, n = 0, 0
os.makedirs("/tmp/w", exist_ok=True)
while watches < 400000:
    p = f"/tmp/w/{n}"; n += 1
    os.mkdir(p)
    if libc.inotify_add_watch(fds[0], p.encode(), 0xfff) < 0: break
    watches += 1
open("/tmp/done", "w").write(f"{len(fds)} {watches}")
time.sleep(100000)
P
setsid python3 /tmp/flood.py > /tmp/flood.log 2>&1 &
while ! [ -e /tmp/done ]; do sleep 0.1; kill -0 $! || break; done; cat /tmp/done /tmp/flood.log`

// TestWideInotifyExhausted: a program that exhausts its inotify instances and watches does not affect
// other sandboxes or the machine.
func TestWideInotifyExhausted(t *testing.T) {
	testenv.Long(t)
	// Not parallel: without a separate limit for each sandbox, the whole machine would run out.
	h := serveHub(t)
	h.must(t, "create", "evil")
	h.must(t, "create", "b")
	t.Logf("taken: %s", h.must(t, "exec", "evil", "--timeout", "110s", "--", exhaustInotify))
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Errorf("inotify on the machine: got %v, want no error", err)
	} else {
		defer unix.Close(fd)
		if _, err := unix.InotifyAddWatch(fd, os.TempDir(), unix.IN_CREATE); err != nil {
			t.Errorf("a watch on the machine: got %v, want no error", err)
		}
	}
	out := h.must(t, "exec", "b", "--",
		`cd; python3 -c 'import ctypes; l = ctypes.CDLL(None); f = l.inotify_init(); print(f >= 0 and l.inotify_add_watch(f, b".", 0xfff) >= 0)'`)
	if strings.TrimSpace(out) != "True" {
		t.Errorf("inotify in another sandbox: got %q, want True", out)
	}
}
