// Package mcphub owns the list of MCP servers of a sandbox: its own groups of tools, and servers that the user adds, as
// processes or by URL. It offers all of them over REST.
//
// It starts the processes of servers, but does not speak MCP itself. The list comes from a file in the usual format
// ({"mcpServers": {…}}) and from API calls; servers that were added by calls survive a restart.
package mcphub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// All is the name of the server with the tools of all other servers.
const All = "all"

// Config of the service.
type Config struct {
	Runner    *proc.Runner
	Workspace string
	File      string // optional file with servers
	Extra     string // more servers as JSON, or the path of a second file
	State     string // folder for servers that calls add
	Groups    []string
	Hub       Hub
	Idle      time.Duration // how long an unused process is kept
	Log       *slog.Logger
}

// Hub speaks MCP: it serves the tools, and connects to the servers.
type Hub interface {
	Mount(name string, s Server, start Starter)
	Unmount(name string)
	// Status returns the state of every added server.
	Status(ctx context.Context) []Status
	// Tools returns the tools of a server in the format of MCP.
	Tools(ctx context.Context, server string) ([]any, error)
	// Call calls a tool of a server. The result has the format of MCP.
	Call(ctx context.Context, server, tool string, args json.RawMessage) (any, error)
}

// Starter starts the process of a server.
type Starter func(ctx context.Context) (out io.ReadCloser, in io.WriteCloser, stop func(), err error)

// Server describes how to reach a server, in the format that MCP clients use.
type Server struct {
	Command string            `json:"command,omitempty" doc:"Program to start; it communicates over standard input and output"`
	Args    []string          `json:"args,omitempty" nullable:"true" doc:"Arguments of the program"`
	Env     map[string]string `json:"env,omitempty" nullable:"true" doc:"Environment variables of the program"`
	Cwd     string            `json:"cwd,omitempty" doc:"Working directory of the program. Default: the workspace"`

	Type    string            `json:"type,omitempty" doc:"stdio (default with command), streamable-http (default with url) or sse"`
	URL     string            `json:"url,omitempty" doc:"URL of a remote server"`
	Headers map[string]string `json:"headers,omitempty" nullable:"true" doc:"Headers of requests to the server, such as Authorization"`

	Disabled bool `json:"disabled,omitempty" doc:"Keep the server in the list but do not use it"`
	NoPrefix bool `json:"noPrefix,omitempty" doc:"Offer the tools under their own names instead of SERVER_TOOL"`
	Hidden   bool `json:"hidden,omitempty" doc:"List the server only if include_hidden is set"`
}

// Status is the state of an added server.
type Status struct {
	Name  string   `json:"name"`
	State string   `json:"state" doc:"connecting, ready, idle, failed or disabled"`
	Why   string   `json:"why,omitempty" doc:"Reason of the failure"`
	Tools []string `json:"tools" doc:"Names of the offered tools"`
}

// Service implements the operations.
type Service struct {
	Config
	load  sync.Once
	mu    sync.Mutex
	fault string            // why servers of a file are not used
	file  map[string]Server // from the files
	added map[string]Server // by calls
}

// New returns the service. It reads and starts nothing before its first use.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{Config: c, file: map[string]Server{}, added: map[string]Server{}}
}

// Close does nothing: the hub ends the connections, and the runner the processes.
func (s *Service) Close() error { return nil }

// Ops lists the operations. None of them is a tool.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "mcp_list", Route: "GET /v1/mcp/servers", Tag: "mcp", SDK: "mcp.list_mcp_servers",
			ReadOnly: true, NoTool: true, Verb: "mcp list",
			Doc: "List the names of the MCP servers of this sandbox."}, s.List),
		op.New(op.Spec{Name: "mcp_status", Route: "GET /v1/mcp/servers/status", Tag: "mcp", ReadOnly: true, NoTool: true, Verb: "mcp status",
			Doc: "List the states of the added servers, with the reason of each failure."}, s.Show),
		op.New(op.Spec{Name: "mcp_add", Route: "POST /v1/mcp/servers", Tag: "mcp", NoTool: true, Verb: "mcp add",
			Doc: "Add or replace an MCP server: a program that communicates over standard input and output, or a " +
				"URL. Its tools are offered together with those of the sandbox."}, s.Add),
		op.New(op.Spec{Name: "mcp_remove", Route: "DELETE /v1/mcp/servers/{name}", Tag: "mcp", NoTool: true,
			Destructive: true, Verb: "mcp remove",
			Doc: "Remove an added MCP server and end its process."}, s.Remove),
		op.New(op.Spec{Name: "mcp_tools", Route: "GET /v1/mcp/{server_name}/tools", Tag: "mcp",
			SDK: "mcp.list_mcp_tools", ReadOnly: true, NoTool: true, Verb: "mcp tools",
			Doc: "List the tools of an MCP server. The server all has the tools of all servers."}, s.Tools),
		op.New(op.Spec{Name: "mcp_execute", Route: "POST /v1/mcp/{server_name}/tools/{tool_name}", Tag: "mcp",
			SDK: "mcp.execute_mcp_tool", NoTool: true, Verb: "mcp execute",
			Doc: "Call a tool of an MCP server. The body contains the arguments, the response the result: content, " +
				"structuredContent, isError."}, s.Execute),
	}
}

// Begin reads the list and passes it to the hub, which connects to the servers. It is called before the first use of the
// list.
func (s *Service) Begin() {
	s.load.Do(func() {
		for name, server := range s.read() {
			s.mount(name, server)
		}
	})
}

func (s *Service) read() map[string]Server {
	s.mu.Lock()
	defer s.mu.Unlock()
	var faults []string
	for _, source := range []struct {
		path string
		into map[string]Server
	}{{s.File, s.file}, {s.Extra, s.file}, {s.store(), s.added}} {
		if err := readServers(source.path, source.into); err != nil {
			s.Log.Warn("cannot read list of mcp servers", "error", err)
			faults = append(faults, err.Error())
		}
	}
	s.fault = strings.Join(faults, "; ")
	all := map[string]Server{}
	for _, list := range []map[string]Server{s.file, s.added} {
		for name, server := range list {
			all[name] = server
		}
	}
	return all
}

func (s *Service) store() string { return filepath.Join(s.State, "mcp", "servers.json") }

// document is the file format of a list of servers.
type document struct {
	Servers map[string]Server `json:"mcpServers"`
}

// readServers reads a file, or JSON text.
func readServers(source string, into map[string]Server) error {
	if source == "" {
		return nil
	}
	b := []byte(source)
	if !strings.HasPrefix(strings.TrimSpace(source), "{") {
		var err error
		if b, err = os.ReadFile(source); errors.Is(err, fs.ErrNotExist) {
			return nil
		} else if err != nil {
			return err
		}
		source = strings.TrimSpace(source)
	} else {
		source = "EXTRA_MCP_SERVERS"
	}
	var d document
	if err := json.Unmarshal(b, &d); err != nil {
		return fmt.Errorf(`%s: not a list of MCP servers, want {"mcpServers": {"name": {"command": …} or {"url": …}}}: %w`, source, err)
	}
	if d.Servers == nil { // some files lack the outer object
		if err := json.Unmarshal(b, &d.Servers); err != nil {
			return fmt.Errorf("%s: not a list of MCP servers: %w", source, err)
		}
	}
	for name, server := range d.Servers {
		into[name] = server
	}
	return nil
}

var names = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$`) })

// check validates a server.
func (s *Service) check(name string, v Server) error {
	switch {
	case !names().MatchString(name):
		return op.Errorf(op.Invalid, "invalid server name %q; use at most 40 letters, digits, - and _", name)
	case slices.Contains(s.Groups, name) || name == All:
		return op.Errorf(op.Conflict, "%q is a built-in server of the sandbox; use another name", name)
	case (v.Command == "") == (v.URL == ""):
		return op.Errorf(op.Invalid, "server %q: set either command or url", name)
	case v.URL != "" && !strings.HasPrefix(v.URL, "http://") && !strings.HasPrefix(v.URL, "https://"):
		return op.Errorf(op.Invalid, "server %q: the url must start with http:// or https://", name)
	case !slices.Contains([]string{"", "stdio", "streamable-http", "streamableHttp", "http", "sse"}, v.Type):
		return op.Errorf(op.Invalid, "server %q: unknown type %q; use stdio, streamable-http or sse", name, v.Type)
	}
	return nil
}

// mount passes a server to the hub, unless it is invalid.
func (s *Service) mount(name string, v Server) {
	if err := s.check(name, v); err != nil {
		s.Log.Warn("ignoring invalid mcp server", "server", name, "error", err)
		s.mu.Lock()
		s.fault = strings.TrimPrefix(s.fault+"; "+err.Error(), "; ")
		s.mu.Unlock()
		return
	}
	if v.Disabled {
		return
	}
	var start Starter
	if v.Command != "" {
		start = s.starter(name, v)
	}
	s.Hub.Mount(name, v, start)
}
