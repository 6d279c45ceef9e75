package activity

import (
	"context"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestSearchFindsQuotes: input and output are JSON, and people search what they typed.
func TestSearchFindsQuotes(t *testing.T) {
	t.Parallel()
	e := Entry{ID: 1, Op: "bash_exec", Input: `{"command":"echo \"Hello\\n\""}`}
	for text, want := range map[string]bool{`echo "hello`: true, `"hello\n"`: true, `echo \"Hello`: true, `echo hello`: false} {
		if got := (GetIn{Search: text}).matches(e); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}

// TestHelp: a call that waits for a person is reported until it ends.
func TestHelp(t *testing.T) {
	t.Parallel()
	s, began, end := New(Config{}), make(chan struct{}), make(chan struct{})
	wait := s.Record(op.New(op.Spec{Name: "browser_captcha_wait", Route: "POST /x", Tag: "browser", Doc: "Wait."},
		func(context.Context, op.None) (op.None, error) {
			close(began)
			<-end
			return op.None{}, nil
		}))
	done := make(chan error)
	go func() {
		_, err := wait.Call(t.Context(), &op.None{})
		done <- err
	}()
	<-began
	if a, err := s.Get(t.Context(), GetIn{}); err != nil || len(a.Help) != 1 || a.Help[0].Kind != "captcha" {
		t.Errorf("got %+v, %v, want a captcha", a, err)
	}
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if a, err := s.Get(t.Context(), GetIn{}); err != nil || len(a.Help) != 0 {
		t.Errorf("got %+v, %v, want nothing", a, err)
	}
}
