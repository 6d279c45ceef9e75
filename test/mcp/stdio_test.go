package mcp

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestStdio: programs that start MCP servers as processes reach a running sandbox and a running hub, with
// selected tools.
func TestStdio(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		program, variable, url string
		call                   gomcp.CallToolParams
		want                   string
	}{
		{aio, "AIO_API_URL", serve(t), gomcp.CallToolParams{Name: "bash_exec",
			Arguments: map[string]any{"command": "echo from $((40 + 2))"}}, "from 42"},
		{cove, "COVE_URL", serveHub(t), gomcp.CallToolParams{Name: "listSandboxes"}, `"a"`},
	} {
		cmd := exec.Command(c.program, "mcp", "stdio", "--tools", c.call.Name)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), c.variable + "=" + c.url}
		s, err := gomcp.NewClient(&gomcp.Implementation{Name: "desktop", Version: "1"}, nil).Connect(t.Context(),
			&gomcp.CommandTransport{Command: cmd}, nil)
		if err != nil {
			t.Fatalf("%s: %v", cmd, err)
		}
		list, err := s.ListTools(t.Context(), nil)
		if err != nil || len(list.Tools) != 1 || list.Tools[0].Name != c.call.Name {
			t.Errorf("%s: got tools %+v, error %v, want only %s", cmd, list, err, c.call.Name)
		}
		got, err := s.CallTool(t.Context(), &c.call)
		if err != nil || got.IsError || !strings.Contains(got.Content[0].(*gomcp.TextContent).Text, c.want) {
			t.Errorf("%s: got %+v, error %v, want %q", cmd, got, err, c.want)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: got %v at its end, want none", cmd, err)
		}
	}
}

// TestCommands: the command line lists servers and tools, and calls a tool of the sandbox and of an added
// server.
func TestCommands(t *testing.T) {
	t.Parallel()
	url := serve(t)
	run := func(args ...string) (out, errs string, code int) {
		t.Helper()
		var o, e strings.Builder
		cmd := exec.Command(aio, append([]string{"mcp"}, args...)...)
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir(), "AIO_API_URL=" + url}
		cmd.Stdout, cmd.Stderr = &o, &e
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return o.String(), e.String(), cmd.ProcessState.ExitCode()
	}
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"list", 0, `"browser"`},
		{"tools file", 0, `"file_read"`},
		{"call bash_exec command=echo_$((40+2))", 0, `42`},
		{"call file_read path=/etc/hostname start_line=1", 0, `"content"`},
		{"call file_read path=/etc/hostname start_line=x", 1, `start_line`},
		{"call file_read nothing=1", 1, `unknown argument`},
		{"call file_red", 1, `file_read`},
		{"call", 2, `TOOL`},
	} {
		args := strings.Fields(c.args)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "_$", " $")
		}
		out, errs, code := run(args...)
		if code != c.code || !strings.Contains(out+errs, c.want) {
			t.Errorf("aio mcp %s: got code %d, %s%s, want %d and %s", c.args, code, out, errs, c.code, c.want)
		}
	}
}
