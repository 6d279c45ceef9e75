package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Cove is the configuration of `cove hub`. Names without the prefix COVE_ are
// those of the public service that it stands in for.
type Cove struct {
	// Where the hub listens and under which names it is known.
	Listen         string   `key:"listen" env:"SERVER_ADDR" default:"127.0.0.1:10000" doc:"Address to serve on: host:port, or unix:/path for a socket."`
	PublicHosts    []string `key:"public_hosts" env:"COVE_PUBLIC_HOSTS" doc:"Host names under which the hub is reached, *.example.com for all below; needed for names other than localhost when no sign-in is set."`
	Domains        []string `key:"domains" env:"COVE_DOMAINS" default:"localhost" doc:"Names below which {port}-{sandbox} leads to a port of a sandbox."`
	AllowedOrigins []string `key:"allowed_origins" env:"COVE_ALLOWED_ORIGINS" doc:"Origins of other web pages that may call the API, such as https://app.example.com."`
	TrustedProxies []string `key:"trusted_proxies" env:"COVE_TRUSTED_PROXIES" doc:"Addresses or networks (CIDR) of proxies whose X-Forwarded-* headers shape URLs."`
	Insecure       bool     `key:"insecure" env:"COVE_INSECURE" default:"false" doc:"Serve on an address that others can reach although no sign-in is set."`
	BodyLimit      Bytes    `key:"body_limit" env:"COVE_BODY_LIMIT" default:"64MiB" min:"64KiB" max:"16GiB" doc:"Largest body of a request to the hub itself; what goes into sandboxes is not bound by it."`

	// Sign-in.
	JWTPublicKey string        `key:"jwt_public_key" env:"JWT_PUBLIC_KEY" secret:"true" doc:"RSA public key (base64 of its PEM) that verifies RS256 bearer tokens."`
	AuthToken    string        `key:"auth_token" env:"COVE_TOKEN,AUTH_TOKEN" secret:"true" doc:"Shared token, sent as Authorization: Bearer."`
	APIKey       string        `key:"api_key" env:"COVE_API_KEY" secret:"true" doc:"Key, sent as X-API-Key."`
	TicketTTL    time.Duration `key:"ticket_ttl" env:"TICKET_TTL_SECONDS" default:"30s" min:"1s" max:"1h" doc:"How long a one-time ticket can be used."`

	// Tenants.
	Tenants  bool          `key:"tenants" env:"COVE_TENANTS" default:"false" doc:"Serve many tenants, who sign in with keys; on as well when the keys file is there."`
	Keys     string        `key:"keys" env:"COVE_KEYS" doc:"File of the tenants' keys and limits, read again when it changes; empty means keys.json below the state folder."`
	MaxShare time.Duration `key:"max_share" env:"COVE_MAX_SHARE" default:"24h" min:"1m" doc:"Longest life of a link to a sandbox."`
	Creates  int           `key:"creates" env:"COVE_CREATES" default:"16" min:"1" max:"1024" doc:"Sandboxes that are made at the same time; more wait for their turn, fairly among tenants."`

	// The record of what was done, and traces.
	Audit        bool     `key:"audit" env:"COVE_AUDIT" default:"true" doc:"Write down who did what to which sandbox, in audit below the state folder."`
	AuditKeyFile string   `key:"audit_key_file" env:"COVE_AUDIT_KEY_FILE" doc:"File whose content seals the lines of the audit log against those who can write its folder but not read this file."`
	OTLPEndpoint string   `key:"otlp_endpoint" env:"COVE_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" doc:"Address of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of every call."`
	OTLPHeaders  []string `key:"otlp_headers" env:"COVE_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" secret:"true" doc:"Headers to send there, each name=value."`

	// What makes sandboxes, and where.
	Provider string `key:"provider" env:"COVE_PROVIDER" default:"local" enum:"local" doc:"What makes sandboxes."`
	State    string `key:"state" env:"COVE_STATE" doc:"Folder that holds the sandboxes; empty means /var/lib/cove for root, else cove below XDG_STATE_HOME or ~/.local/state."`
	Aio      string `key:"aio" env:"COVE_AIO" doc:"The aio program that sandboxes run; empty means the one beside this program."`
	Venv     string `key:"venv" env:"COVE_VENV" doc:"Python environment that sandboxes see, read-only; empty means venv below the state folder if it is there."`
	Cgroup   string `key:"cgroup" env:"COVE_CGROUP" doc:"A delegated cgroup v2 folder to work below; empty means to find one."`
	FirstID  int    `key:"first_id" env:"COVE_FIRST_ID" default:"2000000000" min:"65536" max:"4000000000" doc:"First of the user IDs of this machine that sandboxes use, 65536 each."`

	// Images.
	InsecureRegistries []string `key:"insecure_registries" env:"COVE_INSECURE_REGISTRIES" doc:"Image registries, host or host:port, that are reached without TLS."`
	PrivateRegistries  []string `key:"private_registries" env:"COVE_PRIVATE_REGISTRIES" doc:"Image registries, host or host:port, that may have private addresses."`
	RegistryAuth       string   `key:"registry_auth" env:"COVE_REGISTRY_AUTH" doc:"File with logins of registries, in the form of docker's config.json."`

	// Environments and defaults of sandboxes.
	Environments       string        `key:"environments" env:"SANDBOX_ENVIRONMENT_CONFIG_FILE" doc:"JSON file of environments, read again when it changes."`
	DefaultEnvironment string        `key:"default_environment" env:"SANDBOX_DEFAULT_ENVIRONMENT" default:"aio" doc:"Environment of sandboxes that name neither one nor an image."`
	DefaultImage       string        `key:"default_image" env:"SANDBOX_DEFAULT_IMAGE" doc:"Image of that environment; empty means this machine's own programs."`
	Pool               int           `key:"pool" env:"COVE_POOL" default:"0" min:"0" max:"1000" doc:"How many sandboxes of that environment are kept ready; the file says it for others."`
	Timeout            time.Duration `key:"timeout" env:"COVE_TIMEOUT" default:"1h" min:"1m" doc:"How long a sandbox lives that does not say."`
	IdleTimeout        time.Duration `key:"idle_timeout" env:"COVE_IDLE_TIMEOUT" default:"10m" min:"1m" doc:"After how long without use a sandbox counts as idle."`
	MaxTimeout         time.Duration `key:"max_timeout" env:"COVE_MAX_TIMEOUT" default:"24h" min:"1m" doc:"Longest life that can be asked for."`
	MaxIdleTimeout     time.Duration `key:"max_idle_timeout" env:"COVE_MAX_IDLE_TIMEOUT" default:"1h" min:"1m" doc:"Longest idle time that can be asked for."`
	IdlePolicy         string        `key:"idle_policy" env:"COVE_IDLE_POLICY" default:"delete" enum:"delete,stop,pause" doc:"What happens to an idle sandbox that does not say."`
	Network            string        `key:"network" env:"COVE_NETWORK" default:"open" enum:"open,none" doc:"What sandboxes may reach that do not say: public addresses, or nothing."`
	Private            []string      `key:"private_networks" env:"COVE_PRIVATE_NETWORKS" doc:"Addresses or networks (CIDR) that sandboxes may reach although they are not public."`
	MemoryLimit        Bytes         `key:"memory_limit" env:"COVE_MEMORY_LIMIT" default:"1GiB" min:"64MiB" doc:"Memory of a sandbox that does not say."`
	DiskLimit          Bytes         `key:"disk_limit" env:"COVE_DISK_LIMIT" default:"10GiB" min:"16MiB" doc:"Disk of a sandbox that does not say."`

	// Log.
	LogFormat string `key:"log_format" env:"COVE_LOG_FORMAT" default:"text" enum:"text,json" doc:"Form of log lines."`
	LogLevel  string `key:"log_level" env:"COVE_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" doc:"Least level that is logged."`
}

// Complete fills what depends on the machine and checks what tags cannot say.
func (c *Cove) Complete(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	// The public service's address has no host.
	if strings.HasPrefix(c.Listen, ":") {
		c.Listen = "0.0.0.0" + c.Listen
	}
	checkServer(c.Listen, c.PublicHosts, c.AllowedOrigins, c.TrustedProxies, fault)
	if _, err := Prefixes(c.Private); err != nil {
		fault("private_networks", "%v", err)
	}
	if c.JWTPublicKey != "" {
		if _, err := RSAPublicKey(c.JWTPublicKey); err != nil {
			fault("jwt_public_key", "%v", err)
		}
	}
	home, _ := lookup("HOME")
	state, _ := lookup("XDG_STATE_HOME")
	switch {
	case c.State != "":
	case os.Geteuid() == 0:
		c.State = "/var/lib/cove"
	case state != "":
		c.State = filepath.Join(state, "cove")
	case home != "":
		c.State = filepath.Join(home, ".local", "state", "cove")
	default:
		fault("state", "cannot be derived, since HOME is not set; name a folder")
	}
	absolute := func(path *string) {
		if *path != "" {
			if abs, err := filepath.Abs(*path); err == nil {
				*path = abs
			}
		}
	}
	absolute(&c.State)
	if c.Keys == "" && c.State != "" {
		c.Keys = filepath.Join(c.State, "keys.json")
	}
	absolute(&c.Keys)
	absolute(&c.AuditKeyFile)
	for _, pair := range c.OTLPHeaders {
		if name, _, ok := strings.Cut(pair, "="); !ok || strings.TrimSpace(name) == "" {
			fault("otlp_headers", "must be name=value")
		}
	}
	absolute(&c.Aio)
	absolute(&c.Environments)
	if c.Venv == "" {
		if _, err := os.Stat(filepath.Join(c.State, "venv", "bin", "python")); err == nil {
			c.Venv = filepath.Join(c.State, "venv")
		}
	}
	absolute(&c.Venv)
}

// String hides secrets.
func (c Cove) String() string { return Redact(&c) }

// GoString hides secrets from %#v.
func (c Cove) GoString() string { return "config.Cove{" + Redact(&c) + "}" }

// LogValue hides secrets from a log line that carries the whole struct.
func (c Cove) LogValue() slog.Value { return slog.StringValue(Redact(&c)) }

// MarshalText hides secrets from encoders.
func (c Cove) MarshalText() ([]byte, error) { return []byte(Redact(&c)), nil }

// CoveClient is how the command line reaches a hub.
type CoveClient struct {
	URL   string `key:"hub_url" env:"COVE_URL" default:"http://127.0.0.1:10000" doc:"Address of the hub: http://host:port or unix:/path."`
	Token string `key:"token" env:"COVE_TOKEN,AUTH_TOKEN" secret:"true" doc:"Bearer token to send."`
	Key   string `key:"api_key" env:"COVE_API_KEY" secret:"true" doc:"API key to send."`
}
