package isolate

import (
	"encoding/json"
	"fmt"
)

// Exit is how the program of a sandbox ended.
type Exit struct {
	Code   int    // its exit status, if it exited
	Signal string `json:",omitempty"` // what killed it, otherwise
	Error  string `json:",omitempty"` // why it was not started, otherwise
	Saved  bool   `json:",omitempty"` // it ended because it was saved; see Save
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

// ReadExit reads what init wrote to Config.Exit; ok is false if it was killed before it could.
func ReadExit(path string) (e Exit, ok bool) {
	data, err := readCapped(path, 4<<10)
	if err != nil || len(data) == 0 {
		return Exit{}, false
	}
	if json.Unmarshal(data, &e) != nil {
		e = Exit{Error: "init failed: " + string(data)}
	}
	return e, true
}
