package envd

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// maxOtherWatches is the maximum number of watches in processes of other users.
	maxOtherWatches = 32
	// maxOtherChanges is the number of changes that such a watch keeps. Older ones are dropped.
	maxOtherChanges = 10_000
	// otherIdle is the time after which a watch without readers may be evicted.
	otherIdle = time.Hour
	// maxFlushes is the maximum number of requests that a process has not answered. Further ones are dropped.
	maxFlushes = 1000
)

// watchReport is a message of a helper process that watches a folder. The first message has no changes.
type watchReport struct {
	Error   *connect.Error `json:"error,omitempty"`
	Changes []Change       `json:"changes,omitempty"`
	Flushed bool           `json:"flushed,omitempty"`
}

// helpWatch reports the changes of a folder until the input ends. Each line of the input is a request to report what has
// happened before.
func helpWatch(what helpIn, in io.Reader, out io.Writer, source Watches) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	send := json.NewEncoder(out)
	id, err := source.Open(ctx, what.Path, what.Recursive)
	if err != nil {
		return send.Encode(watchReport{Error: connect.AsError(err)})
	}
	defer source.Close(id)
	if err := send.Encode(watchReport{}); err != nil {
		return err
	}
	var mu sync.Mutex // held while changes are read and sent
	after := int64(0)
	report := func() error {
		mu.Lock()
		defer mu.Unlock()
		for {
			changes, err := source.Next(ctx, id, after, 0)
			if err != nil || len(changes) == 0 {
				return err
			}
			for i := range changes {
				if e, err := describe(changes[i].Path); err == nil {
					changes[i].Entry = &e
				}
			}
			after = changes[len(changes)-1].Seq
			if err := send.Encode(watchReport{Changes: changes}); err != nil {
				return err
			}
		}
	}
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(in); lines.Scan(); {
			source.Flush(ctx, id)
			if report() != nil {
				return
			}
			mu.Lock()
			err := send.Encode(watchReport{Flushed: true})
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	for {
		mu.Lock()
		from := after
		mu.Unlock()
		if _, err := source.Next(ctx, id, from, time.Minute); err != nil || ctx.Err() != nil {
			return err
		}
		if err := report(); err != nil {
			return err
		}
	}
}

// otherWatches are watches in helper processes, for folders that this process may not read.
type otherWatches struct {
	mu     sync.Mutex
	closed bool
	last   int
	byID   map[string]*otherWatch
	live   sync.WaitGroup
}

// otherWatch is one of them.
type otherWatch struct {
	process *proc.Process
	input   *os.File // its end is the end of the process
	output  *os.File

	mu      sync.Mutex
	changes []Change
	err     error // set when it has ended
	flushes int   // number of requests that the process has answered
	asked   int
	used    time.Time
	changed chan struct{} // closed and replaced at every change
}

// open starts a watch as a user.
func (o *otherWatches) open(ctx context.Context, s *Service, u account, what helpIn) (id string, err error) {
	c, err := s.helper(u, "watch", what)
	if err != nil {
		return "", err
	}
	if err := o.makeRoom(); err != nil {
		return "", err
	}
	w, stderr, err := startWatch(s.Runner, c)
	if err != nil {
		return "", err
	}
	ready := make(chan error, 1)
	o.live.Go(func() { w.read(u, stderr, ready) })
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil && o.closed {
		err = connect.Errorf(connect.Unavailable, "the server is stopping")
	}
	if err != nil {
		w.close()
		return "", err
	}
	o.last++
	id = "as-" + u.name + "-" + itoa(o.last)
	if o.byID == nil {
		o.byID = map[string]*otherWatch{}
	}
	o.byID[id] = w
	return id, nil
}

// makeRoom ensures that one more watch fits.
func (o *otherWatches) makeRoom() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, w := range o.byID {
		if len(o.byID) >= maxOtherWatches && w.idle() > otherIdle {
			w.close()
			delete(o.byID, id)
		}
	}
	if len(o.byID) >= maxOtherWatches {
		return connect.Errorf(connect.ResourceExhausted, "limit of watchers of other users reached (%d); stop one", maxOtherWatches)
	}
	return nil
}

func startWatch(runner *proc.Runner, c proc.Command) (*otherWatch, *proc.Capture, error) {
	stdin, input, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer stdin.Close()
	output, stdout, err := os.Pipe()
	if err != nil {
		input.Close()
		return nil, nil, err
	}
	defer stdout.Close()
	stderr := proc.NewCapture(1<<12, 0)
	c.Stdin, c.Stdout, c.Stderr = stdin, stdout, stderr
	w := &otherWatch{input: input, output: output, used: time.Now(), changed: make(chan struct{})}
	if w.process, err = runner.Start(c); err != nil {
		input.Close()
		output.Close()
		return nil, nil, err
	}
	return w, stderr, nil
}

// read receives the reports of the process until it ends. The first one, or the failure, goes to ready.
func (w *otherWatch) read(u account, stderr *proc.Capture, ready chan<- error) {
	defer w.process.Kill()
	from := json.NewDecoder(w.output)
	var first watchReport
	if err := from.Decode(&first); err != nil {
		<-w.process.Done()
		ready <- readHelp(u, nil, []byte(stderr.String()), nil)
		return
	}
	if first.Error != nil {
		ready <- first.Error
		return
	}
	ready <- nil
	for {
		var r watchReport
		err := from.Decode(&r)
		w.update(func() {
			w.changes = append(w.changes, r.Changes...)
			if over := len(w.changes) - maxOtherChanges; over > 0 {
				w.changes = append([]Change(nil), w.changes[over:]...)
			}
			if r.Flushed {
				w.flushes++
			}
			if err != nil {
				w.err = connect.Errorf(connect.NotFound, "the watcher has ended")
			}
		})
		if err != nil {
			return
		}
	}
}

func (w *otherWatch) update(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits until a condition is true or the watch ends.
func (w *otherWatch) await(ctx context.Context, ok func() bool) error {
	for {
		w.mu.Lock()
		w.used = time.Now()
		done, err, changed := ok(), w.err, w.changed
		w.mu.Unlock()
		if done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

func (w *otherWatch) idle() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return time.Since(w.used)
}

func (w *otherWatch) close() {
	w.input.Close()
	w.output.Close()
}

func (o *otherWatches) find(id string) *otherWatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.byID[id]
}

// Next implements watchSource.
func (o *otherWatches) Next(ctx context.Context, id string, after int64, wait time.Duration) (list []Change, err error) {
	w := o.find(id)
	if w == nil {
		return nil, connect.Errorf(connect.NotFound, "no such watcher: %.60q", id)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	err = w.await(ctx, func() bool {
		for i, c := range w.changes {
			if c.Seq > after {
				list = append(list, w.changes[i:]...)
				break
			}
		}
		return len(list) > 0
	})
	if len(list) > 0 {
		err = nil
	}
	return list, err
}

// Flush implements watchSource.
func (o *otherWatches) Flush(ctx context.Context, id string) {
	w := o.find(id)
	if w == nil {
		return
	}
	w.mu.Lock()
	want, full := w.asked+1, w.asked-w.flushes >= maxFlushes
	var err error
	if !full {
		w.asked = want
		_, err = w.input.WriteString("\n") // does not block: so many lines fit into the pipe
	}
	w.mu.Unlock()
	if err == nil && !full {
		_ = w.await(ctx, func() bool { return w.flushes >= want }) // it may have ended
	}
}

// Close implements watchSource.
func (o *otherWatches) Close(id string) {
	o.mu.Lock()
	w := o.byID[id]
	delete(o.byID, id)
	o.mu.Unlock()
	if w != nil {
		w.close()
	}
}

// close ends all watches.
func (o *otherWatches) close() {
	o.mu.Lock()
	o.closed = true
	for _, w := range o.byID {
		w.close()
	}
	o.byID = nil
	o.mu.Unlock()
	o.live.Wait()
}
