package hub

import (
	"context"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// worker adds the tools that run code: they return their arguments, report progress, or hang.
func worker(entered chan struct{}) func(*guestServer) {
	return func(g *guestServer) {
		run := func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			args := string(r.Params.Arguments)
			switch {
			case strings.Contains(args, "hang"):
				entered <- struct{}{}
				entered <- struct{}{} // until the test receives: this fake cannot delete a sandbox during a call
				return nil, ctx.Err()
			case strings.Contains(args, "report"):
				for _, message := range []string{"half done", strings.Repeat("ü", 5000)} {
					if err := r.Session.NotifyProgress(ctx,
						&mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: 1, Total: 2, Message: message}); err != nil {
						return nil, err
					}
				}
				<-entered // return the result after the progress was received
			case strings.Contains(args, "fail"):
				return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "it failed"}}}, nil
			}
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: g.sb.Spec.Name + " ran " + r.Params.Name + " " + args}}}, nil
		}
		for _, name := range []string{"bash_exec", "code_execute"} {
			g.tools.AddTool(&mcp.Tool{Name: name, InputSchema: object{"type": "object"}}, run)
		}
	}
}

func (r *rig) names() (all []string) {
	r.t.Helper()
	list, err := r.hub.cfg.Provider.List(context.Background(), sandbox.Filter{})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, sb := range list {
		all = append(all, sb.Spec.Name)
	}
	return all
}

// TestRunInNewSandbox: one call creates, uses and deletes a sandbox, even if the call fails.
func TestRunInNewSandbox(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	r := newRig(t, setup{more: worker(entered)})
	a := r.agent(as{})
	for _, x := range []struct {
		args object
		want string
		bad  bool
	}{
		{object{"command": "make test", "timeout": 5}, `ran bash_exec {"command":"make test","hard_timeout":5}`, false},
		{object{"code": "1+1", "language": "javascript"}, `ran code_execute {"code":"1+1","language":"javascript","timeout":60}`, false},
		{object{"command": "fail"}, "it failed", true},
		{object{}, "pass either command or code", true},
		{object{"command": "x", "code": "y"}, "pass either command or code", true},
		{object{"command": "x", "environment": "no-such"}, "no-such", true},
		{object{"cmd": "make", "tiemout": 5}, `did you mean "timeout"?`, true},
		{object{"command": "x", "timeout": 1e9}, "timeout", true},
	} {
		if res := a.call("runInNewSandbox", x.args); res.IsError != x.bad || !strings.Contains(said(res), x.want) {
			t.Errorf("%v: got %v %s, want %q", x.args, res.IsError, said(res), x.want)
		}
		if left := r.names(); len(left) > 0 {
			t.Errorf("%v: got %v left, want none", x.args, left)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := a.CallTool(ctx, &mcp.CallToolParams{Name: "runInNewSandbox", Arguments: object{"command": "hang"}})
		done <- err
	}()
	<-entered
	cancel()
	<-entered
	if err := <-done; err == nil {
		t.Error("a canceled call: got a result, want an error")
	}
	testenv.Poll(t, "the sandbox of the canceled call is deleted", func() bool { return len(r.names()) == 0 })
}

// TestExecuteInSandboxes: the results of all sandboxes are collected, and a failure of one does not affect the others.
func TestExecuteInSandboxes(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{more: worker(nil)})
	r.create(`{"name":"a"}`)
	r.create(`{"name":"b"}`)
	agent := r.agent(as{})
	res := agent.call("executeInSandboxes", object{"sandbox_names": []string{"a", "gone", "b"},
		"tool_name": "bash_exec", "arguments": object{"command": "date"}})
	for _, want := range []string{"2 of 3 succeeded", "== a\na ran bash_exec", "== gone failed\n", "== b\nb ran bash_exec"} {
		if res.IsError || !strings.Contains(said(res), want) {
			t.Errorf("got %v %s, want %q in it", res.IsError, said(res), want)
		}
	}
	if res := agent.call("executeInSandboxes", object{"sandbox_names": []string{"gone"},
		"tool_name": "bash_exec"}); !res.IsError || !strings.Contains(said(res), "gone") {
		t.Errorf("got %v %s, want an error if none succeeded", res.IsError, said(res))
	}
}

// TestProgressOfASandboxsTool: progress of a tool in the sandbox is forwarded to the agent, limited in size.
func TestProgressOfASandboxsTool(t *testing.T) {
	t.Parallel()
	entered := make(chan struct{})
	r := newRig(t, setup{more: worker(entered)})
	r.create(`{"name":"a"}`)
	heard := make(chan *mcp.ProgressNotificationParams, 16)
	client := mcp.NewClient(&mcp.Implementation{Name: "agent", Version: "1"}, &mcp.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, n *mcp.ProgressNotificationClientRequest) { heard <- n.Params },
	})
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: r.server.URL + "/mcp"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := &mcp.CallToolParams{Name: "sandboxExecutor", Arguments: object{"sandbox_name": "a", "tool_name": "bash_exec",
		"arguments": object{"command": "report"}}}
	p.SetProgressToken("mine")
	done := make(chan error, 1)
	go func() { _, err := s.CallTool(t.Context(), p); done <- err }()
	for seen := 0; seen < 2; {
		n := <-heard
		switch {
		case n.ProgressToken != "mine" || len(n.Message) > 1024:
			t.Fatalf("got %+v, want the agent's token and a bounded message", n)
		case n.Message == "half done" && n.Progress == 1 && n.Total == 2, strings.HasPrefix(n.Message, "ü"):
			seen++
		}
	}
	close(entered)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
