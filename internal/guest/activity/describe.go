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

// Latest returns the entry that was written last since the start of the server; its ID is 0 if there is none.
func (s *Service) Latest() Entry {
	if s.record == nil {
		return Entry{}
	}
	s.record.mu.Lock()
	defer s.record.mu.Unlock()
	return s.record.latest
}
