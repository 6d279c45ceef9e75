// Package glance shows in one small reply what a sandbox is doing: its screen if the display
// runs, else the end of its latest terminal. It starts nothing and keeps nothing running, so
// that a wall of many sandboxes is cheap.
package glance

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Config of the service.
type Config struct {
	// Screen returns a small JPEG picture, nil if no display runs.
	Screen func(ctx context.Context, width int) ([]byte, error)
	// Text returns what the latest terminal shows.
	Text func() string
}

// Service shows what the sandbox is doing.
type Service struct{ cfg Config }

// New returns the service.
func New(cfg Config) *Service { return &Service{cfg} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_glance", Route: "GET /v1/sandbox/glance", Tag: "sandbox",
			Verb: "sandbox glance", ReadOnly: true, NoTool: true,
			Doc: "Show what the sandbox is doing, as a small picture of its display or the end of its latest terminal. Starts nothing."}, s.Look),
	}
}

// Close does nothing.
func (s *Service) Close() error { return nil }

// LookIn is the size of the picture.
type LookIn struct {
	Width int `query:"width" default:"320" minimum:"80" maximum:"800" doc:"Width of the picture in pixels"`
}

// Glance is what the sandbox shows.
type Glance struct {
	Kind    string `json:"kind" enum:"screen,terminal,none" doc:"What is shown"`
	Picture []byte `json:"picture" nullable:"true" doc:"JPEG, in base64"`
	Text    string `json:"text" doc:"Last lines of the terminal"`
}

const (
	maxLines = 24
	maxText  = 4 << 10
)

// Look returns the picture or the text.
func (s *Service) Look(ctx context.Context, in LookIn) (Glance, error) {
	// A display that cannot be read is like none: there may still be a terminal.
	if picture, err := s.cfg.Screen(ctx, in.Width); err == nil && len(picture) > 0 {
		return Glance{Kind: "screen", Picture: picture}, nil
	}
	if text := lastLines(s.cfg.Text()); text != "" {
		return Glance{Kind: "terminal", Text: text}, nil
	}
	return Glance{Kind: "none"}, nil
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
