package app

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/cove-sandbox/cove/internal/app/host"
)

const (
	// maxLog is the size at which the log file of a service is rotated.
	maxLog = 10 << 20
	// olderLogs is the number of rotated files of a service that are kept.
	olderLogs = 1
)

// logDir is a folder of log files, one for each service. A file is opened at its first record.
type logDir struct {
	path string

	mu     sync.Mutex
	files  map[string]*serviceLog
	closed bool
}

// newLogDir returns the folder. It has no side effects.
func newLogDir(path string) *logDir { return &logDir{path: path, files: map[string]*serviceLog{}} }

// create creates the folder and reports whether files can be written to it.
func (d *logDir) create() error {
	err := os.MkdirAll(d.path, 0o755)
	if err == nil {
		var probe *os.File
		if probe, err = os.CreateTemp(d.path, ".probe-"); err == nil {
			probe.Close()
			os.Remove(probe.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write log files to %q: %w; set LOG_DIR to a folder that this user can write to", d.path, err)
	}
	return nil
}

// writer returns the file of a service. Each Write should be a complete line.
func (d *logDir) writer(service string) io.Writer {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := d.files[service]
	if f == nil {
		f = &serviceLog{dir: d, path: filepath.Join(d.path, service+".log")}
		d.files[service] = f
	}
	return f
}

// close closes the files. Later records are dropped.
func (d *logDir) close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	var errs []error
	for _, f := range d.files {
		if f.file != nil {
			errs = append(errs, f.file.Close())
		}
	}
	return errors.Join(errs...)
}

// serviceLog is the log of one service. The lock of its folder guards it.
type serviceLog struct {
	dir  *logDir
	path string
	file *host.LogFile // nil before the first record
}

// Write appends to the file. It always reports success, because a log that cannot be written, for
// example on a full disk, must not stop the service.
func (f *serviceLog) Write(b []byte) (int, error) {
	f.dir.mu.Lock()
	defer f.dir.mu.Unlock()
	if f.file == nil && !f.dir.closed {
		f.file, _ = host.OpenLogFile(f.path, maxLog, olderLogs) // retried with the next record
	}
	if f.file != nil && !f.dir.closed {
		_, _ = f.file.Write(b)
	}
	return len(b), nil
}
