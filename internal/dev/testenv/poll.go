package testenv

import (
	"testing"
	"testing/synctest"
	"time"
)

// pollTime is how long Poll and Eventually wait. It is generous: a busy machine must not fail a test.
const pollTime = 3 * time.Minute

// Poll calls ok until it returns true. The condition must become true without another action:
// a test does not repeat an action until the action works.
func Poll(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Eventually(ok) {
		t.Fatalf("%s: did not happen within %v", what, pollTime)
	}
}

// Eventually is Poll for tests that report more than what they waited for: it
// reports whether ok returned true in time.
func Eventually(ok func() bool) bool { return Within(pollTime, ok) }

// Within is Eventually with another limit, for benchmarks that run longer.
func Within(limit time.Duration, ok func() bool) bool {
	pause := time.Millisecond
	for deadline := time.Now().Add(limit); !ok(); pause = min(pause*3/2, 50*time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
		time.Sleep(pause)
	}
	return true
}

// Advance lets time pass in the synctest bubble of the caller, and waits until
// everything that became due has run. It panics outside of a bubble, where a
// test must wait for an event instead.
func Advance(d time.Duration) {
	synctest.Wait()
	time.Sleep(d)
	synctest.Wait()
}

// Hang waits until this process is killed. An empty select does not: the runtime ends a program whose
// goroutines all wait forever.
func Hang() {
	for {
		time.Sleep(time.Hour)
	}
}
