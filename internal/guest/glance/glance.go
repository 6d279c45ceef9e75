// Package glance returns a small preview of a sandbox: whichever changed last of its screen, its latest
// terminal, and its latest operation. It starts no processes, so previews of many sandboxes are cheap.
package glance

import (
	"context"
	"hash/maphash"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Config of the service.
type Config struct {
	// Screen returns a small JPEG picture, or nil if no display runs.
	Screen func(ctx context.Context, width int) ([]byte, error)
	// Text returns the text of the latest terminal.
	Text func() string
	// Step returns the latest operation; nil: there are no records of operations.
	Step func() Step
}

// Step is an operation.
type Step struct {
	Time   time.Time `json:"time"`
	Op     string    `json:"op" doc:"Name of the operation; empty: none"`
	Text   string    `json:"text" doc:"What it did, such as a command, in one line"`
	Failed bool      `json:"failed"`
	// Shows is screen or terminal if the operation acts there.
	Shows string `json:"shows,omitempty"`
}

// Service implements the preview.
type Service struct {
	cfg Config

	mu       sync.Mutex
	screen   seen
	terminal seen
}

// seen is when a preview was first different from the one before.
type seen struct {
	known bool
	sum   uint64
	at    time.Time
}

// New returns the service.
func New(cfg Config) *Service {
	if cfg.Step == nil {
		cfg.Step = func() Step { return Step{} }
	}
	return &Service{cfg: cfg}
}

// look returns when a preview changed last; zero: not since it was first seen.
func (x *seen) look(content []byte, seed maphash.Seed) time.Time {
	sum := maphash.Bytes(seed, content)
	if x.known && sum != x.sum {
		x.at = time.Now()
	}
	x.known, x.sum = true, sum
	return x.at
}

var seed = maphash.MakeSeed()

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_glance", Route: "GET /v1/sandbox/glance", Tag: "sandbox",
			Verb: "sandbox glance", ReadOnly: true, NoTool: true,
			Doc: "Return a small preview of the sandbox, whichever changed last: a picture of its display, the end of its latest " +
				"terminal, or its latest operation. Starts no processes."}, s.Get),
	}
}

// Close does nothing.
func (s *Service) Close() error { return nil }

// GetIn is the size of the picture.
type GetIn struct {
	Width int `query:"width" default:"320" minimum:"80" maximum:"800" doc:"Width of the picture in pixels"`
}

// Glance is the preview.
type Glance struct {
	Kind    string `json:"kind" enum:"screen,terminal,step,none" doc:"What changed last"`
	Picture []byte `json:"picture" nullable:"true" doc:"JPEG, in base64"`
	Text    string `json:"text" doc:"Last lines of the terminal"`
	Step    Step   `json:"step" doc:"Latest operation"`
}

const (
	maxLines = 24
	maxText  = 4 << 10
)

// Get returns the picture, the text or the operation, whichever is the newest.
func (s *Service) Get(ctx context.Context, in GetIn) (Glance, error) {
	picture, err := s.cfg.Screen(ctx, in.Width)
	if err != nil {
		picture = nil // the display cannot be read
	}
	text, step := lastLines(s.cfg.Text()), s.cfg.Step()
	s.mu.Lock()
	screenAt, textAt := s.screen.look(picture, seed), s.terminal.look([]byte(text), seed)
	s.mu.Unlock()
	stepAt := time.Time{}
	switch step.Shows {
	case "screen":
		screenAt = latest(screenAt, step.Time)
	case "terminal":
		textAt = latest(textAt, step.Time)
	default:
		stepAt = step.Time
	}
	hasPicture, hasText, hasStep := len(picture) > 0, text != "", step.Op != "" && !stepAt.IsZero()
	switch {
	case hasPicture && (!hasText || !textAt.After(screenAt)) && (!hasStep || !stepAt.After(screenAt)):
		return Glance{Kind: "screen", Picture: picture, Step: step}, nil
	case hasText && (!hasStep || !stepAt.After(textAt)):
		return Glance{Kind: "terminal", Text: text, Step: step}, nil
	case hasStep:
		return Glance{Kind: "step", Step: step}, nil
	}
	return Glance{Kind: "none", Step: step}, nil
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// lastLines returns the end of a text.
func lastLines(text string) string {
	text = strings.TrimRight(text, " \r\n\t")
	if len(text) > maxText {
		text = text[len(text)-maxText:]
		for text != "" && !utf8.RuneStart(text[0]) {
			text = text[1:]
		}
	}
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-maxLines):], "\n")
}
