package protocol

import "fmt"

// Exit is how the program of a sandbox ended.
type Exit struct {
	Code   int    // its exit status, if it exited
	Signal string `json:",omitempty"` // the signal that killed it, if any
	Error  string `json:",omitempty"` // why it was not started, if it was not
	Saved  bool   `json:",omitempty"` // it ended because it was saved; see control.Save
}

func (e Exit) String() string {
	switch {
	case e.Error != "":
		return e.Error
	case e.Signal != "":
		return "killed by signal: " + e.Signal
	default:
		return fmt.Sprintf("exited with status %d", e.Code)
	}
}
