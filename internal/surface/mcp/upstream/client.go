package upstream

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	// Stateless is the first version of the protocol without sessions. Each request is
	// complete, and ends with its connection. A server asks the client with the result of a
	// request, and the client repeats the request with the answers.
	Stateless = "2026-07-28"
	// withSessions is the last version with sessions, in which a server sends requests.
	withSessions = "2025-11-25"
	// metaPrefix marks metadata that Stateless defines. Older servers would misread it.
	metaPrefix = "io.modelcontextprotocol/"
	metaToken  = "progressToken"
)

// client is the client whose request is forwarded. The zero value is a caller that is not an MCP
// client and cannot be asked.
type client struct {
	session   *mcp.ServerSession // of this request only, if stateless
	stateless bool
	id        string // of a stateless client: requests with the same ID belong together
	caps      *mcp.ClientCapabilities
	meta      mcp.Meta
}

// clientOf returns the client of a request.
func clientOf[P mcp.Params](s *Servers, r *mcp.ServerRequest[P]) client {
	c := client{session: r.Session, stateless: r.ProtocolVersion() >= Stateless, caps: r.ClientCapabilities(), meta: mcp.Meta{}}
	maps.Copy(c.meta, r.Params.GetMeta())
	if c.stateless {
		described, _ := json.Marshal([]any{c.meta[mcp.MetaKeyClientInfo], c.meta[mcp.MetaKeyClientCapabilities]})
		if s.cfg.Identify != nil {
			described = append(described, s.cfg.Identify(r.Extra)...)
		}
		c.id = fmt.Sprintf("%x", sha256.Sum256(described))
	}
	return c
}

// key identifies the client among those of a link; nil: it cannot be asked.
func (c client) key() any {
	switch {
	case c.stateless:
		return c.id
	case c.session != nil:
		return c.session
	}
	return nil
}

// ownsLink reports whether a separate link can serve the client, because its requests can be
// recognized.
func (c client) ownsLink() bool { return c.stateless || c.session != nil && c.session.ID() != "" }

// metaFor returns the metadata of the client's request for a server.
func (c client) metaFor(stateless bool, token string) mcp.Meta {
	meta := mcp.Meta{}
	for k, v := range c.meta {
		if k != metaToken && (stateless || !strings.HasPrefix(k, metaPrefix)) {
			meta[k] = v
		}
	}
	if c.meta[metaToken] != nil {
		meta[metaToken] = token
	}
	if stateless && !c.stateless && c.session != nil {
		meta[mcp.MetaKeyLogLevel] = "debug" // the session selects the level that the client receives
	}
	return meta
}

// errUnsupported returns why a client cannot be asked a question; nil: it can.
func (c client) errUnsupported(q mcp.InputRequest) error {
	caps := c.caps
	if caps == nil {
		caps = &mcp.ClientCapabilities{}
	}
	switch p := q.(type) {
	case *mcp.ElicitParams:
		e := caps.Elicitation
		if e == nil || p.Mode == "url" && e.URL == nil || p.Mode != "url" && e.Form == nil && e.URL != nil {
			return refusal("the client does not support this kind of elicitation")
		}
	case *mcp.CreateMessageWithToolsParams:
		if caps.Sampling == nil {
			return refusal("the client does not support sampling")
		}
	case *mcp.ListRootsParams:
		if caps.RootsV2 == nil {
			return refusal("the client does not support roots")
		}
	}
	return nil
}
