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

// Config of a hub. Only Provider is required, and only to serve operations.
type Config struct {
	Provider sandbox.Provider
	Version  string

	// State is the folder of the hub's own files: secrets, audit log, uploads. Empty: it stores
	// nothing.
	State string

	// Environments is the path of the environments file, a JSON array, which is reloaded after a change.
	// Empty: none.
	Environments string
	// Defaults apply to values that neither a request nor its environment sets.
	Defaults Defaults
	// MaxTimeout and MaxIdleTimeout are upper limits for requests; default a day and an hour.
	MaxTimeout     time.Duration
	MaxIdleTimeout time.Duration

	// Domains are the domains under which {name} is a sandbox and {port}-{name} one of its ports;
	// default localhost. PublicHosts are other host names of the hub.
	Domains     []string
	PublicHosts []string
	// PublicPorts opens the ports of sandboxes to all clients that know their E2B host names.
	PublicPorts bool
	// Sessions starts sessions on sites; nil: sites have no sessions.
	Sessions gateway.Sessions
	// Private lists private addresses that sandboxes may connect to.
	Private []netip.Prefix

	// WakeWait is how long a request waits until a sandbox is awake; default 30 seconds. PageWait applies
	// instead if a browser shows the reply to a person; default 2 seconds.
	WakeWait time.Duration
	PageWait time.Duration

	// Tenants configures the keys of tenants.
	Tenants Tenants
	// KeepActivity is how long activity records are kept after their last save; 0: they are not stored.
	KeepActivity time.Duration
	// Creates is the maximum number of concurrent creates.
	Creates int
	// RequestMemory is the maximum memory of in-flight requests in bytes.
	RequestMemory int64
	// Audit and Traces configure the audit log and traces.
	Audit  Audit
	Traces Traces

	// Claims configures the controller for objects of agent-sandbox.
	Claims Claims

	// SandboxTools calls the tools of sandboxes; nil: not supported. Close does not close it.
	SandboxTools toolcatalog.Remote

	Log     *slog.Logger
	Metrics *metric.Registry

	changeEgress func(*egress.Config) // for tests
}

// Defaults of sandboxes.
type Defaults = environment.Defaults

// Claims configures the objects of kubernetes-sigs/agent-sandbox.
type Claims struct {
	Cluster agentsandbox.Cluster // nil: none are served
	// Owners maps each served namespace to the owner of its sandboxes.
	Owners map[string]string
}

// Tenants of a hub.
type Tenants struct {
	Enabled  bool          // also enabled if the keys file exists
	Keys     string        // path of the keys file
	MaxShare time.Duration // maximum validity of a link
	Limits   Limits        // of tenants without limits in the keys file
}

// Limits of a tenant. Zero is no limit.
type Limits = quota.Limits

// Audit configures the audit log, which is in the state folder.
type Audit struct {
	Enabled bool
	KeyFile string // file with the key of its hashes; empty: no key
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
		c.Metrics = metric.New() // not exported
	}
}
