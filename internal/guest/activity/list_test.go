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

// asking is the input of an operation that says what a person should do.
type asking struct {
	Message string `json:"message"`
}

func (a asking) HelpMessage() string { return a.Message }

// TestHelpHasAMessage: a request to take over says what the person should do.
func TestHelpHasAMessage(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	ask := s.Record(op.New(op.Spec{Name: "display_handover", Route: "POST /x", Tag: "display", Doc: "Ask."},
		func(ctx context.Context, _ asking) (op.None, error) {
			a, err := s.Get(ctx, GetIn{})
			if err != nil || len(a.Help) != 1 || a.Help[0].Kind != "takeover" || a.Help[0].Message != "Sign in" {
				t.Errorf("got %+v, %v, want a request to sign in", a, err)
			}
			return op.None{}, nil
		}))
	if _, err := ask.Call(t.Context(), &asking{Message: "Sign in"}); err != nil {
		t.Error(err)
	}
}
