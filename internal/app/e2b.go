package app

import (
	"context"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/e2b/desktop"
	"github.com/cove-sandbox/cove/internal/guest/e2b/envd"
	"github.com/cove-sandbox/cove/internal/guest/e2b/interpreter"
	"github.com/cove-sandbox/cove/internal/guest/observe"
	"github.com/cove-sandbox/cove/internal/guest/watch"
	"github.com/cove-sandbox/cove/web"
)

// ownPorts are ports that the server itself serves, as E2B's clients expect.
var ownPorts = map[string]string{strconv.Itoa(envd.Port): envd.Path, strconv.Itoa(interpreter.Port): interpreter.Path}

// routeOwnPorts sends requests for one of our own ports to its service, and others to next.
func routeOwnPorts(next, services http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		port := r.Header.Get("X-Aio-Proxy-Port")
		if port == "" {
			port, _, _ = strings.Cut(r.Host, "-")
		}
		path, ok := ownPorts[port]
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		inner := r.WithContext(r.Context())
		u := *r.URL
		u.Path, u.RawPath = path+u.Path, ""
		inner.URL = &u
		services.ServeHTTP(w, inner)
	})
}

// newEnvd returns the service for E2B's clients.
func (a *Aio) newEnvd(watches *watch.Service, commands *desktop.Service) *envd.Service {
	return envd.New(envd.Config{
		Runner: a.runner, Home: a.cfg.Home, Contained: a.cfg.Contained, Watches: watchAdapter{watches}, Log: a.log, Prepare: commands.Prepare,
		Usage: func() envd.Usage { return usageOf(a.observer.Usage()) }, Helper: helperCommand(),
	})
}

// newDesktop returns the additional service for E2B's desktop clients.
func (a *Aio) newDesktop(screen *display.Service) *desktop.Service {
	return desktop.New(desktop.Config{
		Runner: a.runner, Display: displayAdapter{screen}, Contained: a.cfg.Contained, Self: append(helperCommand(), desktopCommand), Log: a.log,
	})
}

// displayAdapter provides the display to the commands of desktop clients.
type displayAdapter struct{ *display.Service }

func (d displayAdapter) Resize(ctx context.Context, width, height int) error {
	_, err := d.Configure(ctx, display.ConfigureIn{Resolution: &display.Resolution{Width: width, Height: height}})
	return err
}

// HelpCommand is the argument that runs the program as a helper of a sandbox: it handles files as
// another user, or is a command of E2B's desktop clients.
const HelpCommand = envd.HelpCommand

// desktopCommand is the second argument of the latter.
const desktopCommand = "desktop"

// Help runs the helper.
func Help(args []string, in io.Reader, out io.Writer) error {
	if len(args) > 0 && args[0] == desktopCommand {
		return desktop.Run(args[1:], desktop.Streams{Environ: config.Environ(), Out: out, Pages: web.Sandbox})
	}
	return envd.Help(args, in, out, func() envd.Watches { return watchAdapter{watch.New(watch.Config{Home: "/", Workspace: "/"})} })
}

// helperCommand returns the command of the helper. The path is absolute, because sudo executes it.
func helperCommand() []string {
	self, err := os.Executable()
	if err != nil {
		self = "aio"
	}
	return []string{self, HelpCommand}
}

// usageOf converts the values of the observation.
func usageOf(c observe.Cgroup, disks []observe.Disk) envd.Usage {
	u := envd.Usage{CPUs: runtime.NumCPU(), CPUPct: op.Value(c.CPUPercent), MemUsed: c.Memory,
		MemTotal: op.Value(c.MemoryMax), MemCache: op.Value(c.File)}
	for _, d := range disks {
		if d.Path == "/" {
			u.DiskUsed, u.DiskTotal = d.Used, d.Total
		}
	}
	return u
}

// watchAdapter provides the watch service to E2B's clients.
type watchAdapter struct{ service *watch.Service }

func (w watchAdapter) Open(ctx context.Context, path string, recursive bool) (string, error) {
	made, err := w.service.Create(ctx, watch.CreateIn{Path: path, Recursive: recursive, Debounce: 50})
	return made.WatcherID, err
}

func (w watchAdapter) Next(ctx context.Context, id string, after int64, wait time.Duration) ([]envd.Change, error) {
	out, err := w.service.Poll(ctx, watch.PollIn{WatcherID: id, Cursor: after, Limit: 1000, Timeout: int(wait / time.Second)})
	if err != nil {
		return nil, err
	}
	changes := make([]envd.Change, 0, len(out.Events))
	for _, e := range out.Events {
		c := envd.Change{Seq: e.Seq, Kind: e.Type, Path: e.Path, Name: e.Relative, Size: op.Value(e.Size)}
		if e.OldPath != nil {
			c.Old = strings.TrimPrefix(strings.TrimPrefix(*e.OldPath, strings.TrimSuffix(e.Path, e.Relative)), "/")
		}
		changes = append(changes, c)
	}
	return changes, nil
}

func (w watchAdapter) Flush(ctx context.Context, id string) {
	_ = w.service.Flush(ctx, id) // it may have ended
}

func (w watchAdapter) Close(id string) {
	_, _ = w.service.Stop(context.Background(), watch.StopIn{WatcherID: id}) // it may have ended
}
