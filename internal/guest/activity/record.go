package activity

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/op"
)

// Limits of the record. The oldest entries are dropped first.
const (
	maxQueue    = 1024 // entries that wait to be written
	maxPictures = 200
	pictureTime = 400 * time.Millisecond // between two pictures
	shotTime    = 2 * time.Second        // limits one picture
	shotWidth   = 640
	listenQueue = 64 // entries that wait for one stream
)

// Entry is one thing that happened.
type Entry struct {
	ID      int64     `json:"id" doc:"Number in the record, ascending"`
	Time    time.Time `json:"time" doc:"When it started"`
	Op      string    `json:"op" doc:"Name of the operation"`
	Kind    string    `json:"kind" doc:"Group of the operation, such as bash, file or browser"`
	Via     string    `json:"via" doc:"Surface that it was called through: rest or mcp"`
	Caller  string    `json:"caller" doc:"Authenticated caller; empty if the server authenticates nobody"`
	Input   string    `json:"input" doc:"Input as JSON; long values are cut and secrets removed"`
	Output  string    `json:"output" doc:"Output in the same form"`
	Error   string    `json:"error" doc:"Why it failed; empty if it succeeded"`
	Took    float64   `json:"took_ms" doc:"Duration in milliseconds"`
	Picture bool      `json:"picture" doc:"Whether a picture of the screen was taken afterwards"`
	Change  *Change   `json:"change" doc:"File that the operation changed"`
	Missed  int       `json:"missed" doc:"Number of entries before this one that were lost because the disk was too slow"`
}

// item is an entry that waits to be written, or a request to say when all before it are.
type item struct {
	entry   Entry
	shot    bool // take a picture
	written chan struct{}
}

// Record keeps what happens. Callers only summarize and queue; one goroutine, which the first
// entry starts, removes secrets, takes pictures and writes.
type Record struct {
	store  *store
	screen func(ctx context.Context, width int) ([]byte, error)
	log    *slog.Logger
	files  changes
	hide   []string // values that never enter the record

	mu      sync.Mutex
	queue   []item
	missed  int
	wake    chan struct{} // has an element if the queue or closed has changed
	running bool
	closed  bool
	done    chan struct{} // closed when the writer has returned
	listen  map[chan Entry]bool

	shot time.Time // of the writer alone
}

func newRecord(cfg Config) *Record {
	r := &Record{
		store: newStore(cfg.State, cfg.Log), screen: cfg.Screen, log: cfg.Log, files: changes{pathname.Base{Home: cfg.Home, Workspace: cfg.Workspace}},
		wake: make(chan struct{}, 1), done: make(chan struct{}), listen: map[chan Entry]bool{},
	}
	for _, s := range append(secretsOf(cfg.Env), cfg.Secrets...) {
		if len(s) >= minSecret {
			r.hide = append(r.hide, s)
		}
	}
	return r
}

// quiet are operations that pages and hubs call all the time, and that say nothing about what
// an agent does.
var quiet = map[string]bool{
	"sandbox_activity": true, "sandbox_activity_export": true, "sandbox_activity_picture": true, "sandbox_glance": true,
	"sandbox_list_ports": true, "display_control": true, "observe_live": true, "observe_status": true, "vnc_socket": true, "sandbox_tunnel": true,
	"watch_poll": true, "watch_create": true, "watch_stop": true, "watch_list": true, "watch_events": true,
	"file_stat": true, "file_list": true, "file_preview": true,
	"shell_list_sessions": true, "shell_get_session_stats": true, "bash_sessions": true, "jupyter_list_sessions": true,
}

// Op returns the operation so that its calls are recorded.
func (r *Record) Op(o op.Op) op.Op {
	// Initialization and tickets carry mostly secrets.
	if r == nil || quiet[o.Name] || o.Tag == "auth" || o.Name == "sandbox_init" {
		return o
	}
	shot := !o.ReadOnly && (o.Tag == "browser" || o.Tag == "display")
	if call := o.Call; call != nil {
		o.Call = func(ctx context.Context, in any) (any, error) {
			began, before := time.Now(), r.files.before(o.Name, in)
			out, err := call(ctx, in)
			r.add(ctx, o, began, in, out, err, shot, before)
			return out, err
		}
	}
	if stream := o.Stream; stream != nil {
		o.Stream = func(ctx context.Context, in any, send func(op.Event) error) error {
			began, before := time.Now(), r.files.before(o.Name, in)
			var last any
			err := stream(ctx, in, func(e op.Event) error { last = e.Data; return send(e) })
			r.add(ctx, o, began, in, last, err, shot, before)
			return err
		}
	}
	if duplex := o.Duplex; duplex != nil {
		o.Duplex = func(ctx context.Context, in any, c op.Conn) error {
			began := time.Now()
			err := duplex(ctx, in, c)
			r.add(ctx, o, began, in, nil, err, false, nil)
			return err
		}
	}
	return o
}

func (r *Record) add(ctx context.Context, o op.Op, began time.Time, in, out any, err error, shot bool, before *version) {
	call := op.CallOf(ctx)
	e := Entry{Time: began.UTC(), Op: o.Name, Kind: o.Tag, Via: call.Via, Caller: cut(call.Subject), Input: summarize(in), Took: float64(time.Since(began).Microseconds()) / 1000}
	if err != nil {
		e.Error = cut(err.Error())
	} else {
		e.Output = summarize(out)
	}
	e.Change = r.files.compare(before)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	if len(r.queue) >= maxQueue {
		r.missed++ // a slow disk must not slow the agent down
		return
	}
	e.Missed, r.missed = r.missed, 0
	r.push(item{entry: e, shot: shot && err == nil})
}

// push queues an item and starts the writer if there is none. The lock is held.
func (r *Record) push(i item) {
	r.queue = append(r.queue, i)
	if !r.running {
		r.running = true
		go r.write()
	}
	r.notify()
}

func (r *Record) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// write writes the queue until the record is closed.
func (r *Record) write() {
	defer close(r.done)
	for range r.wake {
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
		*text = scrub(*text, r.hide)
	}
	if c := e.Change; c != nil {
		c.Diff, c.Content = scrub(c.Diff, r.hide), scrub(c.Content, r.hide)
	}
	e.ID = r.store.reserve()
	if i.shot {
		e.Picture = r.shoot(e.ID)
	}
	r.store.append(e)
	r.mu.Lock()
	defer r.mu.Unlock()
	for to := range r.listen {
		select {
		case to <- e:
		default: // too slow: it reads the store and listens again
			delete(r.listen, to)
			close(to)
		}
	}
}

// shoot keeps a picture of the screen, at most a few each second.
func (r *Record) shoot(id int64) bool {
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

// flush waits until everything that happened so far is written.
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

// Close writes what is queued.
func (r *Record) Close() {
	r.mu.Lock()
	r.closed = true
	running := r.running
	r.notify()
	r.mu.Unlock()
	if running {
		<-r.done
	}
	r.store.close()
}
