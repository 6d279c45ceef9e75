package thread

import (
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// netNamespaces are those of threads that create sockets; both are nil if creating a
// namespace is not permitted, such as without root.
type netNamespaces struct{ own, none *os.File }

var netNamespace = sync.OnceValue(func() (n netNamespaces) {
	Run(func() {
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

// WithoutNetwork runs f, which creates a socket, in a network namespace without interfaces.
// Without root it just runs f.
//
// Every socket belongs to the network namespace in which it was created, and reveals the
// interfaces there; an accepted socket belongs to the namespace of the client. So
// sockets that reach the inside must be created with WithoutNetwork.
func WithoutNetwork(f func()) {
	n := netNamespace()
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
