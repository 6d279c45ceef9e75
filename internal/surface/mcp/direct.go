package mcp

import (
	"encoding/json"
	"net/http"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// answer calls one of the program's own tools for a request without a session. It reports false
// for other requests. The SDK would open and close a session for each such request, which
// takes longer than most tools.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request, e *engine, m message) bool {
	var p struct {
		Name      string
		Arguments json.RawMessage
		Meta      struct {
			Progress json.RawMessage `json:"progressToken"`
		} `json:"_meta"`
	}
	if m.method != "tools/call" || !isID(m.id) || json.Unmarshal(m.params, &p) != nil || p.Meta.Progress != nil {
		return false
	}
	t, ok := e.set.Get(p.Name)
	if !ok {
		return false
	}
	reply := map[string]json.RawMessage{"jsonrpc": json.RawMessage(`"2.0"`), "id": m.id}
	extra := &mcp.RequestExtra{Header: r.Header}
	if err := h.checkCall(r.Context(), e, extra, p.Name); err != nil {
		reply["error"], _ = json.Marshal(err)
	} else {
		req := &mcp.CallToolRequest{Params: &mcp.CallToolParamsRaw{Name: p.Name, Arguments: p.Arguments}, Extra: extra}
		result, err := h.handle(e, t)(r.Context(), req)
		if err == nil {
			reply["result"], err = json.Marshal(result)
		}
		if err != nil { // unexpected: tools return failures as results
			reply["error"], _ = json.Marshal(&jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: err.Error()})
		}
	}
	if m.bare {
		addContent(reply)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(reply)
	return true
}

// isID reports whether a value can name a request.
func isID(id json.RawMessage) bool {
	return len(id) > 0 && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}
