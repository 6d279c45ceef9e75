// Package glance returns a small preview of a sandbox: its screen if the display runs, otherwise
// the end of its latest terminal. It starts no processes, so previews of many sandboxes are cheap.
package glance

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Config of the service.
type Config struct {
	// Screen returns a small JPEG picture, or nil if no display runs.
	Screen func(ctx context.Context, width int) ([]byte, error)
	// Text returns the text of the latest terminal.
	Text func() string
}

// Service implements the preview.
type Service struct{ cfg Config }

// New returns the service.
func New(cfg Config) *Service { return &Service{cfg} }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_glance", Route: "GET /v1/sandbox/glance", Tag: "sandbox",
			Verb: "sandbox glance", ReadOnly: true, NoTool: true,
			Doc: "Return a small preview of the sandbox: a picture of its display, or the end of its latest terminal. Starts no processes."}, s.Get),
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
	Kind    string `json:"kind" enum:"screen,terminal,none" doc:"Kind of the preview"`
	Picture []byte `json:"picture" nullable:"true" doc:"JPEG, in base64"`
	Text    string `json:"text" doc:"Last lines of the terminal"`
}

const (
	maxLines = 24
	maxText  = 4 << 10
)

// Get returns the picture or the text.
func (s *Service) Get(ctx context.Context, in GetIn) (Glance, error) {
	// If the display cannot be read, fall back to the terminal.
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
