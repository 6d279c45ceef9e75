package hub

import (
	"log/slog"
	"net/netip"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/agentsandbox"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/gateway"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/hub/internal/ship"
	"github.com/cove-sandbox/cove/internal/hub/toolcatalog"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// Config of a hub. Only Provider is required, and not even that to list operations.
type Config struct {
	Provider sandbox.Provider
	Version  string

	// State is the folder of what the hub itself stores: secrets, the audit log,
	// uploads under way. Empty: it stores nothing.
	State string

	// Environments is the path of the environments file, a JSON array. It is read
	// again whenever it has changed. Empty: there is none.
	Environments string
	// Defaults stand in for what a request and its environment leave out.
	Defaults Defaults
	// MaxTimeout and MaxIdleTimeout bound what may be asked for; default a day
	// and an hour.
	MaxTimeout     time.Duration
	MaxIdleTimeout time.Duration

	// Domains are the names below which {name} is a sandbox and {port}-{name} one of
	// its ports; default localhost. PublicHosts are further names of the hub.
	Domains     []string
	PublicHosts []string
	// PublicPorts opens the ports of sandboxes to everybody who knows their E2B host names.
	PublicPorts bool
	// Sessions starts sessions on those; nil: there is no sign-in.
	Sessions gateway.Sessions
	// Private lists addresses that sandboxes may reach although they are not public.
	Private []netip.Prefix

	// WakeWait is how long a request waits for a sleeping sandbox; default 30
	// seconds. PageWait is how long a person looks at a blank page; default 2.
	WakeWait time.Duration
	PageWait time.Duration

	// Tenants says who may sign in with a key, apart from the operator.
	Tenants Tenants
	// KeepActivity is how long the activity record of a sandbox is kept after its end; 0: not at all.
	KeepActivity time.Duration
	// Creates is how many sandboxes are created at the same time.
	Creates int
	// RequestMemory bounds the bytes of requests under way that the hub holds.
	RequestMemory int64
	// Audit and Traces record what is done.
	Audit  Audit
	Traces Traces

	// Claims are the objects of a cluster that are served with sandboxes.
	Claims Claims

	// SandboxTools calls the tools of sandboxes; nil: they cannot be called. It
	// stays open at Close.
	SandboxTools toolcatalog.Remote

	Log     *slog.Logger
	Metrics *metric.Registry

	changeEgress func(*egress.Config) // for tests
}

// Defaults of sandboxes.
type Defaults = environment.Defaults

// Claims are objects of kubernetes-sigs/agent-sandbox.
type Claims struct {
	Cluster agentsandbox.Cluster // nil: none are served
	// Owners are the owners of the sandboxes of each namespace that is served.
	Owners map[string]string
}

// Tenants of a hub.
type Tenants struct {
	Enabled  bool          // they are enabled as well if the keys file exists
	Keys     string        // path of the keys file
	MaxShare time.Duration // longest life of a link
	Limits   Limits        // of tenants for whom the keys file says nothing else
}

// Limits of a tenant. Zero is no limit.
type Limits = quota.Limits

// Audit configures the audit log, which is in the state folder.
type Audit struct {
	Enabled bool
	KeyFile string // file with the key that seals it; empty: it is not sealed
	// Forward lists the receivers of all lines: syslog, collectors, files.
	Forward        []string
	ForwardHeaders map[string]string // for all collectors in Forward
}

// CheckReceiver validates the URL of a receiver of the audit log.
func CheckReceiver(to string) error { return ship.Check(to) }

// Traces configures the export of traces (OTLP over HTTP).
type Traces struct {
	Endpoint string // empty: none are exported
	Headers  map[string]string
}

func (c *Config) fill() {
	def := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxTimeout, 24*time.Hour)
	def(&c.MaxIdleTimeout, time.Hour)
	def(&c.WakeWait, 30*time.Second)
	def(&c.PageWait, 2*time.Second)
	if len(c.Domains) == 0 {
		c.Domains = []string{"localhost"}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Metrics == nil {
		c.Metrics = metric.New() // nobody reads it
	}
}
