package testenv

import (
	"testing"
	"time"
)

// Poll asks until ok, for half a minute at most: what a test does instead of
// sleeping and hoping.
func Poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within 30 seconds", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
