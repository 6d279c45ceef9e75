package framework

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// turn is a fixed reply of the model.
type turn struct {
	want string // what the request contains, such as the result of a tool
	tool string // calls a tool with arguments
	args map[string]any
	text string // without a tool: the answer
	// pick is a regular expression. Its group in the request replaces PICKED in the answer.
	pick string
}

// model plays OpenAI's API: each request gets the next turn.
type model struct {
	t     *testing.T
	mu    sync.Mutex
	turns []turn
	next  int
}

// serveModel returns the base URL of a model that replies with the turns, and requires that all were used.
func serveModel(t *testing.T, turns ...turn) string {
	t.Helper()
	m := &model{t: t, turns: turns}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", m.reply(chatReply))
	mux.HandleFunc("POST /v1/responses", m.reply(response))
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		s.Close()
		if m.next < len(m.turns) {
			t.Errorf("the agent ended after %d of %d replies of its model", m.next, len(m.turns))
		}
	})
	return s.URL + "/v1"
}

func (m *model) reply(format func(id int, to turn) map[string]any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		_, err := b.ReadFrom(r.Body)
		m.mu.Lock()
		defer m.mu.Unlock()
		if err != nil || m.next >= len(m.turns) {
			m.t.Errorf("request %d: got %.2000s, %v, want no further request", m.next, &b, err)
			http.Error(w, "the script is over", http.StatusBadRequest)
			return
		}
		to := m.turns[m.next]
		if !strings.Contains(b.String(), to.want) {
			text := b.String()
			m.t.Errorf("request %d: got …%s, want %q in it", m.next, text[max(0, len(text)-800):], to.want)
			http.Error(w, "unexpected request", http.StatusBadRequest)
			return
		}
		if to.pick != "" {
			group := regexp.MustCompile(to.pick).FindStringSubmatch(b.String())
			if group == nil {
				m.t.Errorf("request %d: got %.2000s, want a match of %s", m.next, &b, to.pick)
				http.Error(w, "unexpected request", http.StatusBadRequest)
				return
			}
			to.text = strings.ReplaceAll(to.text, "PICKED", group[1])
		}
		m.next++
		out := format(m.next, to)
		out["model"], out["created"], out["created_at"] = "scripted", 1, 1
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(out); err != nil {
			m.t.Error(err)
		}
	}
}

// arguments are encoded JSON, as models send them.
func (to turn) arguments() string {
	b, err := json.Marshal(to.args)
	if err != nil {
		panic(err) // the scripts are constant
	}
	return string(b)
}

// chatReply is a reply of the API for chats.
func chatReply(id int, to turn) map[string]any {
	message, reason := map[string]any{"role": "assistant", "content": to.text}, "stop"
	if to.tool != "" {
		message["content"], reason = nil, "tool_calls"
		message["tool_calls"] = []any{map[string]any{"id": fmt.Sprint("call_", id), "type": "function",
			"function": map[string]any{"name": to.tool, "arguments": to.arguments()}}}
	}
	return map[string]any{"id": fmt.Sprint("chat_", id), "object": "chat.completion",
		"choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": reason}},
		"usage":   map[string]any{"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}
}

// response is a reply of the API for responses.
func response(id int, to turn) map[string]any {
	item := map[string]any{"type": "message", "id": fmt.Sprint("msg_", id), "role": "assistant", "status": "completed",
		"content": []any{map[string]any{"type": "output_text", "text": to.text, "annotations": []any{}}}}
	if to.tool != "" {
		item = map[string]any{"type": "function_call", "id": fmt.Sprint("fc_", id), "call_id": fmt.Sprint("call_", id),
			"name": to.tool, "arguments": to.arguments(), "status": "completed"}
	}
	return map[string]any{"id": fmt.Sprint("resp_", id), "object": "response", "status": "completed", "output": []any{item},
		"parallel_tool_calls": false, "tool_choice": "auto", "tools": []any{},
		"usage": map[string]any{"input_tokens": 1, "output_tokens": 1, "total_tokens": 2,
			"input_tokens_details": map[string]any{"cached_tokens": 0}, "output_tokens_details": map[string]any{"reasoning_tokens": 0}}}
}
