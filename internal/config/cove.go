package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Cove is the configuration of `cove hub`. Variables without the prefix COVE_ have the names
// of the public service that a hub replaces. Docs documents the settings.
type Cove struct {
	// Addresses and limits of the server.
	Listen         string   `key:"listen" env:"SERVER_ADDR" default:"127.0.0.1:10000"`
	ListenFD       int      `key:"listen_fd" env:"COVE_LISTEN_FD" default:"0" minimum:"0" maximum:"1048576"`
	ReplicaAddress string   `key:"replica_address" env:"COVE_REPLICA_ADDRESS"`
	TLSCert        string   `key:"tls_cert" env:"COVE_TLS_CERT"`
	TLSKey         string   `key:"tls_key" env:"COVE_TLS_KEY"`
	PublicHosts    []string `key:"public_hosts" env:"COVE_PUBLIC_HOSTS"`
	Domains        []string `key:"domains" env:"COVE_DOMAINS" default:"localhost"`
	PublicPorts    bool     `key:"public_ports" env:"COVE_PUBLIC_PORTS" default:"false"`
	AllowedOrigins []string `key:"allowed_origins" env:"COVE_ALLOWED_ORIGINS"`
	TrustedProxies []string `key:"trusted_proxies" env:"COVE_TRUSTED_PROXIES"`
	Insecure       bool     `key:"insecure" env:"COVE_INSECURE" default:"false"`
	BodyLimit      Bytes    `key:"body_limit" env:"COVE_BODY_LIMIT" default:"1MiB" minimum:"64KiB" maximum:"1GiB"`
	ToolLimit      Bytes    `key:"tool_limit" env:"COVE_TOOL_LIMIT" default:"16MiB" minimum:"64KiB" maximum:"1GiB"`
	RequestMemory  Bytes    `key:"request_memory" env:"COVE_REQUEST_MEMORY" default:"256MiB" minimum:"1MiB"`

	// Authentication.
	JWTPublicKey string        `key:"jwt_public_key" env:"JWT_PUBLIC_KEY" secret:"public"`
	JWTIssuer    string        `key:"jwt_issuer" env:"JWT_ISSUER"`
	JWTAudience  string        `key:"jwt_audience" env:"JWT_AUDIENCE"`
	AuthToken    string        `key:"auth_token" env:"COVE_TOKEN,AUTH_TOKEN" secret:"true"`
	APIKey       string        `key:"api_key" env:"COVE_API_KEY" secret:"true"`
	TicketTTL    time.Duration `key:"ticket_ttl" env:"TICKET_TTL_SECONDS" default:"30s" minimum:"1s" maximum:"1h"`
	LocalUsers   []string      `key:"local_users" env:"COVE_LOCAL_USERS"`

	// Tenants.
	Tenants  bool          `key:"tenants" env:"COVE_TENANTS" default:"false"`
	Keys     string        `key:"keys" env:"COVE_KEYS"`
	MaxShare time.Duration `key:"max_share" env:"COVE_MAX_SHARE" default:"24h" minimum:"1m"`
	Creates  int           `key:"creates" env:"COVE_CREATES" default:"16" minimum:"1" maximum:"1024"`

	// Limits of a tenant for which the keys file sets none; 0 means no limit.
	TenantSandboxes int     `key:"tenant_sandboxes" env:"COVE_TENANT_SANDBOXES" default:"100" minimum:"0"`
	TenantCPU       float64 `key:"tenant_cpu" env:"COVE_TENANT_CPU" default:"100" minimum:"0"`
	TenantMemory    Bytes   `key:"tenant_memory" env:"COVE_TENANT_MEMORY" default:"100GiB"`
	TenantDisk      Bytes   `key:"tenant_disk" env:"COVE_TENANT_DISK" default:"1000GiB"`
	TenantRate      float64 `key:"tenant_rate" env:"COVE_TENANT_RATE" default:"300" minimum:"0"`
	TenantBurst     int     `key:"tenant_burst" env:"COVE_TENANT_BURST" default:"100" minimum:"0"`
	TenantCalls     int     `key:"tenant_calls" env:"COVE_TENANT_CALLS" default:"1000" minimum:"0"`
	TenantRequests  Bytes   `key:"tenant_request_memory" env:"COVE_TENANT_REQUEST_MEMORY" default:"32MiB"`

	// MCP sessions.
	MCPSessions int `key:"mcp_sessions" env:"COVE_MCP_SESSIONS" default:"100" minimum:"1" maximum:"10000"`
	MCPTotal    int `key:"mcp_sessions_total" env:"COVE_MCP_SESSIONS_TOTAL" default:"1000" minimum:"1" maximum:"100000"`

	// Activity records of sandboxes.
	KeepActivity time.Duration `key:"keep_activity" env:"COVE_KEEP_ACTIVITY" default:"168h" minimum:"0s"`

	// Audit log and traces.
	Audit               bool              `key:"audit" env:"COVE_AUDIT" default:"true"`
	AuditKeyFile        string            `key:"audit_key_file" env:"COVE_AUDIT_KEY_FILE"`
	AuditForward        []string          `key:"audit_forward" env:"COVE_AUDIT_FORWARD"`
	AuditForwardHeaders map[string]string `key:"audit_forward_headers" env:"COVE_AUDIT_FORWARD_HEADERS" secret:"true"`
	OTLPEndpoint        string            `key:"otlp_endpoint" env:"COVE_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT"`
	OTLPHeaders         map[string]string `key:"otlp_headers" env:"COVE_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" secret:"true"`

	// Where sandboxes run.
	Provider   string `key:"provider" env:"COVE_PROVIDER" default:"local" enum:"local,docker,kubernetes"`
	DockerHost string `key:"docker_host" env:"COVE_DOCKER_HOST"`

	// Kubernetes.
	Kubeconfig          string        `key:"kubernetes_config" env:"COVE_KUBERNETES_CONFIG,KUBECONFIG"`
	KubeContext         string        `key:"kubernetes_context" env:"COVE_KUBERNETES_CONTEXT"`
	KubeServiceHost     string        `key:"kubernetes_service_host" env:"KUBERNETES_SERVICE_HOST"`
	KubeServicePort     string        `key:"kubernetes_service_port" env:"KUBERNETES_SERVICE_PORT" default:"443"`
	KubeNamespace       string        `key:"kubernetes_namespace" env:"COVE_KUBERNETES_NAMESPACE"`
	KubeTenants         []string      `key:"kubernetes_tenant_namespaces" env:"COVE_KUBERNETES_TENANT_NAMESPACES"`
	KubeName            string        `key:"kubernetes_name" env:"COVE_KUBERNETES_NAME" default:"cove"`
	KubeReach           string        `key:"kubernetes_reach" env:"COVE_KUBERNETES_REACH" default:"auto" enum:"auto,pod,api"`
	KubePrograms        string        `key:"kubernetes_programs_image" env:"COVE_KUBERNETES_PROGRAMS_IMAGE" default:"cove-hub:latest"`
	KubePullSecrets     []string      `key:"kubernetes_pull_secrets" env:"COVE_KUBERNETES_PULL_SECRETS"`
	KubeRuntimeClass    string        `key:"kubernetes_runtime_class" env:"COVE_KUBERNETES_RUNTIME_CLASS"`
	KubeRuntimeClasses  []string      `key:"kubernetes_runtime_classes" env:"COVE_KUBERNETES_RUNTIME_CLASSES"`
	KubeUserNamespaces  bool          `key:"kubernetes_user_namespaces" env:"COVE_KUBERNETES_USER_NAMESPACES" default:"false"`
	KubeRoot            bool          `key:"kubernetes_root" env:"COVE_KUBERNETES_ROOT" default:"false"`
	KubeSeccomp         string        `key:"kubernetes_seccomp" env:"COVE_KUBERNETES_SECCOMP"`
	KubeDisk            string        `key:"kubernetes_disk" env:"COVE_KUBERNETES_DISK" default:"ephemeral" enum:"ephemeral,persistent"`
	KubeStorageClass    string        `key:"kubernetes_storage_class" env:"COVE_KUBERNETES_STORAGE_CLASS"`
	KubeSharedVolumes   bool          `key:"kubernetes_shared_volumes" env:"COVE_KUBERNETES_SHARED_VOLUMES" default:"false"`
	KubeSnapClass       string        `key:"kubernetes_snapshot_class" env:"COVE_KUBERNETES_SNAPSHOT_CLASS"`
	KubeSnapEndpoint    string        `key:"kubernetes_snapshot_endpoint" env:"COVE_KUBERNETES_SNAPSHOT_ENDPOINT"`
	KubeSnapBucket      string        `key:"kubernetes_snapshot_bucket" env:"COVE_KUBERNETES_SNAPSHOT_BUCKET"`
	KubeSnapPrefix      string        `key:"kubernetes_snapshot_prefix" env:"COVE_KUBERNETES_SNAPSHOT_PREFIX"`
	KubeSnapRegion      string        `key:"kubernetes_snapshot_region" env:"COVE_KUBERNETES_SNAPSHOT_REGION" default:"us-east-1"`
	KubeSnapAccessKey   string        `key:"kubernetes_snapshot_access_key" env:"COVE_KUBERNETES_SNAPSHOT_ACCESS_KEY" secret:"true"`
	KubeSnapSecretKey   string        `key:"kubernetes_snapshot_secret_key" env:"COVE_KUBERNETES_SNAPSHOT_SECRET_KEY" secret:"true"`
	KubeClaims          []string      `key:"kubernetes_claims" env:"COVE_KUBERNETES_CLAIMS"`
	KubeScheduleTimeout time.Duration `key:"kubernetes_schedule_timeout" env:"COVE_KUBERNETES_SCHEDULE_TIMEOUT" default:"30s" minimum:"1s"`

	// Files and resources of the machine.
	State      string `key:"state" env:"COVE_STATE"`
	Aio        string `key:"aio" env:"COVE_AIO"`
	Venv       string `key:"venv" env:"COVE_VENV"`
	Components string `key:"components" env:"COVE_COMPONENTS"`
	Cgroup     string `key:"cgroup" env:"COVE_CGROUP"`
	FirstID    int    `key:"first_id" env:"COVE_FIRST_ID" default:"2000000000" minimum:"65536" maximum:"4000000000"`

	// Images.
	InsecureRegistries []string `key:"insecure_registries" env:"COVE_INSECURE_REGISTRIES"`
	PrivateRegistries  []string `key:"private_registries" env:"COVE_PRIVATE_REGISTRIES"`
	RegistryAuth       string   `key:"registry_auth" env:"COVE_REGISTRY_AUTH"`

	// Environments and default settings of sandboxes.
	Environments       string        `key:"environments" env:"SANDBOX_ENVIRONMENT_CONFIG_FILE"`
	DefaultEnvironment string        `key:"default_environment" env:"SANDBOX_DEFAULT_ENVIRONMENT" default:"aio"`
	DefaultImage       string        `key:"default_image" env:"SANDBOX_DEFAULT_IMAGE"`
	Pool               int           `key:"pool" env:"COVE_POOL" default:"0" minimum:"0" maximum:"1000"`
	Timeout            time.Duration `key:"timeout" env:"COVE_TIMEOUT" default:"1h" minimum:"1m"`
	IdleTimeout        time.Duration `key:"idle_timeout" env:"COVE_IDLE_TIMEOUT" default:"10m" minimum:"1m"`
	MaxTimeout         time.Duration `key:"max_timeout" env:"COVE_MAX_TIMEOUT" default:"24h" minimum:"1m"`
	MaxIdleTimeout     time.Duration `key:"max_idle_timeout" env:"COVE_MAX_IDLE_TIMEOUT" default:"1h" minimum:"1m"`
	Keep               time.Duration `key:"keep" env:"COVE_KEEP" default:"168h" minimum:"1h"`
	IdlePolicy         string        `key:"idle_policy" env:"COVE_IDLE_POLICY" default:"delete" enum:"delete,stop,pause"`
	Network            string        `key:"network" env:"COVE_NETWORK" default:"open" enum:"open,none"`
	Private            []string      `key:"private_networks" env:"COVE_PRIVATE_NETWORKS"`
	MemoryLimit        Bytes         `key:"memory_limit" env:"COVE_MEMORY_LIMIT" default:"1GiB" minimum:"64MiB"`
	DiskLimit          Bytes         `key:"disk_limit" env:"COVE_DISK_LIMIT" default:"10GiB" minimum:"16MiB"`
	DiskRate           Bytes         `key:"disk_rate_limit" env:"COVE_DISK_RATE_LIMIT" default:"0"`
	Bandwidth          Bytes         `key:"bandwidth_limit" env:"COVE_BANDWIDTH_LIMIT" default:"0"`
	Runsc              string        `key:"runsc" env:"COVE_RUNSC"`
	VolumeLimit        Bytes         `key:"volume_limit" env:"COVE_VOLUME_LIMIT" default:"10GiB" minimum:"16MiB"`

	// Log.
	LogFile     string `key:"log_file" env:"COVE_LOG_FILE"`
	LogFileSize Bytes  `key:"log_file_size" env:"COVE_LOG_FILE_SIZE" default:"100MiB" minimum:"64KiB"`
	LogFiles    int    `key:"log_files" env:"COVE_LOG_FILES" default:"5" minimum:"0" maximum:"1000"`
	LogFormat   string `key:"log_format" env:"COVE_LOG_FORMAT" default:"text" enum:"text,json"`
	LogLevel    string `key:"log_level" env:"COVE_LOG_LEVEL" default:"info" enum:"debug,info,warn,error"`
}

// Complete implements Completer.
func (c *Cove) Complete(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	// The public service documents an address without a host.
	if strings.HasPrefix(c.Listen, ":") {
		c.Listen = "0.0.0.0" + c.Listen
	}
	checkServer(c.Listen, c.PublicHosts, c.AllowedOrigins, c.TrustedProxies, fault)
	if (c.TLSCert == "") != (c.TLSKey == "") {
		fault("tls_cert", "requires tls_key, and vice versa; set both or neither")
	}
	if c.TLSCert != "" && strings.HasPrefix(c.Listen, "unix:") {
		fault("tls_cert", "is not supported on a Unix socket; listen on host:port, or unset tls_cert and tls_key")
	}
	if _, err := Prefixes(c.Private); err != nil {
		fault("private_networks", "%v", err)
	}
	if c.JWTPublicKey != "" {
		if _, err := RSAPublicKey(c.JWTPublicKey); err != nil {
			fault("jwt_public_key", "%v", err)
		}
	}
	if c.State == "" {
		c.State = defaultState(lookup)
	}
	if c.State == "" {
		fault("state", "has no default because HOME is not set; set it to a directory")
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
	absolute(&c.TLSCert)
	absolute(&c.TLSKey)
	absolute(&c.Aio)
	absolute(&c.LogFile)
	absolute(&c.Environments)
	switch c.Venv {
	case "":
		c.Venv = findVenv(c.State)
	case AutoVenv:
		if found := findVenv(c.State); found != "" {
			c.Venv = found
		}
	case "none":
		c.Venv = ""
	default:
		absolute(&c.Venv)
	}
	switch c.Components {
	case "":
		c.Components = findNextTo(filepath.Join(c.State, "components"), ".tools/components", "")
	case "none":
		c.Components = ""
	default:
		absolute(&c.Components)
	}
}

// AutoVenv is the value of venv that builds an environment if none is found.
const AutoVenv = "auto"

// findVenv finds the Python environment for sandboxes: that of the state directory, or that of
// the project in which this program was built. It returns an empty path if none exists.
func findVenv(state string) string {
	return findNextTo(filepath.Join(state, "venv"), ".venv", "bin/python")
}

// findNextTo finds a directory that contains a file: the first one, or the other one next to
// this program or its directory.
func findNextTo(first, other, file string) string {
	dirs := []string{first}
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Join(filepath.Dir(self), other), filepath.Join(filepath.Dir(self), "..", other))
	}
	for _, dir := range dirs {
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(dir, file)); err == nil {
			return dir
		}
	}
	return ""
}

// String hides secrets.
func (c Cove) String() string { return Redact(&c) }

// GoString hides secrets from %#v.
func (c Cove) GoString() string { return "config.Cove{" + Redact(&c) + "}" }

// LogValue hides secrets from a log line that carries the whole struct.
func (c Cove) LogValue() slog.Value { return slog.StringValue(Redact(&c)) }

// MarshalText hides secrets from encoders.
func (c Cove) MarshalText() ([]byte, error) { return []byte(Redact(&c)), nil }

// CoveClient is the configuration of the command line of a hub.
type CoveClient struct {
	URL     string `key:"hub_url" env:"COVE_URL" doc:"URL of the hub: http://host:port or unix:/path; empty means that of the context."`
	Token   string `key:"token" env:"COVE_TOKEN,AUTH_TOKEN" secret:"true" doc:"Bearer token to send."`
	Key     string `key:"api_key" env:"COVE_API_KEY" secret:"true" doc:"API key, sent as X-API-Key."`
	Context string `key:"context" env:"COVE_CONTEXT" doc:"Context to use instead of the current one."`

	ServerUsers []string `key:"server_users" env:"COVE_SERVER_USERS" doc:"Local users whose hub is trusted, with root and you; * means all."`

	Dir   string `key:"config_dir" env:"COVE_CONFIG_DIR" doc:"Directory of the contexts file; empty means cove in the user's configuration."`
	State string `key:"state" env:"COVE_STATE" doc:"State directory of a local hub, in which it is found; empty means the default."`
}

// Complete implements Completer.
func (c *CoveClient) Complete(lookup func(string) (string, bool), _ func(key, format string, args ...any)) {
	if c.Dir == "" {
		if dir, ok := lookup("XDG_CONFIG_HOME"); ok {
			c.Dir = filepath.Join(dir, "cove")
		} else if dir, err := os.UserConfigDir(); err == nil {
			c.Dir = filepath.Join(dir, "cove")
		}
	}
	if c.State == "" {
		c.State = defaultState(lookup)
	}
}

// defaultState returns the default state directory of a hub; empty without HOME.
func defaultState(lookup func(string) (string, bool)) string {
	home, _ := lookup("HOME")
	state, _ := lookup("XDG_STATE_HOME")
	switch {
	case os.Geteuid() == 0:
		return "/var/lib/cove"
	case state != "":
		return filepath.Join(state, "cove")
	case home != "":
		return filepath.Join(home, ".local", "state", "cove")
	}
	return ""
}
