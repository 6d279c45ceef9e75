package proc

import "sync"

// Lifetime is the end of an instance: it ends once, with the reason of the first call of
// End. Instances of a Component embed a Lifetime.
type Lifetime struct {
	once sync.Once
	done chan struct{}
	why  error // set before done is closed
}

// NewLifetime returns a Lifetime that has not ended.
func NewLifetime() *Lifetime { return &Lifetime{done: make(chan struct{})} }

// End ends it. A nil error means that the end was requested. Only the first call counts.
func (l *Lifetime) End(why error) {
	l.once.Do(func() {
		l.why = why
		close(l.done)
	})
}

// Done is closed at the end.
func (l *Lifetime) Done() <-chan struct{} { return l.done }

// Ended reports whether it has ended.
func (l *Lifetime) Ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// Err returns why it ended; nil before the end, and if the end was requested.
func (l *Lifetime) Err() error {
	if !l.Ended() {
		return nil
	}
	return l.why
}
