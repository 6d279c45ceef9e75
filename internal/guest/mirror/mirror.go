// Package mirror shows a sandbox to read-only watchers: its screen, its latest terminal and the steps of its
// agent, as one stream of events. It has no input, starts no processes, and does not
// keep the sandbox awake.
package mirror

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	width = 1280
	// fresh is the time between two pictures while the screen changes, and still otherwise.
	fresh = 400 * time.Millisecond
	still = time.Second
	// maxWatchers limits concurrent streams.
	maxWatchers = 50
	maxText     = 16 << 10
)

// Step is one call of the activity record, without its output.
type Step struct {
	ID     int64     `json:"id"`
	Time   time.Time `json:"time"`
	Op     string    `json:"op"`
	Kind   string    `json:"kind"`
	Text   string    `json:"text" doc:"What it did, such as a command, in one line"`
	Failed bool      `json:"failed"`
	Took   float64   `json:"took_ms"`
}

// Config of the service.
type Config struct {
	// Screen returns a JPEG picture, or nil if no display runs.
	Screen func(ctx context.Context, width int) ([]byte, error)
	// Text returns the text of the latest terminal.
	Text func() string
	// Steps sends the latest steps, and each new one until ctx ends.
	Steps func(ctx context.Context, send func(Step) error) error
}

// Service implements the mirror.
type Service struct {
	cfg   Config
	slots chan struct{}
	life  context.Context
	end   context.CancelFunc

	mu    sync.Mutex
	taken time.Time // time of the latest picture, which all watchers share
	frame frame
}

// frame is what a sandbox shows at one moment.
type frame struct {
	picture []byte
	text    string
}

// New returns the service.
func New(cfg Config) *Service {
	s := &Service{cfg: cfg, slots: make(chan struct{}, maxWatchers)}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.Stream[op.None, Event](op.Spec{Name: "sandbox_mirror", Access: op.AccessWatch, Route: "GET /v1/sandbox/mirror",
			Tag: "sandbox", Verb: "sandbox mirror", ReadOnly: true, NoTool: true,
			Doc: "Follow what the sandbox shows, for people who watch: its screen, its latest terminal, and the steps of its " +
				"agent without their output. Starts no processes."}, s.Follow),
	}
}

// Close ends all streams.
func (s *Service) Close() error {
	s.end()
	return nil
}

// Event is the data of an event. Each kind of event sets the fields that apply to it.
type Event struct {
	Name    string     `json:"name,omitempty" doc:"In hello: name of the sandbox, if a hub sent the request"`
	Until   *time.Time `json:"until,omitempty" doc:"In hello: when the link of the watcher expires"`
	Picture []byte     `json:"picture,omitempty" doc:"In screen: JPEG, in base64; missing: the display has ended"`
	Text    string     `json:"text,omitempty" doc:"In terminal: the text of the latest terminal"`
	Step    *Step      `json:"step,omitempty" doc:"In step: what was done"`
}

// Follow sends hello, then screen, terminal and step whenever they change.
func (s *Service) Follow(ctx context.Context, _ op.None, send func(op.Event) error) error {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		return op.Errorf(op.Exhausted, "%d people already watch this sandbox; try again later", maxWatchers)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	var mu sync.Mutex // send is not safe for concurrent use
	locked := func(name string, e Event) error {
		mu.Lock()
		defer mu.Unlock()
		return send(op.Event{Name: name, Data: e})
	}
	call := op.CallOf(ctx)
	if err := locked("hello", Event{Name: call.TargetName, Until: call.Until}); err != nil {
		return err
	}
	var steps sync.WaitGroup
	defer steps.Wait()
	defer cancel()
	steps.Go(func() {
		// The watcher may not read the record itself.
		own := op.WithCall(ctx, &op.Call{})
		if s.cfg.Steps(own, func(x Step) error { return locked("step", Event{Step: &x}) }) != nil && ctx.Err() == nil {
			return // without a record, watchers receive only the other events
		}
	})
	return s.follow(ctx, locked)
}

// follow sends the screen and the terminal whenever they change.
func (s *Service) follow(ctx context.Context, send func(name string, e Event) error) error {
	var last frame
	timer := time.NewTimer(0)
	defer timer.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		now, wait := s.look(ctx), still
		if !bytes.Equal(now.picture, last.picture) {
			wait = fresh
			if err := send("screen", Event{Picture: now.picture}); err != nil {
				return err
			}
		}
		if now.text != last.text || first {
			wait = fresh
			if err := send("terminal", Event{Text: now.text}); err != nil {
				return err
			}
		}
		last = now
		timer.Reset(wait)
	}
}

// look returns what the sandbox shows now, at most fresh ago.
func (s *Service) look(ctx context.Context) frame {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.taken) < fresh/2 {
		return s.frame
	}
	picture, err := s.cfg.Screen(ctx, width)
	if err != nil {
		picture = s.frame.picture
	}
	text := s.cfg.Text()
	if len(text) > maxText {
		text = string(bytes.ToValidUTF8([]byte(text[len(text)-maxText:]), nil))
	}
	s.taken, s.frame = time.Now(), frame{picture, text}
	return s.frame
}
