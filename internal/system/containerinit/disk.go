package containerinit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/diskcopy"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// disk copies the disk of this container for the hub.
type disk struct {
	hold   bool // nothing runs here
	copy   *diskcopy.Disk
	filled chan struct{} // closed when the disk is filled
	home   *os.File      // nil: it could not be opened

	mu   sync.Mutex // held while the disk is read or written
	once bool       // the disk has been filled
}

// open remembers the time: what changes from now on is the sandbox's.
func (d *disk) open() (err error) {
	d.home, _ = os.Open(isolate.Home) // now: programs may close it for its owner
	d.copy, err = diskcopy.New(isolate.Home)
	return err
}

// save writes a copy while everything else inside is suspended, so that nothing is in it in part. If the hub
// goes away, writing fails, and all goes on.
func (d *disk) save(w io.Writer) error {
	if !d.mu.TryLock() {
		return errors.New("the disk is being copied already")
	}
	defer d.mu.Unlock()
	if !d.hold {
		resume, err := proc.SuspendOthers()
		if err != nil {
			return err
		}
		defer resume()
	}
	return d.copy.Save(w)
}

// suspend stops everything else inside, with what it has written in the home on its storage, until resume. Someone else copies the
// home meanwhile.
func (d *disk) suspend() (resume func(), err error) {
	if !d.mu.TryLock() {
		return nil, errors.New("the disk is being copied already")
	}
	resume = sync.OnceFunc(d.mu.Unlock)
	// What is much to write is written while programs still run.
	if err = d.syncHome(); err == nil && !d.hold {
		var goOn func()
		if goOn, err = proc.SuspendOthers(); err == nil {
			resume = sync.OnceFunc(func() { goOn(); d.mu.Unlock() })
			err = d.syncHome()
		}
	}
	if err != nil {
		resume()
		return nil, err
	}
	return resume, nil
}

// syncTime bounds the wait for a storage that does not answer: programs go on without a copy.
const syncTime = 2 * time.Minute

// syncHome writes what the kernel still has of the home to its storage.
func (d *disk) syncHome() error {
	if d.home == nil {
		return errors.New("the home cannot be opened")
	}
	done := make(chan error, 1)
	go func() { done <- unix.Syncfs(int(d.home.Fd())) }()
	select {
	case err := <-done:
		return err
	case <-time.After(syncTime):
		return fmt.Errorf("the home was not written to its storage in %v", syncTime)
	}
}

// fill makes the disk that of a copy, once in its life. If it fails, the hub is told why, and removes the container.
func (d *disk) fill(r io.Reader) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.once {
		return errors.New("the disk has been filled already")
	}
	d.once = true
	if err := d.copy.Restore(r); err != nil {
		return err
	}
	close(d.filled)
	return nil
}

// waitForEnd returns when the container is to end.
func waitForEnd() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	<-signals
}
