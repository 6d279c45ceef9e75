package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Cove is the configuration of `cove hub`. Variables without the prefix COVE_ have the
// names that the public service uses which a hub replaces.
type Cove struct {
	// Addresses and limits of the server.
	Listen         string   `key:"listen" env:"SERVER_ADDR" default:"127.0.0.1:10000" doc:"Address to listen on: host:port, or unix:/path for a Unix socket."`
	ListenFD       int      `key:"listen_fd" env:"COVE_LISTEN_FD" default:"0" minimum:"0" maximum:"1048576" doc:"File descriptor of a socket that already listens at that address, inherited from the program that this one replaces; 0 means none."`
	ReplicaAddress string   `key:"replica_address" env:"COVE_REPLICA_ADDRESS" doc:"Address (host:port) at which other replicas of the hub reach this one, all with the same state directory on shared storage; one serves, the others forward to it and take its place. Empty means that the hub is alone."`
	TLSCert        string   `key:"tls_cert" env:"COVE_TLS_CERT" doc:"File with the TLS certificate chain in PEM. With it the hub serves HTTPS; the file is reloaded when it changes."`
	TLSKey         string   `key:"tls_key" env:"COVE_TLS_KEY" doc:"File with the private key of tls_cert in PEM."`
	PublicHosts    []string `key:"public_hosts" env:"COVE_PUBLIC_HOSTS" doc:"Host names that clients use to reach the hub; *.example.com matches all subdomains. Required for names other than localhost if authentication is off."`
	Domains        []string `key:"domains" env:"COVE_DOMAINS" default:"localhost" doc:"Domains below which {name} is a sandbox and {port}-{name} one of its ports, as origins of their own. All names below them belong to sandboxes, except public_hosts."`
	PublicPorts    bool     `key:"public_ports" env:"COVE_PUBLIC_PORTS" default:"false" doc:"Open the ports of sandboxes at {port}-{id}.{domain}, with the ID as E2B clients write it, to everybody who knows the name, as E2B does."`
	AllowedOrigins []string `key:"allowed_origins" env:"COVE_ALLOWED_ORIGINS" doc:"Origins of other web pages that may call the API, such as https://app.example.com."`
	TrustedProxies []string `key:"trusted_proxies" env:"COVE_TRUSTED_PROXIES" doc:"Addresses or networks (CIDR) of reverse proxies whose X-Forwarded-* headers are used to build URLs."`
	Insecure       bool     `key:"insecure" env:"COVE_INSECURE" default:"false" doc:"Allow listening on a non-loopback address without authentication."`
	BodyLimit      Bytes    `key:"body_limit" env:"COVE_BODY_LIMIT" default:"1MiB" minimum:"64KiB" maximum:"1GiB" doc:"Maximum size of a request body sent to the hub itself. Uploads and requests to sandboxes are not limited."`
	ToolLimit      Bytes    `key:"tool_limit" env:"COVE_TOOL_LIMIT" default:"16MiB" minimum:"64KiB" maximum:"1GiB" doc:"Maximum size of an MCP request to the hub."`
	RequestMemory  Bytes    `key:"request_memory" env:"COVE_REQUEST_MEMORY" default:"256MiB" minimum:"1MiB" doc:"Memory that the bodies of all requests under way may take."`

	// Authentication.
	JWTPublicKey string        `key:"jwt_public_key" env:"JWT_PUBLIC_KEY" secret:"public" doc:"RSA public key (base64 of its PEM) that verifies RS256 bearer tokens."`
	JWTIssuer    string        `key:"jwt_issuer" env:"JWT_ISSUER" doc:"Issuer (iss claim) that bearer tokens must have; empty means any."`
	JWTAudience  string        `key:"jwt_audience" env:"JWT_AUDIENCE" doc:"Audience that the aud claim of bearer tokens must contain; empty means any."`
	AuthToken    string        `key:"auth_token" env:"COVE_TOKEN,AUTH_TOKEN" secret:"true" doc:"Shared token, sent as Authorization: Bearer."`
	APIKey       string        `key:"api_key" env:"COVE_API_KEY" secret:"true" doc:"API key, sent as X-API-Key."`
	TicketTTL    time.Duration `key:"ticket_ttl" env:"TICKET_TTL_SECONDS" default:"30s" minimum:"1s" maximum:"1h" doc:"Lifetime of a one-time ticket."`
	LocalUsers   []string      `key:"local_users" env:"COVE_LOCAL_USERS" doc:"Users (names or IDs) who may connect over loopback if authentication is off, besides root and the user that runs the server; * means all."`

	// Tenants.
	Tenants  bool          `key:"tenants" env:"COVE_TENANTS" default:"false" doc:"Serve several tenants, who authenticate with keys. Implied if the keys file exists."`
	Keys     string        `key:"keys" env:"COVE_KEYS" doc:"File with the tenants' keys and limits, reloaded when it changes; empty means keys.json below the state directory."`
	MaxShare time.Duration `key:"max_share" env:"COVE_MAX_SHARE" default:"24h" minimum:"1m" doc:"Maximum lifetime of a link to a sandbox."`
	Creates  int           `key:"creates" env:"COVE_CREATES" default:"16" minimum:"1" maximum:"1024" doc:"Maximum number of sandboxes created concurrently; more are queued, fairly among tenants."`

	// Limits of a tenant for which the keys file sets none; 0 means no limit.
	TenantSandboxes int     `key:"tenant_sandboxes" env:"COVE_TENANT_SANDBOXES" default:"100" minimum:"0" doc:"Default limit of a tenant: sandboxes."`
	TenantCPU       float64 `key:"tenant_cpu" env:"COVE_TENANT_CPU" default:"100" minimum:"0" doc:"Default limit of a tenant: sum of the CPU limits of its sandboxes."`
	TenantMemory    Bytes   `key:"tenant_memory" env:"COVE_TENANT_MEMORY" default:"100GiB" doc:"Default limit of a tenant: sum of the memory limits of its sandboxes."`
	TenantDisk      Bytes   `key:"tenant_disk" env:"COVE_TENANT_DISK" default:"1000GiB" doc:"Default limit of a tenant: sum of the disk limits of its sandboxes, plus snapshots, volumes, images and activity records."`
	TenantRate      float64 `key:"tenant_rate" env:"COVE_TENANT_RATE" default:"300" minimum:"0" doc:"Default limit of a tenant: sandboxes created per minute, on average."`
	TenantBurst     int     `key:"tenant_burst" env:"COVE_TENANT_BURST" default:"100" minimum:"0" doc:"Default limit of a tenant: sandboxes created at once, within the rate."`
	TenantCalls     int     `key:"tenant_calls" env:"COVE_TENANT_CALLS" default:"1000" minimum:"0" doc:"Default limit of a tenant: concurrent requests, including streams and WebSockets."`
	TenantRequests  Bytes   `key:"tenant_request_memory" env:"COVE_TENANT_REQUEST_MEMORY" default:"32MiB" doc:"Default limit of a tenant: memory of the hub that the bodies of its requests take."`

	// MCP sessions.
	MCPSessions int `key:"mcp_sessions" env:"COVE_MCP_SESSIONS" default:"100" minimum:"1" maximum:"10000" doc:"Maximum number of open MCP sessions of one tenant. One more closes the session that was unused for longest, if it was unused for a minute; otherwise it is refused with status 429."`
	MCPTotal    int `key:"mcp_sessions_total" env:"COVE_MCP_SESSIONS_TOTAL" default:"1000" minimum:"1" maximum:"100000" doc:"Maximum number of open MCP sessions of all callers."`

	// Activity records of sandboxes.
	KeepActivity time.Duration `key:"keep_activity" env:"COVE_KEEP_ACTIVITY" default:"0s" minimum:"0s" doc:"How long the hub keeps the activity record of a sandbox after the sandbox was paused, stopped or deleted, for its owner to read; 0s: it ends with the sandbox."`

	// Audit log and traces.
	Audit               bool     `key:"audit" env:"COVE_AUDIT" default:"true" doc:"Record who did what to which sandbox, in audit below the state directory."`
	AuditKeyFile        string   `key:"audit_key_file" env:"COVE_AUDIT_KEY_FILE" doc:"File whose content authenticates the lines of the audit log against anyone who can write the log but not read this file."`
	AuditForward        []string `key:"audit_forward" env:"COVE_AUDIT_FORWARD" doc:"Receivers of every line of the audit log as it is written: syslog:///dev/log, syslog+udp://host:514, syslog+tcp://host:601, http(s)://collector:4318/v1/logs (OTLP), or file:///path for another program to ship."`
	AuditForwardHeaders []string `key:"audit_forward_headers" env:"COVE_AUDIT_FORWARD_HEADERS" secret:"true" doc:"HTTP headers for the http(s) receivers in audit_forward, each name=value. They are not sent to otlp_endpoint, nor are otlp_headers sent to these receivers."`
	OTLPEndpoint        string   `key:"otlp_endpoint" env:"COVE_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" doc:"URL of an OpenTelemetry collector (OTLP over HTTP) that receives a trace of every call."`
	OTLPHeaders         []string `key:"otlp_headers" env:"COVE_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" secret:"true" doc:"HTTP headers for otlp_endpoint, each name=value."`

	// Where sandboxes run.
	Provider   string `key:"provider" env:"COVE_PROVIDER" default:"local" enum:"local,docker,kubernetes" doc:"What runs sandboxes: this machine (local), its Docker engine or Podman (docker), or a Kubernetes cluster (kubernetes)."`
	DockerHost string `key:"docker_host" env:"COVE_DOCKER_HOST" doc:"Socket of the Docker engine, or of Podman (unix:///run/podman/podman.sock); empty means unix:///var/run/docker.sock. The engine must see the state directory at the same path."`

	// Kubernetes.
	Kubeconfig          string        `key:"kubernetes_config" env:"COVE_KUBERNETES_CONFIG,KUBECONFIG" doc:"Kubeconfig file of the cluster; empty means the service account of the Pod that the hub runs in."`
	KubeContext         string        `key:"kubernetes_context" env:"COVE_KUBERNETES_CONTEXT" doc:"Context of the kubeconfig file; empty means its current one."`
	KubeServiceHost     string        `key:"kubernetes_service_host" env:"KUBERNETES_SERVICE_HOST" doc:"Host of the API server, for the service account of a Pod; the cluster sets it."`
	KubeServicePort     string        `key:"kubernetes_service_port" env:"KUBERNETES_SERVICE_PORT" default:"443" doc:"Port of the API server, for the service account of a Pod; the cluster sets it."`
	KubeNamespace       string        `key:"kubernetes_namespace" env:"COVE_KUBERNETES_NAMESPACE" doc:"Namespace of the sandboxes; empty means that of the context or Pod."`
	KubeTenants         []string      `key:"kubernetes_tenant_namespaces" env:"COVE_KUBERNETES_TENANT_NAMESPACES" doc:"Tenants whose sandboxes and volumes are in a namespace of their own, each as tenant=namespace, such as acme=cove-acme. Those of all others are in kubernetes_namespace, and so are warm sandboxes, which only they get."`
	KubeName            string        `key:"kubernetes_name" env:"COVE_KUBERNETES_NAME" default:"cove" doc:"Name of the hub, which tells hubs in one namespace apart."`
	KubeReach           string        `key:"kubernetes_reach" env:"COVE_KUBERNETES_REACH" default:"auto" enum:"auto,pod,api" doc:"How the hub reaches sandboxes: at the addresses of their Pods (pod), or by port forwarding of the API server (api); auto means api with a kubeconfig file, else pod."`
	KubePrograms        string        `key:"kubernetes_programs_image" env:"COVE_KUBERNETES_PROGRAMS_IMAGE" default:"cove-hub:latest" doc:"Image with the programs that are injected into sandboxes: that of the hub."`
	KubePullSecrets     []string      `key:"kubernetes_pull_secrets" env:"COVE_KUBERNETES_PULL_SECRETS" doc:"Secrets with registry credentials, for the images of sandboxes."`
	KubeRuntimeClass    string        `key:"kubernetes_runtime_class" env:"COVE_KUBERNETES_RUNTIME_CLASS" doc:"RuntimeClass of sandboxes that specify no isolation; empty means the cluster's default runtime."`
	KubeRuntimeClasses  []string      `key:"kubernetes_runtime_classes" env:"COVE_KUBERNETES_RUNTIME_CLASSES" doc:"RuntimeClasses that environments and requests may name as isolation, such as gvisor or kata."`
	KubeUserNamespaces  bool          `key:"kubernetes_user_namespaces" env:"COVE_KUBERNETES_USER_NAMESPACES" default:"false" doc:"Map the users of sandboxes to other users of the node (hostUsers: false)."`
	KubeRoot            bool          `key:"kubernetes_root" env:"COVE_KUBERNETES_ROOT" default:"false" doc:"Allow root (sudo) in sandboxes; requires a namespace with the Pod Security level baseline."`
	KubeSeccomp         string        `key:"kubernetes_seccomp" env:"COVE_KUBERNETES_SECCOMP" doc:"Seccomp profile below the kubelet's seccomp folder, with which Chromium keeps its own sandbox; empty means the profile of the container runtime."`
	KubeDisk            string        `key:"kubernetes_disk" env:"COVE_KUBERNETES_DISK" default:"ephemeral" enum:"ephemeral,persistent" doc:"Where the homes of sandboxes are: in their Pods (ephemeral), or in a PersistentVolumeClaim for each (persistent), which allows stop and start."`
	KubeStorageClass    string        `key:"kubernetes_storage_class" env:"COVE_KUBERNETES_STORAGE_CLASS" doc:"StorageClass of homes and volumes; empty means the cluster's default."`
	KubeSharedVolumes   bool          `key:"kubernetes_shared_volumes" env:"COVE_KUBERNETES_SHARED_VOLUMES" default:"false" doc:"Request volumes that several nodes can mount (ReadWriteMany)."`
	KubeSnapClass       string        `key:"kubernetes_snapshot_class" env:"COVE_KUBERNETES_SNAPSHOT_CLASS" doc:"VolumeSnapshotClass for snapshots and forks of persistent homes, instead of a snapshot store; empty means none."`
	KubeSnapEndpoint    string        `key:"kubernetes_snapshot_endpoint" env:"COVE_KUBERNETES_SNAPSHOT_ENDPOINT" doc:"URL of an S3-compatible store for snapshots and forks, such as https://s3.example.com; empty means none."`
	KubeSnapBucket      string        `key:"kubernetes_snapshot_bucket" env:"COVE_KUBERNETES_SNAPSHOT_BUCKET" doc:"Bucket of the snapshot store."`
	KubeSnapPrefix      string        `key:"kubernetes_snapshot_prefix" env:"COVE_KUBERNETES_SNAPSHOT_PREFIX" doc:"Prefix of all keys in the bucket, for this hub alone; empty means the namespace of the sandboxes and kubernetes_name."`
	KubeSnapRegion      string        `key:"kubernetes_snapshot_region" env:"COVE_KUBERNETES_SNAPSHOT_REGION" default:"us-east-1" doc:"Region of the snapshot store, which is part of signatures."`
	KubeSnapAccessKey   string        `key:"kubernetes_snapshot_access_key" env:"COVE_KUBERNETES_SNAPSHOT_ACCESS_KEY" secret:"true" doc:"Access key of the snapshot store."`
	KubeSnapSecretKey   string        `key:"kubernetes_snapshot_secret_key" env:"COVE_KUBERNETES_SNAPSHOT_SECRET_KEY" secret:"true" doc:"Secret key of the snapshot store."`
	KubeClaims          []string      `key:"kubernetes_claims" env:"COVE_KUBERNETES_CLAIMS" doc:"Namespaces whose SandboxClaims and Sandboxes (kubernetes-sigs/agent-sandbox) the hub serves, each with the user that owns their sandboxes: NAMESPACE=USER; without =USER, the user has the name of the namespace."`
	KubeScheduleTimeout time.Duration `key:"kubernetes_schedule_timeout" env:"COVE_KUBERNETES_SCHEDULE_TIMEOUT" default:"30s" minimum:"1s" doc:"How long a cluster without room may take to add a node before a request fails."`

	// Files and resources of the machine.
	State      string `key:"state" env:"COVE_STATE" doc:"Directory that holds the sandboxes; empty means /var/lib/cove for root, else cove below XDG_STATE_HOME or ~/.local/state."`
	Aio        string `key:"aio" env:"COVE_AIO" doc:"Path of the aio program that sandboxes run; empty means the one next to this program."`
	Venv       string `key:"venv" env:"COVE_VENV" doc:"Python virtual environment whose packages sandboxes see; empty means venv below the state directory, or .venv beside this program or its directory; auto builds one below the state directory if none is found; none means no such packages."`
	Components string `key:"components" env:"COVE_COMPONENTS" doc:"Directory of installed components, such as VS Code, that sandboxes see; empty means components below the state directory, or .tools/components beside this program or its directory, if there is one; none means none."`
	Cgroup     string `key:"cgroup" env:"COVE_CGROUP" doc:"Delegated cgroup v2 directory to use; empty means to find one."`
	FirstID    int    `key:"first_id" env:"COVE_FIRST_ID" default:"2000000000" minimum:"65536" maximum:"4000000000" doc:"First of the host user IDs that sandboxes use, 65536 for each."`

	// Images.
	InsecureRegistries []string `key:"insecure_registries" env:"COVE_INSECURE_REGISTRIES" doc:"Image registries (host or host:port) to access without TLS."`
	PrivateRegistries  []string `key:"private_registries" env:"COVE_PRIVATE_REGISTRIES" doc:"Image registries (host or host:port) that may have private addresses."`
	RegistryAuth       string   `key:"registry_auth" env:"COVE_REGISTRY_AUTH" doc:"File with registry credentials, in the format of docker's config.json."`

	// Environments and default settings of sandboxes.
	Environments       string        `key:"environments" env:"SANDBOX_ENVIRONMENT_CONFIG_FILE" doc:"JSON file of environments, reloaded when it changes."`
	DefaultEnvironment string        `key:"default_environment" env:"SANDBOX_DEFAULT_ENVIRONMENT" default:"aio" doc:"Environment of sandboxes that specify neither an environment nor an image."`
	DefaultImage       string        `key:"default_image" env:"SANDBOX_DEFAULT_IMAGE" doc:"Image of the default environment; empty means this machine's own programs or, with Docker and Kubernetes, cove-sandbox:latest."`
	Pool               int           `key:"pool" env:"COVE_POOL" default:"0" minimum:"0" maximum:"1000" doc:"Number of warm sandboxes of the default environment; the environments file sets it for others."`
	Timeout            time.Duration `key:"timeout" env:"COVE_TIMEOUT" default:"1h" minimum:"1m" doc:"Default lifetime of a sandbox."`
	IdleTimeout        time.Duration `key:"idle_timeout" env:"COVE_IDLE_TIMEOUT" default:"10m" minimum:"1m" doc:"Default idle time after which a sandbox counts as idle."`
	MaxTimeout         time.Duration `key:"max_timeout" env:"COVE_MAX_TIMEOUT" default:"24h" minimum:"1m" doc:"Maximum lifetime that can be requested."`
	MaxIdleTimeout     time.Duration `key:"max_idle_timeout" env:"COVE_MAX_IDLE_TIMEOUT" default:"1h" minimum:"1m" doc:"Maximum idle timeout that can be requested."`
	IdlePolicy         string        `key:"idle_policy" env:"COVE_IDLE_POLICY" default:"delete" enum:"delete,stop,pause" doc:"Default action on an idle sandbox."`
	Network            string        `key:"network" env:"COVE_NETWORK" default:"open" enum:"open,none" doc:"Default network access of sandboxes: public addresses (open) or none."`
	Private            []string      `key:"private_networks" env:"COVE_PRIVATE_NETWORKS" doc:"Private addresses or networks (CIDR) that sandboxes may reach."`
	MemoryLimit        Bytes         `key:"memory_limit" env:"COVE_MEMORY_LIMIT" default:"1GiB" minimum:"64MiB" doc:"Default memory limit."`
	DiskLimit          Bytes         `key:"disk_limit" env:"COVE_DISK_LIMIT" default:"10GiB" minimum:"16MiB" doc:"Default disk limit."`
	DiskRate           Bytes         `key:"disk_rate_limit" env:"COVE_DISK_RATE_LIMIT" default:"0" doc:"Default disk throughput limit in bytes per second, for reads and for writes; 0 means none."`
	Bandwidth          Bytes         `key:"bandwidth_limit" env:"COVE_BANDWIDTH_LIMIT" default:"0" doc:"Default network bandwidth limit in bytes per second, for each direction; 0 means none."`
	Runsc              string        `key:"runsc" env:"COVE_RUNSC" doc:"Path of runsc, for sandboxes with isolation gvisor (default: /usr/local/bin or /usr/bin, or beside this program)."`
	VolumeLimit        Bytes         `key:"volume_limit" env:"COVE_VOLUME_LIMIT" default:"10GiB" minimum:"16MiB" doc:"Size limit of new volumes."`

	// Log.
	LogFile     string `key:"log_file" env:"COVE_LOG_FILE" doc:"File to write the log to instead of standard error."`
	LogFileSize Bytes  `key:"log_file_size" env:"COVE_LOG_FILE_SIZE" default:"100MiB" minimum:"64KiB" doc:"Size at which the log file is rotated."`
	LogFiles    int    `key:"log_files" env:"COVE_LOG_FILES" default:"5" minimum:"0" maximum:"1000" doc:"Number of older log files to keep."`
	LogFormat   string `key:"log_format" env:"COVE_LOG_FORMAT" default:"text" enum:"text,json" doc:"Log format."`
	LogLevel    string `key:"log_level" env:"COVE_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" doc:"Minimum log level."`
}

// Complete implements Completer.
func (c *Cove) Complete(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	// The public service documents an address without a host.
	if strings.HasPrefix(c.Listen, ":") {
		c.Listen = "0.0.0.0" + c.Listen
	}
	checkServer(c.Listen, c.PublicHosts, c.AllowedOrigins, c.TrustedProxies, fault)
	if (c.TLSCert == "") != (c.TLSKey == "") {
		fault("tls_cert", "and tls_key belong together; set both or neither")
	}
	if c.TLSCert != "" && strings.HasPrefix(c.Listen, "unix:") {
		fault("tls_cert", "is of no use on a Unix socket; listen on host:port, or unset tls_cert and tls_key")
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
	for key, headers := range map[string][]string{"otlp_headers": c.OTLPHeaders, "audit_forward_headers": c.AuditForwardHeaders} {
		if slices.ContainsFunc(headers, func(pair string) bool {
			name, _, ok := strings.Cut(pair, "=")
			return !ok || strings.TrimSpace(name) == ""
		}) {
			fault(key, "must be name=value")
		}
	}
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
		c.Components = findBeside(filepath.Join(c.State, "components"), ".tools/components", "")
	case "none":
		c.Components = ""
	default:
		absolute(&c.Components)
	}
}

// AutoVenv is the value of venv that asks for an environment to be built if none is found.
const AutoVenv = "auto"

// findVenv finds the Python environment for sandboxes: that of the state directory, or that
// of the project which this program was built in. It returns an empty path if there is none.
func findVenv(state string) string {
	return findBeside(filepath.Join(state, "venv"), ".venv", "bin/python")
}

// findBeside finds a directory that contains a file: the first one, or the other beside this
// program or its directory.
func findBeside(first, beside, file string) string {
	dirs := []string{first}
	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Join(filepath.Dir(self), beside), filepath.Join(filepath.Dir(self), "..", beside))
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
	URL     string `key:"hub_url" env:"COVE_URL" doc:"URL of the hub: http://host:port or unix:/path; empty means the one of the context."`
	Token   string `key:"token" env:"COVE_TOKEN,AUTH_TOKEN" secret:"true" doc:"Bearer token to send."`
	Key     string `key:"api_key" env:"COVE_API_KEY" secret:"true" doc:"API key, sent as X-API-Key."`
	Context string `key:"context" env:"COVE_CONTEXT" doc:"Context to use instead of the current one."`

	ServerUsers []string `key:"server_users" env:"COVE_SERVER_USERS" doc:"Users (names or IDs) of this machine, besides root and you, whose hub is called; * means all."`

	Dir   string `key:"config_dir" env:"COVE_CONFIG_DIR" doc:"Directory of the contexts file; empty means cove below the user's configuration directory."`
	State string `key:"state" env:"COVE_STATE" doc:"State directory of a hub on this machine, which is found there; empty means the hub's own default."`
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

// defaultState is the state directory of a hub that the user starts; empty without HOME.
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
