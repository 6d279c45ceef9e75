package mem

import (
	"io/fs"
	"maps"
	"net"
	"net/http"
	"sync"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Disk contains the files of a sandbox, also while it is stopped.
type Disk struct {
	mu    sync.Mutex
	files map[string][]byte
}

// Read returns a file.
func (d *Disk) Read(name string) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	data, ok := d.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return append([]byte(nil), data...), nil
}

// Write replaces a file.
func (d *Disk) Write(name string, data []byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.files == nil {
		d.files = map[string][]byte{}
	}
	d.files[name] = append([]byte(nil), data...)
	return nil
}

// Remove deletes a file.
func (d *Disk) Remove(name string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.files[name]; !ok {
		return fs.ErrNotExist
	}
	delete(d.files, name)
	return nil
}

// copy returns the current files. Contents never change in place.
func (d *Disk) copy() map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.files)
}

// run is one run of a guest, from start to stop.
type run struct {
	guest  Guest
	server *http.Server
	served chan struct{} // closed when Serve has returned
	addr   string
	ended  chan struct{} // closed when the guest has ended by itself
	code   int           // valid after ended
	killed chan struct{} // closed by kill

	mu   sync.Mutex
	open chan struct{} // closed unless paused; each pause replaces it
}

func (p *Provider) startGuest(sb sandbox.Sandbox, disk *Disk) (*run, error) {
	l := &run{ended: make(chan struct{}), served: make(chan struct{}), killed: make(chan struct{}), open: make(chan struct{})}
	close(l.open)
	var once sync.Once
	guest, err := p.cfg.Run(sb, disk, func(code int) {
		once.Do(func() { l.code = code; close(l.ended) })
	})
	if err != nil {
		return nil, err
	}
	l.guest = guest
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		guest.Close()
		return nil, err
	}
	l.addr = lis.Addr().String()
	l.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-l.gate():
			guest.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})}
	go func() { defer close(l.served); l.server.Serve(lis) }()
	return l, nil
}

// gate is closed while requests may pass.
func (l *run) gate() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

func (l *run) pause() {
	l.mu.Lock()
	l.open = make(chan struct{})
	l.mu.Unlock()
	l.guest.Pause()
}

func (l *run) resume() {
	l.guest.Resume()
	l.mu.Lock()
	close(l.open)
	l.mu.Unlock()
}

// kill ends the guest, if it runs.
func (b *box) kill() {
	if b.run == nil {
		return
	}
	b.run.server.Close()
	<-b.run.served
	b.run.guest.Close()
	close(b.run.killed)
	b.run = nil
}
