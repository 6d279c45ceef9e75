package testenv

import (
	"testing"
	"testing/synctest"
	"time"
)

// pollTime is how long Poll waits. It is generous: a busy machine must not fail a test.
const pollTime = time.Minute

// Poll calls ok until it returns true. What it waits for must come by itself:
// a test does not repeat an action until the action works.
func Poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(pollTime); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within %v", what, pollTime)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// Advance lets time pass in the synctest bubble of the caller, and waits until
// everything that became due has run. It panics outside of a bubble, where a
// test must wait for an event instead.
func Advance(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}
