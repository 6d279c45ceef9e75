package proc

import (
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// handleIgnored handles and drops the signals that this process was started to ignore. Programs
// inherit ignored signals: without it, a server that was started with nohup, or
// in the background of a script, starts shells that neither SIGHUP nor SIGINT can end.
var handleIgnored = sync.OnceFunc(func() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
})
