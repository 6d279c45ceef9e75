package learn

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestReplacedRecording: the timer of a replaced recording does not end the next one.
func TestReplacedRecording(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends int
		l := Learner{Ended: func() { ends++ }}
		l.Start(time.Minute, true, func() { t.Error("the replaced recording reached its end") })
		replaced := l.Read().Began
		time.Sleep(time.Second)
		l.Start(time.Hour, true, func() {})
		time.Sleep(2 * time.Minute)
		if l.stop(replaced) || !l.Active() || !l.Open() || ends != 1 {
			t.Errorf("got active %v, open %v, %d ends, want the second recording and 1 end", l.Active(), l.Open(), ends)
		}
		if !l.Stop() || l.Stop() || l.Active() || l.Open() {
			t.Error("got a recording after its end, want none")
		}
	})
}
