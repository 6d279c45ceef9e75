package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/guest/agentconfig"
)

// planPublicSettings validates settings of the public image that contain a file.
func (a *Aio) planPublicSettings(environ []string) (err error) {
	env := map[string]string{}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "CODEX_") ||
			strings.HasPrefix(name, "OPENCODE_") || name == "ARK_API_KEY" || name == "OPENAI_API_KEY" {
			env[name] = value
		}
	}
	a.agents, err = agentconfig.Plan(agentconfig.Config{Home: a.cfg.Home, State: a.cfg.State, Env: env})
	return err
}

// imagePorts are the ports of components of the public image, which its users wait for. Here one
// server has all these components.
var imagePorts = []int{8079, 8091}

// foreignPorts removes the ports of components of the public image.
func foreignPorts(ports []int) []int {
	return slices.DeleteFunc(slices.Clone(ports), func(port int) bool { return slices.Contains(imagePorts, port) })
}

// disable replaces an operation that the settings disable with an error.
func (a *Aio) disable(o op.Op) op.Op {
	var err error
	switch _, path := o.MethodPath(); {
	case a.cfg.DisableVNC && (o.Name == "vnc_socket" || o.Name == "vnc_page"):
		err = errDisabled("VNC page", "DISABLE_VNC")
	case a.cfg.DisableBrowser && (path == "/cdp/{path...}" || strings.HasPrefix(path, "/v1/browser/") && !isOfDisplay(o.Name)):
		err = errDisabled("browser", "DISABLE_BROWSER")
	default:
		return o
	}
	if o.Call != nil {
		o.Call = func(context.Context, any) (any, error) { return nil, err }
	}
	if o.Stream != nil {
		o.Stream = func(context.Context, any, func(op.Event) error) error { return err }
	}
	if o.Duplex != nil {
		o.Duplex = func(context.Context, any, op.Conn) error { return err }
	}
	if o.Handler != nil {
		o.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		})
	}
	return o
}

// isOfDisplay reports whether an operation below /v1/browser/ uses only the display.
func isOfDisplay(name string) bool {
	return slices.Contains([]string{"browser_screenshot", "browser_actions", "browser_config"}, name)
}

func errDisabled(what, variable string) error {
	return op.Errorf(op.Unavailable, "the %s is disabled in this sandbox; unset %s and restart it", what, variable)
}

// browserState returns the readiness of the browser.
func (a *Aio) browserState() (state, why string) {
	if a.cfg.DisableBrowser {
		return "absent", "disabled by DISABLE_BROWSER"
	}
	return a.browser.State()
}

// offered removes the tools that the settings disable.
func (a *Aio) offered(tools []toolset.Tool) []toolset.Tool {
	if !a.cfg.DisableMCPBrowser && !a.cfg.DisableBrowser {
		return tools
	}
	return slices.DeleteFunc(tools, func(t toolset.Tool) bool {
		return t.Server == "browser" && (a.cfg.DisableMCPBrowser ||
			!isOfDisplay(t.Op.Name) && strings.Contains(t.Op.Route, " /v1/browser/"))
	})
}

// offeredServers removes the groups of tools that the settings disable.
func (a *Aio) offeredServers(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool { return a.cfg.DisableMCPBrowser && name == "browser" })
}

// prepareFiles writes the files of coding agents and creates the folder of log files.
func (a *Aio) prepareFiles() {
	if a.logs != nil {
		if err := a.logs.create(); err != nil {
			a.log.Warn("cannot write log files", "error", err)
		}
	}
	if err := a.agents.Write(); err != nil {
		a.log.Warn("cannot configure a coding agent", "error", err)
	}
}

// openLogs adds log files to the log, if a folder for them is configured.
func (a *Aio) openLogs() {
	if a.cfg.LogDir == "" || a.logs != nil {
		return
	}
	a.stderr, a.logs = a.log, newLogDir(a.cfg.LogDir)
	a.log = a.logOf("aio")
}

// logOf returns the log of a service: that of the server and, if log files are written, a separate
// file.
func (a *Aio) logOf(service string) *slog.Logger {
	if a.logs == nil {
		return a.log
	}
	own := host.Log(a.cfg.LogLevel, a.cfg.LogFormat, a.logs.writer(service))
	return slog.New(slog.NewMultiHandler(a.stderr.Handler(), own.Handler()))
}

// outputOf returns the file for the output of a service's program; nil without log files.
func (a *Aio) outputOf(service string) io.Writer {
	if a.logs == nil {
		return nil
	}
	return a.logs.writer(service)
}
