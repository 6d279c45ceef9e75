package container

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/cove-sandbox/cove/internal/diskcopy"
	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/proc"
)

// disk copies the disk of this container for the hub.
type disk struct {
	hold   bool // nothing runs here
	copy   *diskcopy.Disk
	filled chan struct{} // closed when the disk is filled

	mu   sync.Mutex // held while the disk is read or written
	once bool       // the disk has been filled
}

// open remembers the time: what changes from now on is the sandbox's.
func (d *disk) open() (err error) {
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
