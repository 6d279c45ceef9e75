// Package sandbox defines the hub's terms: the desired sandbox (Spec), the actual one
// (Sandbox, State, Event), and Provider, the contract of providers. It also validates specs, and rejects
// those that some provider could not apply safely. It starts nothing.
package sandbox

import (
	"crypto/rand"
	"encoding/hex"
	"time"
)

// State is the state of a sandbox.
type State string

// The states. A sandbox is Creating until its server is ready, and Deleting from the first step of its
// deletion; in these states only Get and Delete are accepted.
const (
	Creating State = "creating"
	Running  State = "running"
	Paused   State = "paused"  // in memory, without CPU time
	Stopped  State = "stopped" // only its disk is kept
	Failed   State = "failed"  // its program has ended; its disk is kept, and Start can succeed
	Deleting State = "deleting"
)

// Sandbox is a copy of the state of a sandbox at one time.
type Sandbox struct {
	// ID identifies the sandbox and is never reused. The provider chooses it; it is a valid name for
	// files, hosts and objects.
	ID    string `json:"id"`
	Spec  Spec   `json:"spec"`
	State State  `json:"state"`
	// Message is the reason for the state, if it is not obvious:
	// "exited with status 1", "out of memory".
	Message string    `json:"message,omitempty"`
	Created time.Time `json:"created"`
	// Changed is the time at which the sandbox entered State.
	Changed time.Time `json:"changed"`
	// Stages are the steps of the latest create or start, in order.
	Stages []Stage `json:"stages,omitempty"`
}

// Stage is one step of starting a sandbox and its duration.
type Stage struct {
	Name string        `json:"name"`
	Took time.Duration `json:"took"`
}

// Clone returns a copy that shares no memory with s.
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
