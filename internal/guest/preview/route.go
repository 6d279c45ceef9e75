package preview

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
)

// headerPort chooses a port without a trace in path or host.
const headerPort = "X-Aio-Proxy-Port"

// route is where a request leads.
type route struct {
	port   int
	path   string // for the service, as it was sent: escaped, not cleaned
	prefix string // /proxy/{port}, /absproxy/{port}, or nothing if the whole host is the service's
	strip  bool   // the service does not see the prefix
	fault  string // why it leads nowhere
}

type routeKey struct{}

// Front sees signed-in requests before they are routed. It finds those that a
// header or a host name leads to a port, and saves the path of all from
// being cleaned: two slashes, dots and escapes mean something to a service. They
// pass through the table like any other, under a path that routes as it is.
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

// routeOf is where a request leads that has come through the table.
func routeOf(r *http.Request) (route, bool) {
	if to, ok := r.Context().Value(routeKey{}).(route); ok {
		return to, true
	}
	return byPath(r.URL.EscapedPath())
}

// find tells where a request leads, if to a port at all. Who set the header
// has decided; a front proxy does so while it keeps the host.
func find(r *http.Request) (route, bool) {
	path := r.URL.EscapedPath()
	if values, ok := r.Header[headerPort]; ok {
		to := route{path: path}
		if len(values) == 1 {
			to.port = number(values[0])
		}
		if to.port == 0 {
			to.fault = fmt.Sprintf("the header %s holds no port; send one number from 1 to 65535", strings.ToLower(headerPort))
		}
		return to, true
	}
	// A name with the server's own port is the server's own name.
	if port := byHost(r.Host); port != 0 && port != ownPort(r) {
		return route{port: port, path: path}, true
	}
	return byPath(path)
}

// byPath takes /proxy/{port}/… and /absproxy/{port}/… apart.
func byPath(path string) (route, bool) {
	rest, strip := strings.CutPrefix(path, "/proxy/")
	if !strip {
		var ok bool
		if rest, ok = strings.CutPrefix(path, "/absproxy/"); !ok {
			return route{}, false
		}
	}
	digits, _, _ := strings.Cut(rest, "/")
	to := route{port: number(digits), path: path, prefix: path[:len(path)-len(rest)] + digits, strip: strip}
	if to.port == 0 {
		to.fault = "the path names no port; use a number from 1 to 65535, such as " + path[:len(path)-len(rest)] + "3000/"
	}
	if strip {
		to.path = rest[len(digits):]
	}
	return to, true
}

// byHost finds the port in {port}-{anything}; 0: there is none.
func byHost(host string) int {
	digits, rest, ok := strings.Cut(host, "-")
	if !ok || rest == "" {
		return 0
	}
	return number(digits)
}

// number reads a port; 0: it is none.
func number(digits string) int {
	if digits == "" || len(digits) > 5 || digits[0] == '0' || strings.Trim(digits, "0123456789") != "" {
		return 0
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n > 65535 {
		return 0
	}
	return n
}

// ownPort is the one that the request came in by; 0 over a unix socket.
func ownPort(r *http.Request) int {
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		return local.Port
	}
	return 0
}
