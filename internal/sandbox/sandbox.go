// Package sandbox defines the hub's terms: the desired sandbox (Spec), the actual one
// (Sandbox, State, Event), and Provider, the contract of everything that can run
// sandboxes. It owns no sandbox and starts nothing. It refuses specs that not every
// provider could apply literally and safely.
package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// State is the state of a sandbox.
type State string

// The states. A sandbox is Creating until its server is ready, and Deleting from the
// first step of its removal; in these states only Get and Delete are accepted.
const (
	Creating State = "creating"
	Running  State = "running"
	Paused   State = "paused"  // in memory, without processor time
	Stopped  State = "stopped" // only its disk is kept
	Failed   State = "failed"  // ended by itself; its disk is kept, and Start may succeed
	Deleting State = "deleting"
)

// Sandbox describes a sandbox at one moment. It is a copy: changing it changes nothing
// else.
type Sandbox struct {
	// ID identifies the sandbox for its whole life and is never reused. The provider
	// chooses it; it is safe as a file, host or object name.
	ID    string `json:"id"`
	Spec  Spec   `json:"spec"`
	State State  `json:"state"`
	// Message tells the owner why the sandbox is in this state if that is not obvious:
	// "exited with status 1", "out of memory".
	Message string    `json:"message,omitempty"`
	Created time.Time `json:"created"`
	// Changed is when the sandbox entered State.
	Changed time.Time `json:"changed"`
	// Stages are the steps of the latest create or start, in order.
	Stages []Stage `json:"stages,omitempty"`
}

// Stage is one step of starting a sandbox and its duration.
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

// NewID returns a new sandbox ID: a DNS label of 19 characters.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return "sb-" + hex.EncodeToString(b[:])
}
