package mcp

import (
	"encoding/json"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// fillResult adds the text of empty resources in a result, which the SDK omits: clients require a text or bytes.
func fillResult(result mcp.Result) mcp.Result {
	switch r := result.(type) {
	case *mcp.ReadResourceResult:
		return readResult{r}
	case *mcp.CallToolResult:
		fillContent(r.Content)
	case *mcp.GetPromptResult:
		for _, m := range r.Messages {
			one := []mcp.Content{m.Content}
			fillContent(one)
			m.Content = one[0]
		}
	}
	return result
}

func fillContent(list []mcp.Content) {
	for i, c := range list {
		if e, ok := c.(*mcp.EmbeddedResource); ok && e.Resource != nil && e.Resource.Text == "" && e.Resource.Blob == nil {
			list[i] = emptyResource{e}
		}
	}
}

// emptyResource is an embedded resource whose text is empty.
type emptyResource struct{ *mcp.EmbeddedResource }

func (e emptyResource) MarshalJSON() ([]byte, error) {
	b, err := e.EmbeddedResource.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	var resource map[string]json.RawMessage
	if err := json.Unmarshal(all["resource"], &resource); err != nil {
		return nil, err
	}
	resource["text"] = json.RawMessage(`""`)
	if all["resource"], err = json.Marshal(resource); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}
