package mcp

import (
	"context"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

const (
	// guideURI is the resource with the guide of the program.
	guideURI = "sandbox://llms.txt"
	// skillScheme is the scheme of the resources that are skills.
	skillScheme = "skill"
	// maxResource bounds a resource, because its event must be smaller than 1 MiB.
	maxResource = 512 << 10
	// maxSubscriptions bounds the resources that are watched.
	maxSubscriptions = 256
)

// addResources adds the guide, files, skills and other resources to the server.
func (h *Handler) addResources(e *engine) {
	if h.Resources != nil {
		h.addOffers(e)
	}
	if h.Guide != nil {
		e.server.AddResource(&mcp.Resource{URI: guideURI, Name: "llms.txt", Title: "About this sandbox", MIMEType: "text/markdown",
			Description: "System, folders, runtimes and tools of this sandbox."},
			func(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
				ctx, _ = receiveCall(ctx, r.Extra)
				text, err := h.Guide(ctx)
				if err != nil {
					return nil, resourceError(r.Params.URI, err)
				}
				return textResource(r.Params.URI, "text/markdown", text), nil
			})
	}
	if h.Files != nil {
		e.server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "file:///{+path}", Name: "file", Title: "A file of the sandbox",
			Description: "Reads a file by its absolute path. For large files, use the tool file_read."}, h.readFile)
	}
	if h.Skills != nil {
		e.server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "skill://{name}", Name: "skill", Title: "A skill",
			Description: "Reads the instructions of a registered skill.", MIMEType: "text/markdown"}, h.readSkill)
	}
}

// addOffers adds the program's other resources.
func (h *Handler) addOffers(e *engine) {
	for _, r := range h.Resources.Offers() {
		if strings.Contains(r.URI, "{") {
			e.server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: r.URI, Name: r.Name, Title: r.Title,
				Description: r.Doc, MIMEType: r.Type}, h.readOffered)
			continue
		}
		e.server.AddResource(&mcp.Resource{URI: r.URI, Name: r.Name, Title: r.Title, Description: r.Doc, MIMEType: r.Type}, h.readOffered)
	}
}

// ownsResource reports whether a URI, or the template of URIs, belongs to the program.
func (h *Handler) ownsResource(uri string) bool {
	scheme, _, _ := strings.Cut(uri, ":")
	same := func(own string) bool { return strings.HasPrefix(own, strings.ToLower(scheme)+":") }
	if h.Resources != nil && slices.ContainsFunc(h.Resources.Offers(), func(r toolset.Resource) bool { return same(r.URI) }) {
		return true
	}
	if h.Files != nil {
		fixed, _, _ := strings.Cut(uri, "{") // url.Parse refuses braces in hosts
		if _, own := filePath(fixed); own {
			return true
		}
	}
	return h.Guide != nil && same(guideURI) || h.Skills != nil && same(skillScheme+":")
}

func (h *Handler) readOffered(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	ctx, _ = receiveCall(ctx, r.Extra)
	data, media, err := h.Resources.Read(ctx, r.Params.URI, maxResource)
	return dataResource(r.Params.URI, media, data, err)
}

// dataResource is the content of a resource: text, or bytes.
func dataResource(uri, media string, data []byte, err error) (*mcp.ReadResourceResult, error) {
	switch {
	case err != nil:
		return nil, resourceError(uri, err)
	case utf8.Valid(data):
		return textResource(uri, media, string(data)), nil
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: media, Blob: data}}}, nil
}

func textResource(uri, media, text string) *mcp.ReadResourceResult {
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: uri, MIMEType: media, Text: text}}}
}

// readResult is the content of a resource. Unlike the SDK's type, it keeps an empty text, because
// clients require a text or bytes.
type readResult struct{ *mcp.ReadResourceResult }

func (r readResult) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(r.ReadResourceResult)
	isEmpty := func(c *mcp.ResourceContents) bool { return c.Text == "" && c.Blob == nil }
	if err != nil || !slices.ContainsFunc(r.Contents, isEmpty) {
		return b, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	var contents []map[string]json.RawMessage
	if err := json.Unmarshal(all["contents"], &contents); err != nil {
		return nil, err
	}
	for i, c := range r.Contents {
		if isEmpty(c) {
			contents[i]["text"] = json.RawMessage(`""`)
		}
	}
	if all["contents"], err = json.Marshal(contents); err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// resourceError returns an error as an error of the protocol.
func resourceError(uri string, err error) error {
	e, ok := op.AsError(err)
	switch {
	case !ok:
		return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "cannot read " + uri}
	case e.Code == op.NotFound:
		return mcp.ResourceNotFoundError(uri)
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: e.Msg}
}

// filePath returns the path that a file URI names.
func filePath(uri string) (string, bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || u.Path == "" {
		return "", false
	}
	return u.Path, true
}

func (h *Handler) readFile(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	name, ok := filePath(r.Params.URI)
	if !ok {
		return nil, mcp.ResourceNotFoundError(r.Params.URI)
	}
	ctx, _ = receiveCall(ctx, r.Extra)
	data, media, err := h.Files.Read(ctx, name, maxResource)
	return dataResource(r.Params.URI, media, data, err)
}

func (h *Handler) readSkill(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	name, err := url.PathUnescape(strings.TrimPrefix(r.Params.URI, skillScheme+"://"))
	if err != nil {
		return nil, mcp.ResourceNotFoundError(r.Params.URI)
	}
	ctx, _ = receiveCall(ctx, r.Extra)
	text, err := h.Skills.Read(ctx, name)
	if err != nil {
		return nil, resourceError(r.Params.URI, err)
	}
	return textResource(r.Params.URI, "text/markdown", text), nil
}

// listResources adds resources that change often to the list: files, skills and others.
func (h *Handler) listResources(ctx context.Context, next mcp.MethodHandler, req mcp.Request) (mcp.Result, error) {
	result, err := next(ctx, "resources/list", req)
	list, ok := result.(*mcp.ListResourcesResult)
	if err != nil || !ok || list.NextCursor != "" {
		return result, err
	}
	ctx, _ = receiveCall(ctx, req.GetExtra())
	if h.Skills != nil {
		if skills, err := h.Skills.List(ctx); err == nil {
			for _, s := range skills {
				list.Resources = append(list.Resources,
					&mcp.Resource{URI: skillScheme + "://" + url.PathEscape(s.Name), Name: s.Name, Description: s.Description, MIMEType: "text/markdown"})
			}
		}
	}
	if h.Resources != nil {
		others, err := h.Resources.List(ctx)
		if err != nil {
			h.Log.Warn("cannot list resources", "error", err)
		}
		for _, r := range others {
			list.Resources = append(list.Resources, &mcp.Resource{URI: r.URI, Name: r.Name, Title: r.Title, Description: r.Doc, MIMEType: r.Type})
		}
	}
	if h.Files == nil {
		return list, nil
	}
	files, err := h.Files.List(ctx)
	if err != nil {
		return nil, resourceError("the workspace", err)
	}
	for _, f := range files {
		u := url.URL{Scheme: "file", Path: f.Path}
		list.Resources = append(list.Resources,
			&mcp.Resource{URI: u.String(), Name: f.Path[strings.LastIndexByte(f.Path, '/')+1:], MIMEType: f.Type, Size: f.Size})
	}
	return list, nil
}

// listPrompts adds the skills to the list of prompts.
func (h *Handler) listPrompts(ctx context.Context, next mcp.MethodHandler, req mcp.Request) (mcp.Result, error) {
	result, err := next(ctx, "prompts/list", req)
	list, ok := result.(*mcp.ListPromptsResult)
	if err != nil || !ok || h.Skills == nil || list.NextCursor != "" {
		return result, err
	}
	ctx, _ = receiveCall(ctx, req.GetExtra())
	skills, err := h.Skills.List(ctx)
	if err != nil {
		return list, nil //nolint:nilerr // the prompts of other servers remain
	}
	for _, s := range skills {
		list.Prompts = slices.DeleteFunc(list.Prompts, func(p *mcp.Prompt) bool { return p.Name == s.Name })
		list.Prompts = append(list.Prompts, &mcp.Prompt{Name: s.Name, Description: s.Description})
	}
	return list, nil
}

// getPrompt returns a skill as a prompt, nil if there is no such skill.
func (h *Handler) getPrompt(ctx context.Context, req mcp.Request) *mcp.GetPromptResult {
	p, ok := req.GetParams().(*mcp.GetPromptParams)
	if !ok || h.Skills == nil {
		return nil
	}
	ctx, _ = receiveCall(ctx, req.GetExtra())
	text, err := h.Skills.Read(ctx, p.Name)
	if err != nil {
		return nil
	}
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: &mcp.TextContent{Text: text}}}}
}

// watched is a resource that clients subscribed to.
type watched struct {
	stop     context.CancelFunc
	ready    chan struct{} // closed when changes are detected, or err is set
	err      error
	sessions map[*mcp.ServerSession]bool
}

// subscribe watches the file of a resource until the session ends or unsubscribes. After
// subscribe has returned, no change is missed.
func (h *Handler) subscribe(ctx context.Context, e *engine, r *mcp.SubscribeRequest) error {
	uri := r.Params.URI
	if h.upstreams.Subscribe(ctx, uri) {
		return nil
	}
	path, ok := filePath(uri)
	if !ok || h.Files == nil {
		return mcp.ResourceNotFoundError(uri)
	}
	w, err := h.watch(e, uri, path, r.Session)
	if err != nil {
		return err
	}
	select {
	case <-w.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if w.err != nil {
		e.release(uri, r.Session)
		return resourceError(uri, w.err)
	}
	return nil
}

// watch returns the watch of a resource and adds the session to it. It starts the watch for
// the first session.
func (h *Handler) watch(e *engine, uri, path string, s *mcp.ServerSession) (*watched, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.watched[uri]
	if w == nil {
		if len(e.watched) >= maxSubscriptions {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "subscription limit reached; unsubscribe from a resource"}
		}
		ctx, stop := context.WithCancel(h.life)
		w = &watched{stop: stop, ready: make(chan struct{}), sessions: map[*mcp.ServerSession]bool{}}
		e.watched[uri] = w
		h.work.Go(func() {
			follow, err := h.Files.Watch(ctx, path, func() {
				_ = e.server.ResourceUpdated(ctx, &mcp.ResourceUpdatedNotificationParams{URI: uri})
			})
			w.err = err
			close(w.ready)
			if err == nil {
				err = follow()
			}
			if err != nil && ctx.Err() == nil {
				h.Log.Warn("cannot watch a resource", "uri", uri, "error", err)
			}
		})
	}
	if !w.sessions[s] {
		w.sessions[s] = true
		h.work.Go(func() {
			_ = s.Wait()
			e.release(uri, s)
		})
	}
	return w, nil
}

func (h *Handler) unsubscribe(e *engine, r *mcp.UnsubscribeRequest) error {
	if !h.upstreams.Unsubscribe(r.Params.URI) {
		e.release(r.Params.URI, r.Session)
	}
	return nil
}

func (e *engine) release(uri string, s *mcp.ServerSession) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w := e.watched[uri]
	if w == nil {
		return
	}
	delete(w.sessions, s)
	if len(w.sessions) == 0 {
		w.stop()
		delete(e.watched, uri)
	}
}
