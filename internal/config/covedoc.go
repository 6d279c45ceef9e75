package config

// coveDocs documents the settings of Cove, in the order of its fields.
var coveDocs = [][2]string{
	// Addresses and limits of the server.
	{"listen", "Address to listen on: host:port, or unix:/path for a Unix socket."},
	{"listen_fd", "File descriptor of a socket that already listens on that address, inherited from the program that this one replaces; " +
		"0 means none."},
	{"replica_address", "Address (host:port) at which other replicas of the hub reach this one. " +
		"All replicas share one state directory; one is active, the others forward to it and can take over. Empty means a single hub."},
	{"tls_cert", "File with the TLS certificate chain in PEM, which enables HTTPS. It is reloaded when it changes."},
	{"tls_key", "File with the private key of tls_cert in PEM."},
	{"public_hosts", "Host names that clients use to reach the hub; *.example.com matches all subdomains. " +
		"Required for names other than localhost if authentication is off."},
	{"domains", "Domains below which {name} is a sandbox and {port}-{name} one of its ports, each with a separate origin. " +
		"All names below them belong to sandboxes, except public_hosts."},
	{"public_ports", "Make the ports of sandboxes public at {port}-{id}.{domain}, with the ID in E2B's form, as E2B does. " +
		"Every client that knows the name can reach them."},
	{"allowed_origins", "Origins of other web pages that may call the API, such as https://app.example.com."},
	{"trusted_proxies", "Addresses or networks (CIDR) of reverse proxies whose X-Forwarded-* headers are used to build URLs."},
	{"insecure", "Allow listening on a non-loopback address without authentication."},
	{"body_limit", "Maximum size of a request body sent to the hub itself. Uploads and requests to sandboxes are not limited."},
	{"tool_limit", "Maximum size of an MCP request to the hub."},
	{"request_memory", "Maximum memory for the bodies of all in-flight requests."},

	// Authentication.
	{"jwt_public_key", "RSA public key (base64 of its PEM) that verifies RS256 bearer tokens."},
	{"jwt_issuer", "Required issuer (iss claim) of bearer tokens; empty means any."},
	{"jwt_audience", "Required audience (aud claim) of bearer tokens; empty means any."},
	{"auth_token", "Shared token, sent as Authorization: Bearer."},
	{"api_key", "API key, sent as X-API-Key."},
	{"ticket_ttl", "Lifetime of a one-time ticket."},
	{"local_users", "Local users (names or IDs) that may connect over loopback if authentication is off, " +
		"in addition to root and the user that runs the server; * means all."},

	// Tenants.
	{"tenants", "Serve several tenants, which authenticate with keys. Implied if the keys file exists."},
	{"keys", "File with the tenants' keys and limits, reloaded when it changes; empty means keys.json below the state directory."},
	{"max_share", "Maximum lifetime of a link to a sandbox."},
	{"creates", "Maximum number of sandboxes created concurrently. Additional requests are queued, fairly among tenants."},

	// Limits of a tenant for which the keys file sets none; 0 means no limit.
	{"tenant_sandboxes", "Default limit of a tenant: sandboxes."},
	{"tenant_cpu", "Default limit of a tenant: sum of the CPU limits of its sandboxes."},
	{"tenant_memory", "Default limit of a tenant: sum of the memory limits of its sandboxes."},
	{"tenant_disk", "Default limit of a tenant: sum of the disk limits of its sandboxes, " +
		"plus snapshots, volumes, images and activity records."},
	{"tenant_rate", "Default limit of a tenant: sandboxes created per minute, on average."},
	{"tenant_burst", "Default limit of a tenant: sandboxes created at once, within the rate."},
	{"tenant_calls", "Default limit of a tenant: concurrent requests, including streams and WebSockets."},
	{"tenant_request_memory", "Default limit of a tenant: memory of the hub for the bodies of its requests."},

	// MCP sessions.
	{"mcp_sessions", "Maximum number of open MCP sessions of one tenant. At the limit, a new session replaces the least recently used one " +
		"if that was unused for a minute; otherwise it is rejected with status 429."},
	{"mcp_sessions_total", "Maximum number of open MCP sessions of all callers."},

	// Activity records of sandboxes.
	{"keep_activity", "Retention time of the activity record of a paused, stopped or deleted sandbox, which its owner can read. " +
		"All records together take at most 4 GiB. 0s means that it is deleted with the sandbox."},

	// Audit log and traces.
	{"audit", "Record all actions on sandboxes and their callers, in audit below the state directory."},
	{"audit_key_file", "File with the key that authenticates the lines of the audit log, " +
		"against attackers who can write the log but cannot read this file."},
	{"audit_forward", "Receivers of every line of the audit log as it is written: syslog:///dev/log, syslog+udp://host:514, " +
		"syslog+tcp://host:601, http(s)://collector:4318/v1/logs (OTLP), or file:///path for another program to ship."},
	{"audit_forward_headers", "HTTP headers for the http(s) receivers in audit_forward, as name=value. " +
		"These receivers do not get otlp_headers, and otlp_endpoint does not get these headers."},
	{"otlp_endpoint", "URL of an OpenTelemetry collector (OTLP over HTTP) that receives a trace of every call."},
	{"otlp_headers", "HTTP headers for otlp_endpoint, as name=value."},

	// Where sandboxes run.
	{"provider", "Provider of sandboxes: this machine (local), its Docker engine or Podman (docker), or a Kubernetes cluster (kubernetes)."},
	{"docker_host", "Socket of the Docker engine or Podman (unix:///run/podman/podman.sock); empty means unix:///var/run/docker.sock. " +
		"The engine must access the state directory at the same path."},

	// Kubernetes.
	{"kubernetes_config", "Kubeconfig file of the cluster; empty means the service account of the hub's Pod."},
	{"kubernetes_context", "Context of the kubeconfig file; empty means the current one."},
	{"kubernetes_service_host", "Host of the API server, for the service account of a Pod; set by the cluster."},
	{"kubernetes_service_port", "Port of the API server, for the service account of a Pod; set by the cluster."},
	{"kubernetes_namespace", "Namespace of the sandboxes; empty means that of the context or Pod."},
	{"kubernetes_tenant_namespaces", "Tenants with a separate namespace for their sandboxes and volumes, as tenant=namespace, " +
		"such as acme=cove-acme. All other tenants use kubernetes_namespace, and only they get warm sandboxes."},
	{"kubernetes_name", "Name of the hub, which distinguishes hubs in one namespace."},
	{"kubernetes_reach", "Connection of the hub to sandboxes: to the addresses of their Pods (pod), " +
		"or by port forwarding of the API server (api). auto means api with a kubeconfig file, otherwise pod."},
	{"kubernetes_programs_image", "Image with the programs that are injected into sandboxes: that of the hub."},
	{"kubernetes_pull_secrets", "Secrets with registry credentials for the images of sandboxes."},
	{"kubernetes_runtime_class", "RuntimeClass of sandboxes that specify no isolation; empty means the cluster's default runtime."},
	{"kubernetes_runtime_classes", "RuntimeClasses that environments and requests may name as isolation, such as gvisor or kata."},
	{"kubernetes_user_namespaces", "Map the users of sandboxes to other users of the node (hostUsers: false)."},
	{"kubernetes_root", "Allow root (sudo) in sandboxes. Requires a namespace with the Pod Security level baseline."},
	{"kubernetes_seccomp", "Seccomp profile below the kubelet's seccomp folder, with which Chromium keeps its own sandbox; " +
		"empty means the profile of the container runtime."},
	{"kubernetes_disk", "Location of the homes of sandboxes: in their Pods (ephemeral), " +
		"or in one PersistentVolumeClaim each (persistent), which supports stop and start."},
	{"kubernetes_storage_class", "StorageClass of homes and volumes; empty means the cluster's default."},
	{"kubernetes_shared_volumes", "Request volumes that several nodes can mount (ReadWriteMany)."},
	{"kubernetes_snapshot_class", "VolumeSnapshotClass for snapshots and forks of persistent homes, instead of a snapshot store; " +
		"empty means none."},
	{"kubernetes_snapshot_endpoint", "URL of an S3-compatible store for snapshots and forks, such as https://s3.example.com; " +
		"empty means none."},
	{"kubernetes_snapshot_bucket", "Bucket of the snapshot store."},
	{"kubernetes_snapshot_prefix", "Prefix of all keys in the bucket, unique for this hub; " +
		"empty means the namespace of the sandboxes and kubernetes_name."},
	{"kubernetes_snapshot_region", "Region of the snapshot store, which is part of signatures."},
	{"kubernetes_snapshot_access_key", "Access key of the snapshot store."},
	{"kubernetes_snapshot_secret_key", "Secret key of the snapshot store."},
	{"kubernetes_claims", "Namespaces whose SandboxClaims and Sandboxes (kubernetes-sigs/agent-sandbox) the hub serves, " +
		"each with the user that owns their sandboxes, as NAMESPACE=USER. Without =USER, the user has the name of the namespace."},
	{"kubernetes_schedule_timeout", "Time that a full cluster may take to add a node before a request fails."},

	// Files and resources of the machine.
	{"state", "Directory of the sandboxes; empty means /var/lib/cove for root, otherwise cove below XDG_STATE_HOME or ~/.local/state."},
	{"aio", "Path of the aio program that sandboxes run; empty means the one next to this program."},
	{"venv", "Python virtual environment whose packages are available in sandboxes. " +
		"Empty means venv below the state directory, or .venv next to this program or its directory. " +
		"auto builds one below the state directory, in the background, if none is found; none means no packages."},
	{"components", "Directory of installed components, such as VS Code, that are available in sandboxes. " +
		"Empty means components below the state directory, or .tools/components next to this program or its directory if that exists; " +
		"none means no components."},
	{"cgroup", "Delegated cgroup v2 directory; empty means automatic detection."},
	{"first_id", "First host user ID for sandboxes, which use 65536 IDs each."},

	// Images.
	{"insecure_registries", "Image registries (host or host:port) that are accessed without TLS."},
	{"private_registries", "Image registries (host or host:port) that may have private addresses."},
	{"registry_auth", "File with registry credentials, in the format of docker's config.json."},

	// Environments and default settings of sandboxes.
	{"environments", "JSON file of environments, reloaded when it changes."},
	{"default_environment", "Environment of sandboxes that specify neither an environment nor an image."},
	{"default_image", "Image of the default environment; empty means the programs of this machine or, " +
		"with Docker and Kubernetes, cove-sandbox:latest."},
	{"pool", "Number of warm sandboxes of the default environment. The environments file sets it for others."},
	{"timeout", "Default lifetime of a sandbox."},
	{"idle_timeout", "Default idle time after which a sandbox counts as idle."},
	{"max_timeout", "Maximum lifetime that can be requested."},
	{"max_idle_timeout", "Maximum idle timeout that can be requested."},
	{"keep", "Time without use after which stopped sandboxes that cove or the pages created are deleted."},
	{"idle_policy", "Default action on an idle sandbox. Sandboxes that cove or the pages create are stopped instead of deleted."},
	{"network", "Default network access of sandboxes: public addresses (open) or none."},
	{"private_networks", "Private addresses or networks (CIDR) that sandboxes may reach."},
	{"memory_limit", "Default memory limit."},
	{"disk_limit", "Default disk limit."},
	{"disk_rate_limit", "Default disk throughput limit in bytes per second, for reads and for writes; 0 means none."},
	{"bandwidth_limit", "Default network bandwidth limit in bytes per second, for each direction; 0 means none."},
	{"runsc", "Path of runsc, for sandboxes with isolation gvisor; " +
		"empty means /usr/local/bin or /usr/bin, or the directory of this program."},
	{"volume_limit", "Size limit of new volumes."},

	// Log.
	{"log_file", "File to write the log to instead of standard error."},
	{"log_file_size", "Size at which the log file is rotated."},
	{"log_files", "Number of older log files to keep."},
	{"log_format", "Log format."},
	{"log_level", "Minimum log level."},
}

// Docs implements Documented.
func (*Cove) Docs() [][2]string { return coveDocs }
