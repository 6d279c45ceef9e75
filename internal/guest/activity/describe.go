package activity

import (
	"encoding/json"
	"strings"
)

// maxSummary limits a summary, in bytes.
const maxSummary = 200

// described are the fields of an input that say what a call did, most important first.
var described = []string{"code", "command", "file", "path", "url", "action_type", "selector"}

// Summary says in one line what the call did, such as its command. It is empty if the input does not say so.
func (e Entry) Summary() string {
	var input map[string]any
	if json.Unmarshal([]byte(e.Input), &input) != nil {
		return ""
	}
	for _, name := range described {
		if text, ok := input[name].(string); ok && text != "" && (name != "command" || e.Kind != "file") {
			line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
			return shortenTo(line, maxSummary)
		}
	}
	return ""
}

// Failed reports whether the call failed: it returned an error, its command ended with another code than 0,
// or its cell raised an exception.
func (e Entry) Failed() bool {
	if e.Error != "" {
		return true
	}
	var output struct {
		Exit   int    `json:"exit_code"`
		Status string `json:"status"`
		Result *struct {
			Exit int `json:"exit_code"`
		} `json:"result"`
	}
	if json.Unmarshal([]byte(e.Output), &output) != nil {
		return false
	}
	return output.Exit != 0 || output.Status == "error" || output.Result != nil && output.Result.Exit != 0
}

// Latest returns the entry that was written last since the start of the server; its ID is 0 if there is none.
func (s *Service) Latest() Entry {
	if s.record == nil {
		return Entry{}
	}
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	return s.record.latest
}
