// Package ship forwards the lines of audit logs to syslog, to an OpenTelemetry collector, or to a file that
// another program ships.
//
// It reads the logs, so an unreachable receiver gets all lines later, as long as the logs keep them. It
// owns one small file with the position of each receiver; after a crash it sends some lines again. It
// never delays the writer of a log.
package ship

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
)

// Config of a Shipper.
type Config struct {
	Logs    map[string]string // directories of the logs, by name
	To      []string          // receivers; see Check
	Headers map[string]string // for a collector
	State   string            // directory for the positions
	Log     *slog.Logger
}

const (
	batchSize = 256
	// gather is how long a line waits for others to share a batch.
	gather   = 200 * time.Millisecond
	firstTry = time.Second
	lastTry  = time.Minute
)

// Line is a line of one of the logs.
type Line struct {
	Name string `json:"log"`
	auditlog.Line
}

// sink is a receiver.
type sink interface {
	// send delivers lines. After an error, all of them are sent again.
	send(ctx context.Context, lines []Line) error
	close()
}

// Shipper forwards lines until it is closed.
type Shipper struct {
	cancel  context.CancelFunc
	work    sync.WaitGroup
	pending atomic.Int64 // failed attempts since the last success
}

// Start starts to send lines that were not sent yet.
func Start(cfg Config) (*Shipper, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s := &Shipper{cancel: cancel}
	for _, to := range cfg.To {
		if _, err := parse(to, cfg.Headers); err != nil {
			cancel()
			return nil, err
		}
	}
	if err := os.MkdirAll(cfg.State, 0o700); err != nil {
		cancel()
		return nil, err
	}
	for _, to := range cfg.To {
		for name, dir := range cfg.Logs {
			f := &follower{cfg: cfg, name: name, dir: dir, to: to, shipper: s,
				position: filepath.Join(cfg.State, fmt.Sprintf("%s-%s.json", name, fingerprint(to)))}
			f.out, _ = parse(to, cfg.Headers) // parsed above
			s.work.Go(func() { f.run(ctx) })
		}
	}
	return s, nil
}

// Failing is the number of failed attempts since the last success.
func (s *Shipper) Failing() int64 { return s.pending.Load() }

// Close stops sending. Remaining lines are sent after the next start.
func (s *Shipper) Close() error {
	s.cancel()
	s.work.Wait()
	return nil
}

// follower forwards one log to one receiver.
type follower struct {
	cfg       Config
	name, dir string
	to        string
	out       sink
	position  string
	shipper   *Shipper
}

func (f *follower) run(ctx context.Context) {
	defer f.out.close()
	for ctx.Err() == nil {
		if err := f.follow(ctx); err != nil && ctx.Err() == nil {
			f.cfg.Log.Error("cannot follow audit log; its receiver may miss lines", "log", f.name, "receiver", f.to, "error", err)
			wait(ctx, firstTry)
		}
	}
}

// follow sends lines from the last position on. It returns an error if lines were pruned before they were
// sent.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var at auditlog.Mark
	if b, err := os.ReadFile(f.position); err == nil {
		if err := json.Unmarshal(b, &at); err != nil {
			f.cfg.Log.Warn("position of audit log receiver is damaged; sending all lines again", "path", f.position, "error", err)
		}
	}
	lines := make(chan Line, batchSize)
	read := make(chan error, 1)
	go func() {
		defer close(lines)
		read <- auditlog.Tail(ctx, f.dir, auditlog.Filter{Follow: true}, func(l auditlog.Line) error {
			if l.Seq <= at.Seq {
				return nil
			}
			select {
			case lines <- Line{f.name, l}:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	for {
		batch := f.collect(lines)
		if len(batch) == 0 {
			return <-read
		}
		if !f.deliver(ctx, batch) {
			cancel()
			for range lines { // until the reader ends
			}
			return <-read
		}
		last := batch[len(batch)-1]
		b, err := json.Marshal(auditlog.Mark{Seq: last.Seq, Hash: last.Hash})
		if err == nil {
			err = atomicfile.Replace(f.position, atomicfile.Options{}, func(out *os.File) error { _, err := out.Write(b); return err })
		}
		if err != nil {
			f.cfg.Log.Warn("cannot store position of audit log receiver", "path", f.position, "error", err)
		}
	}
}

// collect returns the lines of one batch; none at the end.
func (f *follower) collect(lines <-chan Line) []Line {
	first, ok := <-lines
	if !ok {
		return nil
	}
	batch := []Line{first}
	full := time.After(gather)
	for len(batch) < batchSize {
		select {
		case l, ok := <-lines:
			if !ok {
				return batch
			}
			batch = append(batch, l)
		case <-full:
			return batch
		}
	}
	return batch
}

// deliver retries a batch until the receiver accepts it; false if ctx ends first.
func (f *follower) deliver(ctx context.Context, batch []Line) bool {
	for pause := firstTry; ; pause = min(2*pause, lastTry) {
		err := f.out.send(ctx, batch)
		if err == nil {
			f.shipper.pending.Store(0)
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		if f.shipper.pending.Add(1) == 1 {
			f.cfg.Log.Error("cannot send audit lines; retrying later", "receiver", f.to, "error", err)
		}
		if !wait(ctx, pause) {
			return false
		}
	}
}

func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

var errScheme = errors.New("use syslog:///dev/log, syslog+udp://host:514, syslog+tcp://host:601, " +
	"http(s)://collector:4318/v1/logs or file:///path")

func hostname() string {
	name, _ := os.Hostname() // "-" means unknown
	return cmp.Or(name, "-")
}
