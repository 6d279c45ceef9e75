// Package proxy implements the sandbox's own proxy for outgoing traffic. It speaks HTTP, CONNECT and SOCKS5. It maps hosts to
// services on this machine and forwards all other requests: directly, or through an upstream proxy. In a sandbox of a hub it
// connects only through the egress proxy, which has the final decision.
//
// It owns the mappings, the list of excluded hosts, the upstream proxy with its credentials, the sandbox's certificate
// authority and a bounded log. It masks credentials, decrypts only connections to mapped hosts, and refuses connections to the
// sandbox's own listeners under any name or address.
package proxy

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Config of the service.
type Config struct {
	State   string // directory for the certificate authority
	Runner  *proc.Runner
	Address func() string                               // address of the relay, which passes connections to the proxy
	Egress  func(ctx context.Context) (net.Conn, error) // connects to the egress proxy; nil if there is none
	Deny    func(port int) bool                         // whether a port of this machine is reserved for the sandbox
	Environ func() []string                             // variables that point programs to the proxy

	Upstream string
	Exclude  []string
	Include  []string
	Map      string // list of SOURCE=TARGET, or a JSON object

	Log *slog.Logger
}

// Service implements the proxy and its operations.
type Service struct {
	cfg  Config
	life context.Context
	end  context.CancelFunc
	work sync.WaitGroup
	log  ring

	rules atomic.Pointer[rules]
	dial  dialer
	fault error // in the configuration

	plain  *http.Transport // unmapped plain requests
	direct *http.Transport // unmapped requests of decrypted connections
	mapped *http.Transport
	server *http.Server
	funnel *funnel
	inner  *http.Server // requests in decrypted connections
	tunnel *funnel
	start  sync.Once

	mu      sync.Mutex // serializes changes of the rules
	pointed bool       // programs use the proxy
	trusted bool       // programs trust the authority
	links   map[*link]bool
	ca      func() (*certificate.Authority, error)
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Deny == nil {
		c.Deny = func(int) bool { return false }
	}
	s := &Service{cfg: c, links: map[*link]bool{}, log: ring{max: maxRecords}}
	s.dial = dialer{&s.cfg, &s.rules}
	s.life, s.end = context.WithCancel(context.Background())
	s.ca = sync.OnceValues(func() (*certificate.Authority, error) { return openAuthority(c.State) })
	first, err := newRules(c)
	s.rules.Store(first)
	s.fault = err
	s.plain = &http.Transport{Proxy: s.dial.plainProxy, DialContext: s.dial.dialPlain, MaxIdleConns: 32,
		IdleConnTimeout: idleTime, MaxResponseHeaderBytes: maxHeader, DisableCompression: true}
	s.direct = &http.Transport{DialContext: s.dial.dialUnmapped, MaxIdleConns: 16, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxHeader, DisableCompression: true, ForceAttemptHTTP2: false, TLSHandshakeTimeout: dialTimeout}
	s.mapped = &http.Transport{DialContext: s.dial.dialMapped, MaxIdleConns: 32, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxHeader, DisableCompression: true}
	return s
}

// CheckConfig returns an error if the settings are invalid, so that the start can fail.
func (s *Service) CheckConfig() error { return s.fault }

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "proxy_list_mappings", Route: "GET /v1/proxy/mappings", Tag: "proxy",
			SDK: "proxy.list_mappings", ReadOnly: true, Verb: "proxy mappings",
			Doc: "List the mappings of external hosts to services in the sandbox."}, s.ListMappings),
		op.New(op.Spec{Name: "proxy_add_mapping", Route: "POST /v1/proxy/mappings", Tag: "proxy", SDK: "proxy.add_mapping", Verb: "proxy map",
			Doc: "Map an external host to a service in the sandbox. An existing mapping with the same source is " +
				"replaced. HTTPS works too: programs in the sandbox trust its certificate authority."}, s.AddMapping),
		op.New(op.Spec{Name: "proxy_remove_mapping", Route: "DELETE /v1/proxy/mappings/{source...}", Tag: "proxy",
			SDK: "proxy.remove_mapping", Verb: "proxy unmap",
			Doc: "Remove a mapping by its source, URL-encoded."}, s.RemoveMapping),
		op.New(op.Spec{Name: "proxy_list_excludes", Route: "GET /v1/proxy/excludes", Tag: "proxy",
			SDK: "proxy.list_excludes", ReadOnly: true, Verb: "proxy excludes",
			Doc: "List the hosts that bypass the upstream proxy."}, s.ListExcludes),
		op.New(op.Spec{Name: "proxy_add_exclude", Route: "POST /v1/proxy/excludes", Tag: "proxy", SDK: "proxy.add_exclude", Verb: "proxy exclude",
			Doc: "Bypass the upstream proxy for a host: a name with its subdomains, *.name, .name, an address or a " +
				"network such as 10.0.0.0/8."}, s.AddExclude),
		op.New(op.Spec{Name: "proxy_remove_exclude", Route: "DELETE /v1/proxy/excludes", Tag: "proxy",
			SDK: "proxy.remove_exclude", Verb: "proxy include",
			Doc: "Remove a pattern from the hosts that bypass the upstream proxy."}, s.RemoveExclude),
		op.New(op.Spec{Name: "proxy_diagnose", Route: "GET /v1/proxy/diagnose", Tag: "proxy", SDK: "proxy.diagnose",
			ReadOnly: true, Verb: "proxy diagnose",
			Doc: "Explain the route of a URL or host: the rule that applies, the target, and whether the target is reachable. " +
				"In a sandbox of a hub, also the rule of the egress policy, and how to allow the host."}, s.Diagnose),
		op.New(op.Spec{Name: "proxy_health", Route: "GET /v1/proxy/health", Tag: "proxy", SDK: "proxy.health",
			ReadOnly: true, Verb: "proxy health",
			Doc: "Check the health of the sandbox's proxy."}, s.Health),
		op.New(op.Spec{Name: "proxy_get_upstream", Route: "GET /v1/proxy/upstream", Tag: "proxy",
			SDK: "proxy.get_upstream", ReadOnly: true, Verb: "proxy upstream",
			Doc: "Get the upstream proxy. Its password is masked."}, s.GetUpstream),
		op.New(op.Spec{Name: "proxy_set_upstream", Route: "PUT /v1/proxy/upstream", Tag: "proxy",
			SDK: "proxy.set_upstream", Verb: "proxy set-upstream",
			Doc: "Send traffic through an upstream proxy. New connections use it immediately; no restart is needed."}, s.SetUpstream),
		op.New(op.Spec{Name: "proxy_remove_upstream", Route: "DELETE /v1/proxy/upstream", Tag: "proxy",
			SDK: "proxy.remove_upstream", Verb: "proxy remove-upstream",
			Doc: "Stop using the upstream proxy."}, s.RemoveUpstream),
		op.New(op.Spec{Name: "proxy_log", Route: "GET /v1/proxy/log", Tag: "proxy", ReadOnly: true, Verb: "proxy log",
			Doc: "List recent requests through the proxy with their routes, oldest first."}, s.Log),
	}
}

// Close ends all connections.
func (s *Service) Close() error {
	s.end()
	s.mu.Lock()
	server, inner := s.server, s.inner
	for l := range s.links {
		l.Close()
	}
	s.mu.Unlock()
	if server != nil {
		server.Close()
		inner.Close()
	}
	s.work.Wait()
	for _, t := range []*http.Transport{s.plain, s.direct, s.mapped} {
		t.CloseIdleConnections()
	}
	return nil
}

const (
	idleTime    = 30 * time.Second
	dialTimeout = 15 * time.Second
	// egressTimeout is longer, because a connection may wait for the approval of the sandbox's owner.
	egressTimeout = 90 * time.Second
	helloTimeout  = 30 * time.Second
	maxHeader     = 256 << 10
	maxRecords    = 512
)
