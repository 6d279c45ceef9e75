package isolate

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// A socket, of whatever kind, belongs to the network namespace that it was made in,
// and answers questions about its interfaces; and one that a server accepts belongs
// to that of whoever connected. So what reaches the inside is made in a namespace
// that has nothing.

// netNamespaces are those of threads that make sockets; both are nil where that is
// not allowed, as without root.
type netNamespaces struct{ own, none *os.File }

var netSpaces = sync.OnceValue(func() (n netNamespaces) {
	onThread(func() {
		own, err := os.Open("/proc/thread-self/ns/net")
		if err != nil || unix.Unshare(unix.CLONE_NEWNET) != nil {
			return
		}
		if none, err := os.Open("/proc/thread-self/ns/net"); err == nil {
			n = netNamespaces{own, none}
		}
	})
	return n
})

// netless runs f, which makes a socket, in a namespace that has no network. Without
// root it just runs f.
func netless(f func()) {
	n := netSpaces()
	if n.none == nil {
		f()
		return
	}
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		runtime.LockOSThread()
		if unix.Setns(int(n.none.Fd()), unix.CLONE_NEWNET) != nil {
			runtime.UnlockOSThread()
			f()
			return
		}
		f()
		if unix.Setns(int(n.own.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		} // else it is still locked, and the thread ends
	}()
	<-ran
}
