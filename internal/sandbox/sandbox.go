// Package sandbox holds the hub's nouns: what a sandbox shall be (Spec), what
// it is (Sandbox, State, Event), and Provider, the contract of everything that
// can make sandboxes. It owns no sandbox and starts nothing; it refuses specs
// that no provider could take literally and safely.
package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// State is where a sandbox stands in its life.
type State string

// The states. A sandbox is Creating until it answers, Deleting from the first
// step of its removal; neither accepts any call but Get and Delete.
const (
	Creating State = "creating"
	Running  State = "running"
	Paused   State = "paused"  // in memory, but gets no processor time
	Stopped  State = "stopped" // only its disk is kept
	Failed   State = "failed"  // ended by itself; its disk is kept, Start may be tried
	Deleting State = "deleting"
)

// Sandbox is what a provider knows of one sandbox at one moment. It is a copy:
// changing it changes nothing else.
type Sandbox struct {
	// ID names the sandbox for its whole life and is never used again. It is
	// made by the provider and is safe as a file, host or object name.
	ID    string `json:"id"`
	Spec  Spec   `json:"spec"`
	State State  `json:"state"`
	// Message says, to the sandbox's owner, why it is in this state when that
	// is not obvious: "exited with status 1", "out of memory".
	Message string    `json:"message,omitempty"`
	Created time.Time `json:"created"`
	// Changed is when State was entered.
	Changed time.Time `json:"changed"`
	// Stages tells where the time of the latest create or start went, in order.
	Stages []Stage `json:"stages,omitempty"`
}

// Stage is one step of making a sandbox and how long it took.
type Stage struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
}

// Clone returns a copy that shares nothing with s.
func (s Sandbox) Clone() Sandbox {
	s.Spec = s.Spec.Clone()
	s.Stages = append([]Stage(nil), s.Stages...)
	return s
}

// NewID returns a fresh sandbox ID: a DNS label of 19 characters.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return "sb-" + hex.EncodeToString(b[:])
}
