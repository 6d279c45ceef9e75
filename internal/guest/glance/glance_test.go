package glance_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/glance"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// The screen has precedence over the end of the terminal, which may contain any text.
func TestGet(t *testing.T) {
	t.Parallel()
	var picture []byte
	var failed error
	text := ""
	s := glance.New(glance.Config{
		Screen: func(context.Context, int) ([]byte, error) { return picture, failed },
		Text:   func() string { return text },
	})
	look := func(kind string) glance.Glance {
		t.Helper()
		got, err := s.Get(t.Context(), glance.GetIn{Width: 320})
		if err != nil || got.Kind != kind {
			t.Fatalf("got %+v %v, want kind %q", got, err, kind)
		}
		return got
	}
	look("none")
	text = strings.Repeat("line\n", 100) + "ü last\n\n"
	if got := look("terminal"); !strings.HasSuffix(got.Text, "ü last") || strings.Count(got.Text, "\n") > 30 {
		t.Errorf("got %q, want the last lines", got.Text)
	}
	text = strings.Repeat("üüü", 10_000)
	if got := look("terminal"); len(got.Text) > 5000 || !utf8.ValidString(got.Text) {
		t.Errorf("got %d bytes, want a short valid text", len(got.Text))
	}
	picture = []byte("jpeg")
	look("screen")
	failed = errors.New("the display crashed")
	look("terminal")
}

// The newest of screen, terminal and operation is shown: a page that was opened once does not hide the work of an agent.
func TestNewestIsShown(t *testing.T) {
	t.Parallel()
	picture, text, step := []byte("blank page"), "$ ls", glance.Step{}
	s := glance.New(glance.Config{
		Screen: func(context.Context, int) ([]byte, error) { return picture, nil },
		Text:   func() string { return text },
		Step:   func() glance.Step { return step },
	})
	look := func(kind string) {
		t.Helper()
		got, err := s.Get(t.Context(), glance.GetIn{Width: 320})
		if err != nil || got.Kind != kind || got.Step.Op != step.Op {
			t.Errorf("got %+v %v, want kind %q", got, err, kind)
		}
	}
	look("screen")
	text = "$ ls\nfile"
	look("terminal")
	picture = []byte("another page")
	look("screen")
	step = glance.Step{Time: time.Now(), Op: "bash_exec", Text: "pytest -q", Failed: true}
	look("step")
	step = glance.Step{Time: time.Now(), Op: "browser_action", Shows: "screen"}
	look("screen")
	step = glance.Step{Time: time.Now(), Op: "shell_exec", Shows: "terminal"}
	look("terminal")
	picture, text, step = nil, "", glance.Step{Time: time.Now(), Op: "shell_exec", Shows: "terminal"}
	look("none")
}
