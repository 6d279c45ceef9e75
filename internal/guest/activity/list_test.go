package activity

import "testing"

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
