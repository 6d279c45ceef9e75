package activity

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

// Limits of the record. The oldest entries are dropped first.
const (
	maxQueue    = 1024 // entries waiting to be written
	maxPictures = 200
	pictureTime = 400 * time.Millisecond // between two pictures
	shotTime    = 2 * time.Second        // limits one picture
	shotWidth   = 640
	listenQueue = 64 // entries waiting for one stream
	// The writer collects entries for a moment, so that it does not delay the response of the call.
	batchTime = 50 * time.Millisecond
	maxBatch  = 64
)

// Entry is one recorded call.
type Entry struct {
	ID      int64     `json:"id" doc:"Number in the record, ascending"`
	Time    time.Time `json:"time" doc:"When it started"`
	Op      string    `json:"op" doc:"Name of the operation"`
	Kind    string    `json:"kind" doc:"Group of the operation, such as bash, file or browser"`
	Via     string    `json:"via" doc:"Interface of the call: rest, mcp, or page for the built-in pages"`
	Caller  string    `json:"caller" doc:"Authenticated caller, behind a hub the tenant or link; empty without authentication"`
	Key     string    `json:"key" doc:"ID of the key that the caller used at the hub"`
	Input   string    `json:"input" doc:"Input as JSON; long values are truncated and secrets removed"`
	Output  string    `json:"output" doc:"Output in the same form"`
	Error   string    `json:"error" doc:"Error message; empty if the call succeeded"`
	Failed  bool      `json:"failed" doc:"Whether the operation failed, the command exited with a code other than 0, or the code raised"`
	Reads   bool      `json:"reads" doc:"Whether the operation itself changes nothing"`
	Took    float64   `json:"took_ms" doc:"Duration in milliseconds"`
	Picture bool      `json:"picture" doc:"Whether there is a picture: of the screen after the call, or of the plot that the code has drawn"`
	Change  *Change   `json:"change" doc:"File that the operation changed"`
	Changes []Change  `json:"changes,omitempty" doc:"Files of the workspace that changed during a command"`
	Missed  int       `json:"missed" doc:"Number of entries before this one that were lost because the disk was too slow"`
}

// item is an entry to write, or a request to signal when all earlier items are written.
type item struct {
	entry   Entry
	shot    bool   // take a picture of the screen
	plot    []byte // PNG of the plot of a cell
	written chan struct{}
}

// Record stores entries. Callers only summarize and queue; one goroutine, which the first entry
// starts, removes secrets, takes pictures and writes.
type Record struct {
	store  *store
	screen func(ctx context.Context, width int) ([]byte, error)
	log    *slog.Logger
	files  changes
	work   *tree
	hide   []string // values that are never recorded

	mu      sync.Mutex
	latest  Entry // the entry that was written last
	queue   []item
	missed  int
	wake    chan struct{} // has an element if the queue or closed has changed
	urgent  chan struct{} // has an element if the writer must not wait for more
	running bool
	closed  bool
	done    chan struct{} // closed when the writer has returned
	listen  map[chan Entry]bool

	shot time.Time // time of the last picture; only for the writer
}

func newRecord(cfg Config) *Record {
	r := &Record{
		store: newStore(cfg.State, cfg.Log), screen: cfg.Screen, log: cfg.Log,
		files: changes{pathname.Base{Home: cfg.Home, Workspace: cfg.Workspace}},
		work:  newTree(cfg.Workspace, filepath.Join(cfg.State, "activity"), cfg.Log),
		wake:  make(chan struct{}, 1), urgent: make(chan struct{}, 1), done: make(chan struct{}), listen: map[chan Entry]bool{},
	}
	for _, s := range append(secretsOf(cfg.Env), cfg.Secrets...) {
		if len(s) >= minSecret {
			r.hide = append(r.hide, s)
		}
	}
	return r
}

// quiet are operations that pages and hubs poll. They are not recorded, since they do not show
// what an agent does.
var quiet = map[string]bool{
	"sandbox_activity": true, "sandbox_activity_export": true, "sandbox_activity_picture": true, "sandbox_glance": true,
	"sandbox_mirror":     true,
	"sandbox_list_ports": true, "sandbox_port": true,
	"component_list": true, "display_control": true, "observe_live": true, "process_list": true,
	"observe_status": true, "vnc_socket": true, "sandbox_tunnel": true, "sandbox_accept": true,
	"watch_poll": true, "watch_create": true, "watch_stop": true, "watch_list": true, "watch_events": true,
	"sandbox_identity": true, "file_stat": true, "file_list": true, "file_preview": true,
	"shell_list_sessions": true, "shell_get_session_stats": true, "bash_sessions": true, "jupyter_list_sessions": true,
}

// runs are the groups whose operations run programs, which change files.
var runs = map[string]bool{"bash": true, "shell": true, "code": true, "jupyter": true, "nodejs": true, "e2b": true, "skills": true}

// Op returns the operation so that its calls are recorded.
func (r *Record) Op(o op.Op) op.Op {
	// Initialization and tickets consist mostly of secrets.
	if r == nil || quiet[o.Name] || o.Tag == "auth" || o.Name == "sandbox_init" {
		return o
	}
	// Copy only these fields, so that o does not stay in memory twice.
	which := recorded{o.Name, o.Tag, !o.ReadOnly && (o.Tag == "browser" || o.Tag == "display"), o.ReadOnly || o.Duplex != nil}
	if call := o.Call; call != nil {
		o.Call = func(ctx context.Context, in any) (any, error) {
			began, before := r.begin(which, in)
			out, err := call(ctx, in)
			r.end(ctx, which, began, in, out, err, before)
			return out, err
		}
	}
	if stream := o.Stream; stream != nil {
		o.Stream = func(ctx context.Context, in any, send func(op.Event) error) error {
			began, before := r.begin(which, in)
			var last any
			err := stream(ctx, in, func(e op.Event) error { last = e.Data; return send(e) })
			r.end(ctx, which, began, in, last, err, before)
			return err
		}
	}
	if duplex := o.Duplex; duplex != nil {
		which.shot = false
		o.Duplex = func(ctx context.Context, in any, c op.Conn) error {
			if runs[which.tag] {
				r.work.begin() // a person may run commands
			}
			began := time.Now()
			err := duplex(ctx, in, c)
			r.end(ctx, which, began, in, nil, err, nil)
			return err
		}
	}
	if o.Tag == e2bTag && o.Handler != nil {
		o.Handler = r.handler(o.Name, o.Handler)
	}
	return o
}

// recorded is the part of an operation that the record needs.
type recorded struct {
	name, tag string
	shot      bool // it changes the screen, so a picture is recorded
	reads     bool // it changes nothing itself
}

// begin records the state before a call.
func (r *Record) begin(o recorded, in any) (time.Time, *version) {
	if runs[o.tag] {
		r.work.begin()
	}
	return time.Now(), r.files.before(o.name, in)
}

// end records a call.
func (r *Record) end(ctx context.Context, o recorded, began time.Time, in, out any, err error, before *version) {
	e := Entry{Op: o.name, Kind: o.tag, Reads: o.reads, Took: milliseconds(began), Input: summarize(in)}
	if err != nil {
		e.Error = shorten(err.Error())
	} else {
		e.Output = summarize(out)
	}
	var after *version
	if e.Change, after = r.files.compare(before); after != nil {
		r.work.note(after)
	}
	if runs[o.tag] {
		e.Changes = r.work.changed()
	}
	var plot []byte
	if p, ok := out.(interface{ Picture() []byte }); ok && err == nil {
		plot = p.Picture()
	}
	r.add(ctx, began, item{entry: e, shot: o.shot && err == nil, plot: plot})
}

// milliseconds returns the milliseconds since a time.
func milliseconds(began time.Time) float64 { return float64(time.Since(began).Microseconds()) / 1000 }

// add queues an entry.
func (r *Record) add(ctx context.Context, began time.Time, i item) {
	e := &i.entry
	call := op.CallOf(ctx)
	e.Time, e.Via, e.Caller, e.Key = began.UTC(), call.Via, shorten(call.Subject), shorten(call.KeyID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if len(r.queue) >= maxQueue {
		r.missed++ // a slow disk must not delay calls
		return
	}
	e.Missed, r.missed = r.missed, 0
	r.push(i)
}

// push queues an item and starts the writer if there is none. The lock is held.
func (r *Record) push(i item) {
	r.queue = append(r.queue, i)
	if !r.running {
		r.running = true
		go r.write()
	}
	notify(r.wake)
	if i.shot || i.written != nil || len(r.queue) >= maxBatch {
		notify(r.urgent)
	}
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// awaitBatch waits for more entries, unless one is urgent.
func (r *Record) awaitBatch() {
	timer := time.NewTimer(batchTime)
	defer timer.Stop()
	select {
	case <-r.urgent:
	case <-timer.C:
	}
}

// write writes the queue until the record is closed.
func (r *Record) write() {
	defer close(r.done)
	for range r.wake {
		r.awaitBatch()
		r.mu.Lock()
		batch, closed := r.queue, r.closed
		r.queue = nil
		r.mu.Unlock()
		for _, i := range batch {
			if i.written != nil {
				close(i.written)
				continue
			}
			r.put(i)
		}
		if closed {
			return
		}
	}
}

// put writes one entry and sends it to the streams.
func (r *Record) put(i item) {
	e := i.entry
	for _, text := range []*string{&e.Input, &e.Output, &e.Error} {
		*text = redact(*text, r.hide)
	}
	if c := e.Change; c != nil {
		c.Diff, c.Content = redact(c.Diff, r.hide), redact(c.Content, r.hide)
	}
	for i := range e.Changes {
		c := &e.Changes[i]
		c.Diff, c.Content = redact(c.Diff, r.hide), redact(c.Content, r.hide)
	}
	e.ID, e.Failed = r.store.reserve(), isFailure(e)
	switch {
	case i.plot != nil:
		e.Picture = r.storePlot(e.ID, i.plot)
	case i.shot:
		e.Picture = r.takePicture(e.ID)
	}
	r.store.append(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.latest = e
	for to := range r.listen {
		select {
		case to <- e:
		default: // too slow: it reads the store and subscribes again
			delete(r.listen, to)
			close(to)
		}
	}
}

// takePicture stores a picture of the screen, at most a few per second.
func (r *Record) takePicture(id int64) bool {
	if r.screen == nil || time.Since(r.shot) < pictureTime {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), shotTime)
	defer cancel()
	picture, err := r.screen(ctx, shotWidth)
	if err != nil || len(picture) == 0 {
		return false
	}
	r.shot = time.Now()
	return r.store.keepPicture(id, picture)
}

// flush waits until all queued entries are written.
func (r *Record) flush(ctx context.Context) {
	r.mu.Lock()
	if !r.running || r.closed {
		r.mu.Unlock()
		return
	}
	written := make(chan struct{})
	r.push(item{written: written})
	r.mu.Unlock()
	select {
	case <-written:
	case <-r.done:
	case <-ctx.Done():
	}
}

// subscribe returns a channel of new entries, which is closed if they are not read in time.
func (r *Record) subscribe() (entries chan Entry, stop func()) {
	entries = make(chan Entry, listenQueue)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listen[entries] = true
	return entries, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.listen, entries)
	}
}

// Close writes the queued entries.
func (r *Record) Close() {
	r.mu.Lock()
	r.closed = true
	running := r.running
	notify(r.wake)
	notify(r.urgent)
	r.mu.Unlock()
	if running {
		<-r.done
	}
	r.store.close()
	r.work.close()
}
