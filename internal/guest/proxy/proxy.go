// Package proxy is the sandbox's own proxy for outgoing traffic. It speaks HTTP, CONNECT
// and SOCKS5, answers for mapped hosts from services on this machine, and sends everything
// else on: directly, through an upstream proxy, and in a sandbox of a hub always through the
// hub's proxy, which has the last word.
//
// It owns the mappings, the list of excluded hosts, the upstream proxy with its credentials,
// the sandbox's certificate authority and a bounded log. It never shows credentials whole,
// decrypts only connections to mapped hosts, and refuses to reach the sandbox's own
// listeners under whatever name or address.
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
	Address func() string                               // where the proxy listens
	Hub     func(ctx context.Context) (net.Conn, error) // connects to the hub's proxy; nil if there is none
	Deny    func(port int) bool                         // ports of this machine that belong to the sandbox itself
	Environ func() []string                             // variables that point programs at the proxy

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
	fault error // in the configuration

	plain  *http.Transport // unmapped plain requests
	real   *http.Transport // unmapped requests within decrypted connections
	local  *http.Transport // mapped requests
	server *http.Server
	funnel *funnel
	within *http.Server // requests in decrypted connections
	inner  *funnel
	start  sync.Once

	mu      sync.Mutex // of changes of the rules
	pointed bool       // programs are pointed at the proxy
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
	s.life, s.end = context.WithCancel(context.Background())
	s.ca = sync.OnceValues(func() (*certificate.Authority, error) { return openAuthority(c.State) })
	first, err := newRules(c)
	s.rules.Store(first)
	s.fault = err
	s.plain = &http.Transport{Proxy: s.plainProxy, DialContext: s.dialPlain, MaxIdleConns: 32,
		IdleConnTimeout: idleTime, MaxResponseHeaderBytes: maxHeader, DisableCompression: true}
	s.real = &http.Transport{DialContext: s.dialReal, MaxIdleConns: 16, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxHeader, DisableCompression: true, ForceAttemptHTTP2: false, TLSHandshakeTimeout: dialTimeout}
	s.local = &http.Transport{DialContext: s.dialLocal, MaxIdleConns: 32, IdleConnTimeout: idleTime,
		MaxResponseHeaderBytes: maxHeader, DisableCompression: true}
	return s
}

// CheckConfig reports what is wrong with the settings, so that the start can fail.
func (s *Service) CheckConfig() error { return s.fault }

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "proxy_list_mappings", Route: "GET /v1/proxy/mappings", Tag: "proxy",
			SDK: "proxy.list_mappings", ReadOnly: true, Verb: "proxy mappings",
			Doc: "List the mappings of foreign hosts to services in the sandbox."}, s.ListMappings),
		op.New(op.Spec{Name: "proxy_add_mapping", Route: "POST /v1/proxy/mappings", Tag: "proxy", SDK: "proxy.add_mapping", Verb: "proxy map",
			Doc: "Answer requests for a foreign host from a service in the sandbox. An existing mapping of the " +
				"same source is replaced. HTTPS works too: programs inside trust the sandbox's own authority."}, s.AddMapping),
		op.New(op.Spec{Name: "proxy_remove_mapping", Route: "DELETE /v1/proxy/mappings/{source...}", Tag: "proxy",
			SDK: "proxy.remove_mapping", Verb: "proxy unmap",
			Doc: "Remove a mapping by its source, URL-encoded."}, s.RemoveMapping),
		op.New(op.Spec{Name: "proxy_list_excludes", Route: "GET /v1/proxy/excludes", Tag: "proxy",
			SDK: "proxy.list_excludes", ReadOnly: true, Verb: "proxy excludes",
			Doc: "List the hosts that bypass the upstream proxy."}, s.ListExcludes),
		op.New(op.Spec{Name: "proxy_add_exclude", Route: "POST /v1/proxy/excludes", Tag: "proxy", SDK: "proxy.add_exclude", Verb: "proxy exclude",
			Doc: "Let a host bypass the upstream proxy: a name with its subdomains, *.name, .name, an address or a " +
				"network such as 10.0.0.0/8."}, s.AddExclude),
		op.New(op.Spec{Name: "proxy_remove_exclude", Route: "DELETE /v1/proxy/excludes", Tag: "proxy",
			SDK: "proxy.remove_exclude", Verb: "proxy include",
			Doc: "Remove a pattern from the hosts that bypass the upstream proxy."}, s.RemoveExclude),
		op.New(op.Spec{Name: "proxy_diagnose", Route: "GET /v1/proxy/diagnose", Tag: "proxy", SDK: "proxy.diagnose",
			ReadOnly: true, Verb: "proxy diagnose",
			Doc: "Explain the route of a URL: which rule applies, where it leads, and whether that is reachable."}, s.Diagnose),
		op.New(op.Spec{Name: "proxy_health", Route: "GET /v1/proxy/health", Tag: "proxy", SDK: "proxy.health",
			ReadOnly: true, Verb: "proxy health",
			Doc: "Check the outbound proxy."}, s.Health),
		op.New(op.Spec{Name: "proxy_get_upstream", Route: "GET /v1/proxy/upstream", Tag: "proxy",
			SDK: "proxy.get_upstream", ReadOnly: true, Verb: "proxy upstream",
			Doc: "Show the upstream proxy. Its password is masked."}, s.GetUpstream),
		op.New(op.Spec{Name: "proxy_set_upstream", Route: "PUT /v1/proxy/upstream", Tag: "proxy",
			SDK: "proxy.set_upstream", Verb: "proxy set-upstream",
			Doc: "Send traffic through an upstream proxy from now on; nothing need be restarted."}, s.SetUpstream),
		op.New(op.Spec{Name: "proxy_remove_upstream", Route: "DELETE /v1/proxy/upstream", Tag: "proxy",
			SDK: "proxy.remove_upstream", Verb: "proxy remove-upstream",
			Doc: "Stop using an upstream proxy."}, s.RemoveUpstream),
		op.New(op.Spec{Name: "proxy_log", Route: "GET /v1/proxy/log", Tag: "proxy", ReadOnly: true, Verb: "proxy log",
			Doc: "List recent requests through the proxy with their routes, oldest first."}, s.Log),
	}
}

// Close ends all connections.
func (s *Service) Close() error {
	s.end()
	s.mu.Lock()
	server, within := s.server, s.within
	for l := range s.links {
		l.Close()
	}
	s.mu.Unlock()
	if server != nil {
		server.Close()
		within.Close()
	}
	s.work.Wait()
	for _, t := range []*http.Transport{s.plain, s.real, s.local} {
		t.CloseIdleConnections()
	}
	return nil
}

const (
	idleTime     = 30 * time.Second
	dialTimeout  = 15 * time.Second
	helloTimeout = 30 * time.Second
	maxHeader    = 256 << 10
	maxRecords   = 512
)
