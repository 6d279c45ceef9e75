package proc

import "sync"

// Lifetime is the end of an instance: it happens once, and whoever ends it first
// says why. Instances of a Component embed one.
type Lifetime struct {
	once sync.Once
	done chan struct{}
	why  error // set before done is closed
}

// NewLifetime returns one that has not ended.
func NewLifetime() *Lifetime { return &Lifetime{done: make(chan struct{})} }

// End ends it. A nil error means that it was asked to. Only the first call counts.
func (l *Lifetime) End(why error) {
	l.once.Do(func() {
		l.why = why
		close(l.done)
	})
}

// Done is closed at the end.
func (l *Lifetime) Done() <-chan struct{} { return l.done }

// Ended tells whether it has ended.
func (l *Lifetime) Ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// Err is why it ended; nil while it has not, and when it was asked to.
func (l *Lifetime) Err() error {
	if !l.Ended() {
		return nil
	}
	return l.why
}
