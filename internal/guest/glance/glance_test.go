package glance_test

import (
	"context"
	"errors"
	"strings"
	"testing"
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
