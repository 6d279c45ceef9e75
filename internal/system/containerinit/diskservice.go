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

	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// diskService copies the disk of this container for the hub.
type diskService struct {
	hold   bool // no program runs
	disk   *disk
	filled chan struct{} // closed when the disk is filled
	home   *os.File      // nil if it could not be opened

	mu   sync.Mutex // held while the disk is read or written
	used bool       // fill has been called
}

// open records the time: all later changes are the sandbox's.
func (d *diskService) open() (err error) {
	d.home, _ = os.Open(isolate.Home) // early: programs may remove its permissions
	d.disk, err = newDisk(isolate.Home)
	return err
}

// save writes a copy while all other processes inside are suspended, so that the copy is consistent. If the
// hub disconnects, writing fails and the processes resume.
func (d *diskService) save(w io.Writer) error {
	if !d.mu.TryLock() {
		return errors.New("the disk is already being copied")
	}
	defer d.mu.Unlock()
	if !d.hold {
		resume, err := proc.SuspendOthers()
		if err != nil {
			return err
		}
		defer resume()
	}
	return d.disk.save(w)
}

// suspend stops all other processes inside until resume, with the home synced to its storage. The storage
// copies the home meanwhile.
func (d *diskService) suspend() (resume func(), err error) {
	if !d.mu.TryLock() {
		return nil, errors.New("the disk is already being copied")
	}
	resume = sync.OnceFunc(d.mu.Unlock)
	// Sync first while programs still run, so that they are suspended for a short time only.
	if err = d.syncHome(); err == nil && !d.hold {
		var resumeOthers func()
		if resumeOthers, err = proc.SuspendOthers(); err == nil {
			resume = sync.OnceFunc(func() { resumeOthers(); d.mu.Unlock() })
			err = d.syncHome()
		}
	}
	if err != nil {
		resume()
		return nil, err
	}
	return resume, nil
}

// syncTimeout bounds the wait for a storage that does not respond: programs resume without a copy.
const syncTimeout = 2 * time.Minute

// syncHome writes the cached changes of the home to its storage.
func (d *diskService) syncHome() error {
	if d.home == nil {
		return errors.New("sync the home: it could not be opened")
	}
	done := make(chan error, 1)
	go func() { done <- unix.Syncfs(int(d.home.Fd())) }()
	select {
	case err := <-done:
		return err
	case <-time.After(syncTimeout):
		return fmt.Errorf("sync the home: its storage did not respond in %v", syncTimeout)
	}
}

// fill restores the disk from a copy, once per container. If it fails, the hub receives the error and
// removes the container.
func (d *diskService) fill(r io.Reader) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.used {
		return errors.New("the disk is already filled")
	}
	d.used = true
	if err := d.disk.restore(r); err != nil {
		return err
	}
	close(d.filled)
	return nil
}

// waitForEnd returns when the container must end.
func waitForEnd() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	<-signals
}
