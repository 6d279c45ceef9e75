package gateway

import (
	"net/url"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// target is the sandbox, port and path that a request addresses.
type target struct {
	name   string // or ID
	port   int    // 0: the sandbox's server
	path   string // after the prefix, escaped, exactly as it was sent
	full   string // path including /proxy/{port}, if that is part of the prefix
	prefix string // /sandbox/{name} and the pass; empty if the host name addresses the sandbox
	pass   string // segment of the prefix that carries a session; empty: none
	byHost bool   // the host name addresses the sandbox
	e2b    bool   // the request is from an E2B client
}

// parsePath parses /sandbox/{name}/… and /sandbox/{name}/{pass}/….
func parsePath(escaped string) (target, bool) {
	rest, ok := strings.CutPrefix(escaped, "/sandbox/")
	if !ok {
		return target{}, false
	}
	segment, _, _ := strings.Cut(rest, "/")
	name, err := url.PathUnescape(segment)
	if err != nil || sandbox.CheckName(name) != nil {
		return target{}, false
	}
	to := target{name: name, path: rest[len(segment):], prefix: naming.Path(name)}
	to.full = to.path
	if pass, _, _ := strings.Cut(strings.TrimPrefix(to.path, "/"), "/"); auth.IsPass(pass) {
		to.pass, to.path, to.prefix = pass, to.path[1+len(pass):], to.prefix+"/"+pass
		to.full = to.path
	}
	return to, true
}

// site is the owner of the content at the target. The sandbox's server serves ports by path.
func (to target) site() naming.Site {
	if to.port != 0 {
		return naming.Site{Name: to.name, Port: to.port}
	}
	port, _, _ := to.pathPort()
	return naming.Site{Name: to.name, Port: port}
}

// hasOrigin reports whether no other site shares the host name.
func (to target) hasOrigin() bool { return to.byHost && to.site().Port == to.port }

// pathPort finds the port in /proxy/{port}/… and /absproxy/{port}/…; rest is what follows it.
func (to target) pathPort() (port int, rest string, keepsPath bool) {
	rest, ok := strings.CutPrefix(to.full, "/proxy/")
	if !ok {
		if rest, keepsPath = strings.CutPrefix(to.full, "/absproxy/"); !keepsPath {
			return 0, "", false
		}
	}
	digits, _, _ := strings.Cut(rest, "/")
	port, err := strconv.Atoi(digits)
	if err != nil || sandbox.CheckPort(port) != nil || strconv.Itoa(port) != digits {
		return 0, "", false
	}
	return port, rest[len(digits):], keepsPath
}

// sitePath is the path on the site's own host name.
func (to target) sitePath() string {
	path := to.full
	if port, rest, keepsPath := to.pathPort(); port != 0 && !keepsPath && !(to.byHost && to.port != 0) {
		path = rest
	}
	if path == "" {
		return "/"
	}
	return path
}

// toPort turns /proxy/{port}/… into a target at that port: the hub itself connects to the port of
// a sandbox whose server does not support such paths.
func (to target) toPort() target {
	port, rest, keepsPath := to.pathPort()
	if to.byHost || to.port != 0 || port == 0 || keepsPath {
		return to
	}
	to.port, to.path, to.prefix = port, rest, to.prefix+"/proxy/"+strconv.Itoa(port)
	return to
}
