package preview

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// headerPort selects a port independently of path and host.
const headerPort = "X-Aio-Proxy-Port"

// route is the destination of a request.
type route struct {
	port   int
	path   string // for the service: escaped, not cleaned
	prefix string // /proxy/{port} or /absproxy/{port}; empty if the service has the whole host
	strip  bool   // the path of the service has no prefix
	fault  string // why the route is invalid
}

type routeKey struct{}

// Front handles authenticated requests before they are routed. It finds requests with a port in the header, host name or path,
// and forwards them under a path that the router does not change. Otherwise the router would clean their paths, and double
// slashes, dots and escapes are significant to a service.
func (s *Service) Front(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to, ok := find(r)
		if !ok || r.Method == http.MethodConnect {
			next.ServeHTTP(w, r)
			return
		}
		inner := r.WithContext(context.WithValue(r.Context(), routeKey{}, to))
		u := *r.URL
		u.Path, u.RawPath = "/proxy/"+strconv.Itoa(to.port)+"/", ""
		if to.prefix != "" && !to.strip {
			u.Path = "/absproxy/" + strconv.Itoa(to.port) + "/"
		}
		inner.URL = &u
		next.ServeHTTP(w, inner)
	})
}

// routeOf returns the route of a request that was routed to the service.
func routeOf(r *http.Request) (route, bool) {
	if to, ok := r.Context().Value(routeKey{}).(route); ok {
		return to, true
	}
	return byPath(r.URL.EscapedPath())
}

// find returns the route of a request, or false if the request is not for a port. The header has precedence, because a reverse
// proxy sets it and keeps the host.
func find(r *http.Request) (route, bool) {
	path := r.URL.EscapedPath()
	if values, ok := r.Header[headerPort]; ok {
		to := route{path: path}
		if len(values) == 1 {
			to.port = parsePort(values[0])
		}
		if to.port == 0 {
			to.fault = fmt.Sprintf("invalid port in header %s; send one number from 1 to 65535", strings.ToLower(headerPort))
		}
		return to, true
	}
	if port := HostPort(r); port != 0 {
		return route{port: port, path: path}, true
	}
	return byPath(path)
}

// byPath parses /proxy/{port}/… and /absproxy/{port}/….
func byPath(path string) (route, bool) {
	rest, strip := strings.CutPrefix(path, "/proxy/")
	if !strip {
		var ok bool
		if rest, ok = strings.CutPrefix(path, "/absproxy/"); !ok {
			return route{}, false
		}
	}
	digits, _, _ := strings.Cut(rest, "/")
	to := route{port: parsePort(digits), path: path, prefix: path[:len(path)-len(rest)] + digits, strip: strip}
	if to.port == 0 {
		to.fault = "invalid port in path; use a number from 1 to 65535, such as " + path[:len(path)-len(rest)] + "3000/"
	}
	if strip {
		to.path = rest[len(digits):]
	}
	return to, true
}

// HostPort returns the port that the host name of a request selects, or 0 if there is none. A host name with the port of the
// server itself selects the server.
func HostPort(r *http.Request) int {
	if port := byHost(r.Host); port != ownPort(r) {
		return port
	}
	return 0
}

// PathPort returns the port in an escaped path, or 0 if there is none.
func PathPort(path string) int {
	to, _ := byPath(path)
	return to.port
}

// byHost parses {port}-{anything}. It returns 0 if there is no port.
func byHost(host string) int {
	digits, rest, ok := strings.Cut(host, "-")
	if !ok || rest == "" {
		return 0
	}
	return parsePort(digits)
}

// parsePort parses a port. It returns 0 if the port is invalid.
func parsePort(digits string) int {
	if digits == "" || len(digits) > 5 || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
		return 0
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > 65535 {
		return 0
	}
	return n
}

// ownPort returns the port that received the request, or 0 for a unix socket.
func ownPort(r *http.Request) int {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return local.Port
	}
	return 0
}
