package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/surface/mcp/upstream"
)

// remote is a server of one version of the protocol, which asks its clients questions.
type remote struct {
	*mcp.Server
	version  string
	canceled chan string // names of clients whose call was canceled
}

func newRemote(version string) *remote {
	r := &remote{version: version, canceled: make(chan string, 1)}
	r.Server = mcp.NewServer(&mcp.Implementation{Name: "far", Version: "1"}, &mcp.ServerOptions{
		SupportedProtocolVersions: []string{version}, Capabilities: &mcp.ServerCapabilities{Logging: &mcp.LoggingCapabilities{}}})
	tools := map[string]mcp.ToolHandler{"work": r.work, "ask": r.ask, "hang": r.hang}
	for name, handle := range tools {
		r.AddTool(&mcp.Tool{Name: name, InputSchema: map[string]any{"type": "object"}}, handle)
	}
	r.AddPrompt(&mcp.Prompt{Name: "greet"}, func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		return &mcp.GetPromptResult{Description: "a greeting", Messages: []*mcp.PromptMessage{{Role: "user", Content: emptyFile()}}}, nil
	})
	r.AddResource(&mcp.Resource{Name: "note", URI: "far://note"},
		func(_ context.Context, q *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: q.Params.URI, Text: "a note"}}}, nil
		})
	r.AddReceivingMiddleware(func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			if method == "initialize" && version >= upstream.Stateless {
				return nil, &jsonrpc.Error{Code: mcp.CodeUnsupportedProtocolVersion, Message: "initialize is not supported"}
			}
			return next(ctx, method, req)
		}
	})
	return r
}

// emptyFile is an embedded resource without text.
func emptyFile() mcp.Content {
	return &mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "far://empty", MIMEType: "text/plain"}}
}

func said(text string) *mcp.CallToolResult {
	return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: text}}}
}

// work reports progress and writes to the log.
func (r *remote) work(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	err := errors.Join(
		q.Session.NotifyProgress(ctx,
			&mcp.ProgressNotificationParams{ProgressToken: q.Params.GetProgressToken(), Progress: 1, Message: "half"}),
		q.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "logged"}))
	result := said("worked")
	result.Content = append(result.Content, emptyFile())
	return result, err
}

// hang waits until it is canceled.
func (r *remote) hang(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	err := q.Session.NotifyProgress(ctx,
		&mcp.ProgressNotificationParams{ProgressToken: q.Params.GetProgressToken(), Message: "hangs"})
	if err != nil {
		return nil, err
	}
	<-ctx.Done()
	r.canceled <- "canceled"
	return nil, ctx.Err()
}

// questions are asked one after the other.
var questions = []mcp.InputRequest{
	&mcp.ElicitParams{Message: "name?", RequestedSchema: map[string]any{"type": "object",
		"properties": map[string]any{"name": map[string]any{"type": "string"}}}},
	&mcp.CreateMessageWithToolsParams{MaxTokens: 9,
		Messages: []*mcp.SamplingMessageV2{{Role: "user", Content: []mcp.Content{&mcp.TextContent{Text: "hi"}}}}},
	&mcp.ListRootsParams{},
}

func show(a mcp.InputResponse) string {
	switch a := a.(type) {
	case *mcp.ElicitResult:
		return fmt.Sprint(a.Action, " ", a.Content["name"])
	case *mcp.CreateMessageWithToolsResult:
		return a.Content[0].(*mcp.TextContent).Text
	case *mcp.ListRootsResult:
		return a.Roots[0].URI
	}
	return fmt.Sprintf("%T", a)
}

// ask asks all questions in the way of the server's version.
func (r *remote) ask(ctx context.Context, q *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if r.version >= upstream.Stateless {
		state, n := q.Params.RequestState, len(q.Params.InputResponses)
		if n > 0 {
			state += show(q.Params.InputResponses["q"]) + ";"
		}
		if n = strings.Count(state, ";"); n == len(questions) {
			return said(state), nil
		}
		return &mcp.CallToolResult{InputRequests: mcp.InputRequestMap{"q": questions[n]}, RequestState: state}, nil
	}
	var all strings.Builder
	for _, question := range questions {
		var a mcp.InputResponse
		var err error
		switch p := question.(type) {
		case *mcp.ElicitParams:
			a, err = q.Session.Elicit(ctx, p)
		case *mcp.CreateMessageWithToolsParams:
			a, err = q.Session.CreateMessageWithTools(ctx, p)
		case *mcp.ListRootsParams:
			a, err = q.Session.ListRoots(ctx, p)
		}
		if err != nil {
			return nil, err
		}
		all.WriteString(show(a) + ";")
	}
	return said(all.String()), nil
}

// mountByAddress and mountByPipe return the server as one that is reached by URL, and as a process.
func mountByAddress(t *testing.T, r *remote) upstream.Server {
	t.Helper()
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return r.Server },
		&mcp.StreamableHTTPOptions{DisableLocalhostProtection: true, Stateless: r.version >= upstream.Stateless,
			PropagateRequestCancellation: true}))
	t.Cleanup(func() {
		for s := range r.Sessions() {
			s.Close()
		}
		web.CloseClientConnections()
		web.Close()
	})
	return upstream.Server{Name: "far", URL: web.URL}
}

func mountByPipe(t *testing.T, r *remote) upstream.Server {
	t.Helper()
	return upstream.Server{Name: "far", Start: func(context.Context) (io.ReadCloser, io.WriteCloser, func(), error) {
		in, toServer := io.Pipe()
		fromServer, out := io.Pipe()
		s, err := r.Connect(context.Background(), &mcp.IOTransport{Reader: in, Writer: out}, nil)
		return fromServer, toServer, func() { in.Close(); out.Close(); s.Close() }, err
	}}
}

// mountByEvents returns the server as one with the transport that preceded streamable HTTP.
func mountByEvents(t *testing.T, r *remote) upstream.Server {
	t.Helper()
	web := httptest.NewServer(mcp.NewSSEHandler(func(*http.Request) *mcp.Server { return r.Server }, nil))
	t.Cleanup(func() {
		for s := range r.Sessions() {
			s.Close()
		}
		web.CloseClientConnections()
		web.Close()
	})
	return upstream.Server{Name: "far", URL: web.URL, SSE: true}
}

// listener is a client that answers questions and receives messages.
type listener struct {
	*mcp.ClientSession
	progress, logs chan string
	version        string
}

func newListener(t *testing.T, url, version string) *listener {
	t.Helper()
	l := &listener{progress: make(chan string, 8), logs: make(chan string, 8), version: version}
	c := mcp.NewClient(&mcp.Implementation{Name: "client " + version, Version: "1"}, &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, r *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"name": version}}, nil
		},
		CreateMessageWithToolsHandler: func(context.Context, *mcp.CreateMessageWithToolsRequest) (*mcp.CreateMessageWithToolsResult, error) {
			return &mcp.CreateMessageWithToolsResult{Role: "assistant", Model: "m",
				Content: []mcp.Content{&mcp.TextContent{Text: "sampled"}}}, nil
		},
		ProgressNotificationHandler: func(_ context.Context, r *mcp.ProgressNotificationClientRequest) { l.progress <- r.Params.Message },
		LoggingMessageHandler:       func(_ context.Context, r *mcp.LoggingMessageRequest) { l.logs <- fmt.Sprint(r.Params.Data) },
	})
	c.AddRoots(&mcp.Root{URI: "file:///root/of/" + version})
	var err error
	l.ClientSession, err = c.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url + "/mcp"},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	if got := l.InitializeResult().ProtocolVersion; got != version {
		t.Fatalf("got version %s, want %s", got, version)
	}
	if version < upstream.Stateless {
		if err := l.SetLoggingLevel(t.Context(), &mcp.SetLoggingLevelParams{Level: "info"}); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

func (l *listener) call(ctx context.Context, tool string) (string, error) {
	p := &mcp.CallToolParams{Name: "far_" + tool, Meta: mcp.Meta{"progressToken": "token"}}
	if l.version >= upstream.Stateless {
		p.Meta[mcp.MetaKeyLogLevel] = "info"
	}
	r, err := l.CallTool(ctx, p)
	if err != nil {
		return "", err
	}
	return r.Content[0].(*mcp.TextContent).Text, nil
}

// TestVersionsOfClientsAndServers: clients of every version use everything that mounted servers of
// every version offer.
func TestVersionsOfClientsAndServers(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name  string
		mount func(*testing.T, *remote) upstream.Server
	}{{"address", mountByAddress}, {"process", mountByPipe}, {"events", mountByEvents}} {
		for _, server := range mcp.SupportedProtocolVersions() {
			if way.name == "events" && server >= upstream.Stateless {
				continue // requires streamable HTTP
			}
			t.Run(way.name+" "+server, func(t *testing.T) {
				t.Parallel()
				far := newRemote(server)
				h := New(Config{Name: "here", Version: "1", Ops: toys})
				h.Mount(way.mount(t, far))
				web := httptest.NewServer(h)
				t.Cleanup(func() {
					h.Close()
					web.CloseClientConnections()
					web.Close()
				})
				for _, client := range mcp.SupportedProtocolVersions() {
					t.Run("client "+client, func(t *testing.T) { useAll(t, newListener(t, web.URL, client), far) })
				}
			})
		}
	}
}

func useAll(t *testing.T, l *listener, far *remote) {
	t.Helper()
	tools, err := l.ListTools(t.Context(), nil)
	if err != nil || len(tools.Tools) != 11 {
		t.Fatalf("got tools %+v, %v, want 3 besides our own", tools, err)
	}
	if got, err := l.call(t.Context(), "work"); err != nil || got != "worked" {
		t.Fatalf("got %q, %v, want a result", got, err)
	}
	if got := <-l.progress; got != "half" {
		t.Errorf("got progress %q, want half", got)
	}
	if got := <-l.logs; got != "logged" {
		t.Errorf("got log %q, want logged", got)
	}
	prompts, err := l.ListPrompts(t.Context(), nil)
	if err != nil || len(prompts.Prompts) != 1 || prompts.Prompts[0].Name != "far_greet" {
		t.Errorf("got prompts %+v, %v, want that of the server", prompts, err)
	}
	resources, err := l.ListResources(t.Context(), nil)
	if err != nil || len(resources.Resources) != 1 || resources.Resources[0].URI != "far://note" {
		t.Errorf("got resources %+v, %v, want that of the server", resources, err)
	}
	prompt, err := l.GetPrompt(t.Context(), &mcp.GetPromptParams{Name: "far_greet"})
	if err != nil || prompt.Description != "a greeting" {
		t.Errorf("got %+v, %v, want the prompt", prompt, err)
	}
	read, err := l.ReadResource(t.Context(), &mcp.ReadResourceParams{URI: "far://note"})
	if err != nil || read.Contents[0].Text != "a note" {
		t.Errorf("got %+v, %v, want the resource", read, err)
	}
	want := "accept " + l.version + ";sampled;file:///root/of/" + l.version + ";"
	if got, err := l.call(t.Context(), "ask"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := l.call(ctx, "hang")
		ended <- err
	}()
	if got := <-l.progress; got != "hangs" {
		t.Errorf("got progress %q, want hangs", got)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
	<-far.canceled
}
