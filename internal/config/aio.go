package config

import (
	"log/slog"
	"time"
)

// Aio is the configuration of `aio serve`. Add a new setting to its group, with a key, a
// doc and, if it must be settable from outside, a variable that starts with AIO_.
// The public contract fixes the names without that prefix.
type Aio struct {
	// Addresses and limits of the server.
	Listen         string        `key:"listen" env:"AIO_LISTEN,COVE_LISTEN" default:"127.0.0.1:8080" doc:"Address to listen on: host:port, or unix:/path for a Unix socket."`
	PublicPort     int           `key:"public_port" env:"PUBLIC_PORT" default:"0" minimum:"0" maximum:"65535" doc:"Port to listen on instead of that of the default address. An address set with listen takes precedence; 0 means none."`
	ListenFD       int           `key:"listen_fd" env:"AIO_LISTEN_FD" default:"0" minimum:"0" maximum:"1023" doc:"File descriptor of a socket that already listens at that address, inherited from the parent process; 0 means none."`
	Door           string        `key:"door" env:"AIO_DOOR" doc:"Loopback address at which to listen in place of the Unix socket, host:port/word: a hub begins each connection with the word. Set by a hub whose sandboxes cannot be given a socket; empty means none."`
	Loopback       string        `key:"loopback" env:"AIO_LOOPBACK" doc:"Additional loopback address, such as 127.0.0.1:8080, at which programs in the sandbox reach it without credentials; empty means none."`
	PublicHosts    []string      `key:"public_hosts" env:"AIO_PUBLIC_HOSTS" doc:"Host names that clients use to reach the sandbox; *.example.com matches all subdomains. Required for names other than localhost if authentication is off."`
	AllowedOrigins []string      `key:"allowed_origins" env:"AIO_ALLOWED_ORIGINS" doc:"Origins of other web pages that may call the API, such as https://app.example.com."`
	TrustedProxies []string      `key:"trusted_proxies" env:"AIO_TRUSTED_PROXIES" doc:"Addresses or networks (CIDR) of reverse proxies whose X-Forwarded-* headers are used to build URLs."`
	Insecure       bool          `key:"insecure" env:"AIO_INSECURE" default:"false" doc:"Allow listening on a non-loopback address without authentication."`
	MCPTools       string        `key:"mcp_tools" env:"AIO_MCP_TOOLS" doc:"Tools that MCP clients get: tools=a,b, servers=file,shell or tools=all. Default: each client chooses with the same words in the address."`
	MCPServers     string        `key:"mcp_servers" env:"AIO_MCP_SERVERS" doc:"File with further MCP servers, in the usual form {\"mcpServers\": {…}}. Default: ~/.config/aio/mcp.json."`
	MCPExtra       string        `key:"mcp_extra_servers" env:"EXTRA_MCP_SERVERS" doc:"Further MCP servers as JSON in the usual form, or the path of a file with them."`
	MCPSessions    int           `key:"mcp_sessions" env:"AIO_MCP_SESSIONS" default:"1000" minimum:"1" maximum:"10000" doc:"Maximum number of open MCP sessions. One more closes the session that was unused for longest, if it was unused for a minute; otherwise it is refused with status 429."`
	MCPIdle        time.Duration `key:"mcp_idle" env:"AIO_MCP_IDLE" default:"10m" minimum:"0s" doc:"Time after which the process of an unused MCP server is stopped. 0 means never."`
	BodyLimit      Bytes         `key:"body_limit" env:"AIO_BODY_LIMIT" default:"64MiB" minimum:"64KiB" maximum:"16GiB" doc:"Maximum size of a request body. Uploads that are streamed to disk are not limited."`

	// Authentication. It is on if any of the credentials is set.
	JWTPublicKey  string        `key:"jwt_public_key" env:"JWT_PUBLIC_KEY" secret:"public" doc:"RSA public key (base64 of its PEM) that verifies RS256 bearer tokens."`
	JWTIssuer     string        `key:"jwt_issuer" env:"JWT_ISSUER" doc:"Issuer (iss claim) that bearer tokens must have; empty means any."`
	JWTAudience   string        `key:"jwt_audience" env:"JWT_AUDIENCE" doc:"Audience that the aud claim of bearer tokens must contain; empty means any."`
	AuthToken     string        `key:"auth_token" env:"AUTH_TOKEN" secret:"true" doc:"Shared token, sent as Authorization: Bearer."`
	APIKey        string        `key:"api_key" env:"AIO_API_KEY" secret:"true" doc:"API key, sent as X-API-Key, X-AIO-API-Key, Authorization: Bearer or ?api_key=."`
	SandboxAPIKey string        `key:"sandbox_api_key" env:"SANDBOX_API_KEY" secret:"true" doc:"Second API key, under the name that the public sandbox image uses. It is accepted like api_key."`
	TicketTTL     time.Duration `key:"ticket_ttl" env:"TICKET_TTL_SECONDS" default:"30s" minimum:"1s" maximum:"1h" doc:"Lifetime of a one-time ticket."`
	LocalUsers    []string      `key:"local_users" env:"AIO_LOCAL_USERS" doc:"Users (names or IDs) who may connect over loopback if authentication is off, besides root and the user that runs the server; * means all."`

	// User and directories.
	User          string `key:"user" env:"AIO_USER" doc:"User (name or ID) to run as; empty means the current user."`
	UserUID       int    `key:"user_uid" env:"USER_UID" default:"0" minimum:"0" maximum:"2147483647" doc:"Numeric ID of the user to run as, if started by root and user is empty; 0 means the current user."`
	UserGID       int    `key:"user_gid" env:"USER_GID" default:"0" minimum:"0" maximum:"2147483647" doc:"Numeric ID of the group to run as, with user_uid; 0 means the group of that user."`
	Home          string `key:"home" env:"AIO_HOME" doc:"Home directory; empty means the user's."`
	Workspace     string `key:"workspace" env:"WORKSPACE" doc:"Directory that relative paths refer to and new sessions start in; empty means the home directory."`
	State         string `key:"state" env:"AIO_STATE" doc:"Directory for data that must survive a restart; empty means aio below XDG_STATE_HOME or ~/.local/state."`
	SessionLogs   string `key:"session_logs" env:"AIO_SESSION_LOGS" doc:"Directory for logs of sessions: the activity record, and output of commands that memory does not hold. Empty means aio-UID below /var/tmp, where a search of the home directory does not find them, or the state directory if that or the home directory is set."`
	Runtime       string `key:"runtime" env:"AIO_RUNTIME" doc:"Directory for sockets; empty means aio below XDG_RUNTIME_DIR if that exists, else the state directory."`
	Venv          string `key:"venv" env:"AIO_VENV" doc:"Python virtual environment; empty means venv below the state directory."`
	Python        string `key:"python" env:"AIO_PYTHON" doc:"Python interpreter for kernels; empty means that of the virtual environment, then the first one with ipykernel."`
	PythonVersion string `key:"python_version" env:"PYTHON_VERSION" doc:"Preferred version of Python for code and kernels, such as 3.12, among the installed ones that have ipykernel."`
	NodeVersion   string `key:"node_version" env:"NODE_CODE_EXEC_VERSION" doc:"Version of Node.js for code that asks for none, such as node22 or 22, among the installed ones; empty means the first node in PATH."`
	TZ            string `key:"tz" env:"TZ" doc:"Time zone, such as Europe/Berlin; empty means the machine's."`

	// Startup and readiness.
	Init               bool          `key:"init" env:"AIO_INIT" default:"false" doc:"Wait for POST /v1/sandbox/init, which brings environment, files and working directory, before starting anything."`
	Contained          bool          `key:"contained" env:"AIO_CONTAINED" default:"false" doc:"Start no process that kills orphaned children: all processes end with this server anyway, as in a sandbox of a hub."`
	Alone              bool          `key:"alone" env:"AIO_ALONE" default:"false" doc:"Use GOMAXPROCS during startup only, then all processors, as in a sandbox of a hub."`
	WaitPorts          []int         `key:"wait_ports" env:"WAIT_PORTS" minimum:"1" maximum:"65535" doc:"Local ports that must accept connections before the sandbox is ready."`
	WaitTimeout        time.Duration `key:"wait_timeout" env:"AIO_WAIT_TIMEOUT" default:"5m" minimum:"1s" maximum:"1h" doc:"Maximum time to wait for those ports before readiness reports a failure."`
	RunHookInit        string        `key:"run_hook_init" env:"RUN_HOOK_INIT" doc:"Shell command to run first at startup."`
	RunHookPreServices string        `key:"run_hook_pre_services" env:"RUN_HOOK_PRE_SERVICES" doc:"Shell command to run before any component starts."`
	RunHookPostReady   string        `key:"run_hook_post_ready" env:"RUN_HOOK_POST_READY" doc:"Shell command to run once the sandbox is ready."`
	RunHooksStrict     bool          `key:"run_hooks_strict" env:"RUN_HOOKS_STRICT" default:"false" doc:"Whether a failing start hook stops the start: the sandbox then never becomes ready. Otherwise the failure is logged and the start continues."`
	ShutdownHooks      string        `key:"shutdown_hooks" env:"SANDBOX_SHUTDOWN_HOOKS" doc:"Shell command to run when the sandbox stops, or a JSON list of commands or of objects with name, command, timeout and priority."`
	ShutdownTimeout    time.Duration `key:"shutdown_hooks_timeout" env:"SANDBOX_SHUTDOWN_HOOKS_TIMEOUT" default:"30s" minimum:"1s" maximum:"1h" doc:"Timeout of those commands that have none."`
	Activity           bool          `key:"activity" env:"AIO_ACTIVITY" default:"true" doc:"Whether to keep a bounded record of what happens in the sandbox, for the Activity page."`
	DisableJupyter     bool          `key:"disable_jupyter" env:"DISABLE_JUPYTER" default:"false" doc:"Disable JupyterLab at /jupyter/ and the notebook page."`
	DisableCodeServer  bool          `key:"disable_code_server" env:"DISABLE_CODE_SERVER" default:"false" doc:"Disable VS Code at /code-server/."`
	DisableBrowser     bool          `key:"disable_browser" env:"DISABLE_BROWSER" default:"false" doc:"Disable the browser: its operations and its DevTools are refused. The display keeps working."`
	DisableMCPBrowser  bool          `key:"disable_mcp_browser" env:"DISABLE_MCP_BROWSER" default:"false" doc:"Offer no browser tools to MCP clients."`
	DisableVNC         bool          `key:"disable_vnc" env:"DISABLE_VNC" default:"false" doc:"Disable watching the display: the VNC page and its WebSocket are refused."`

	SkillsPath []string `key:"skills_path" env:"AIO_SKILLS_PATH" doc:"Folders whose skills are registered at startup, separated by commas or colons."`

	// Programs with pages of their own.
	Components    string        `key:"components" env:"AIO_COMPONENTS" doc:"Directory where components such as VS Code and JupyterLab are installed; empty means components below the state directory. They are also found in /usr/local/lib/cove/components."`
	WorkbenchIdle time.Duration `key:"workbench_idle" env:"AIO_WORKBENCH_IDLE" default:"10m" minimum:"0s" doc:"Stop VS Code or JupyterLab after nobody was connected to it for this time; 0 means never."`

	// Display and browser.
	DisplayWidth       int           `key:"display_width" env:"DISPLAY_WIDTH" default:"1280" minimum:"320" maximum:"7680" doc:"Display width in pixels."`
	DisplayHeight      int           `key:"display_height" env:"DISPLAY_HEIGHT" default:"1024" minimum:"240" maximum:"4320" doc:"Display height in pixels."`
	DisplayIdle        time.Duration `key:"display_idle" env:"AIO_DISPLAY_IDLE" default:"30m" doc:"Stop the display after this idle time; 0 means never."`
	BrowserIdle        time.Duration `key:"browser_idle" env:"AIO_BROWSER_IDLE" default:"30m" doc:"Stop the browser after this idle time; 0 means never."`
	BrowserProgram     string        `key:"browser_program" env:"AIO_BROWSER_PROGRAM" doc:"Path of the browser; empty means the first chromium or google-chrome found."`
	Homepage           string        `key:"homepage" env:"HOMEPAGE" doc:"Page that the browser opens at start."`
	BrowserLang        string        `key:"browser_lang" env:"BROWSER_LANG" default:"en-US" doc:"Preferred languages for web pages, best first, separated by commas."`
	ChromeUILang       string        `key:"chrome_ui_lang" env:"CHROME_UI_LANG" doc:"Language of the browser's own user interface; empty means the first of browser_lang."`
	BrowserUserAgent   string        `key:"browser_user_agent" env:"BROWSER_USER_AGENT" doc:"User agent to send instead of the browser's own."`
	BrowserExtraArgs   []string      `key:"browser_extra_args" env:"BROWSER_EXTRA_ARGS" sep:"space" doc:"Additional command-line switches for the browser, each starting with --."`
	BrowserFileDialogs bool          `key:"browser_allow_file_selection_dialogs" env:"BROWSER_ALLOW_FILE_SELECTION_DIALOGS" default:"true" doc:"Allow pages to open file selection dialogs."`
	BrowserBlocklist   []string      `key:"browser_url_blocklist" env:"BROWSER_URL_BLOCKLIST" doc:"URLs that the browser blocks, in the format of Chromium's URLBlocklist policy, separated by commas or as a JSON list. A restart of the browser can change them."`
	BrowserAllowlist   []string      `key:"browser_url_allowlist" env:"BROWSER_URL_ALLOWLIST" doc:"Exceptions from browser_url_blocklist, in the same format."`
	BrowserCookies     string        `key:"browser_init_cookies" env:"BROWSER_INIT_COOKIES" secret:"true" doc:"Cookies that the browser has from its first start, as a JSON list of objects with name, value, and url or domain; or the path of a file with them."`
	BrowserDownloads   string        `key:"browser_download_dir" env:"BROWSER_DOWNLOAD_DIR" doc:"Directory for downloads of the browser; empty means Downloads in the home directory."`
	DNSOverHTTPS       []string      `key:"dns_over_https_templates" env:"DNS_OVER_HTTPS_TEMPLATES" sep:"space" doc:"URI templates of DNS-over-HTTPS servers for the browser."`

	// Outbound proxy.
	ProxyServer  string   `key:"proxy_server" env:"PROXY_SERVER" secret:"url" doc:"Upstream proxy: host:port, or an http://, https:// or socks5:// URL, with user:password@ if it requires authentication."`
	ProxyExclude []string `key:"proxy_exclude" env:"PROXY_EXCLUDE" doc:"Hosts that bypass the upstream proxy."`
	ProxyInclude []string `key:"proxy_include" env:"PROXY_INCLUDE" doc:"If set, only these hosts use the upstream proxy."`
	ProxyMap     string   `key:"proxy_map" env:"PROXY_MAP" doc:"Foreign hosts that services in the sandbox answer for: SOURCE=TARGET, separated by commas, semicolons or newlines, such as https://api.example.com=3000; or a JSON object."`
	Egress       string   `key:"egress" env:"AIO_EGRESS,COVE_EGRESS" doc:"Endpoint of the egress proxy in a sandbox without a network: unix:/path or tcp:host:port."`
	Outlet       string   `key:"outlet" env:"AIO_OUTLET" default:"127.0.0.1:8118" doc:"Loopback address of the outbound proxy; if its port is taken, another one is used."`

	// Session limits.
	ShellMaxSessions   int           `key:"shell_max_sessions" env:"AIO_SHELL_MAX_SESSIONS,MAX_SHELL_SESSIONS" default:"50" minimum:"1" maximum:"1000" doc:"Maximum number of concurrent shell sessions."`
	ShellIdle          time.Duration `key:"shell_idle" env:"AIO_SHELL_IDLE" default:"1h" doc:"Close a shell session after this idle time; 0 means never."`
	BashMaxSessions    int           `key:"bash_max_sessions" env:"AIO_BASH_MAX_SESSIONS" default:"100" minimum:"1" maximum:"10000" doc:"Maximum number of concurrent bash sessions."`
	BashIdle           time.Duration `key:"bash_idle" env:"AIO_BASH_IDLE" default:"1h" doc:"Close a bash session after this idle time; 0 means never."`
	JupyterMaxSessions int           `key:"jupyter_max_sessions" env:"AIO_JUPYTER_MAX_SESSIONS" default:"16" minimum:"1" maximum:"256" doc:"Maximum number of concurrent Jupyter kernels."`
	JupyterIdle        time.Duration `key:"jupyter_idle" env:"AIO_JUPYTER_IDLE" default:"30m" doc:"Stop a kernel after this idle time; 0 means never."`
	JupyterWarm        int           `key:"jupyter_warm" env:"AIO_JUPYTER_WARM" default:"1" minimum:"0" maximum:"8" doc:"Number of spare kernels to keep running once one was used, so that a new session need not wait."`
	NodeMaxSessions    int           `key:"nodejs_max_sessions" env:"AIO_NODEJS_MAX_SESSIONS" default:"16" minimum:"1" maximum:"256" doc:"Maximum number of concurrent Node.js sessions."`
	NodeIdle           time.Duration `key:"nodejs_idle" env:"AIO_NODEJS_IDLE" default:"30m" doc:"Close a Node.js session after this idle time; 0 means never."`

	// Traces.
	OTLPEndpoint string            `key:"otlp_endpoint" env:"AIO_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" doc:"URL of an OpenTelemetry collector (OTLP over HTTP) that receives a trace of every call."`
	OTLPHeaders  map[string]string `key:"otlp_headers" env:"AIO_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" secret:"true" doc:"HTTP headers to send to the collector: name=value."`

	// Log.
	LogFormat string `key:"log_format" env:"AIO_LOG_FORMAT" default:"text" enum:"text,json" doc:"Log format."`
	LogDir    string `key:"log_dir" env:"LOG_DIR" doc:"Directory for log files, one per service, besides the log on standard error; empty means none."`
	LogLevel  string `key:"log_level" env:"AIO_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" doc:"Minimum log level."`

	// Variables of coding agents, by full name. They hold keys, so they are hidden when shown.
	// Children keep them: the agents are started from any terminal and read them there.
	Codex    map[string]string `key:"codex" env:"CODEX_*" secret:"print" doc:"Environment variables for codex."`
	OpenCode map[string]string `key:"opencode" env:"OPENCODE_*" secret:"print" doc:"Environment variables for opencode."`
}

// HasCredentials reports whether callers must authenticate.
func (a Aio) HasCredentials() bool {
	return a.JWTPublicKey != "" || a.AuthToken != "" || a.APIKey != "" || a.SandboxAPIKey != ""
}

// String hides secrets.
func (a Aio) String() string { return Redact(&a) }

// GoString hides secrets from %#v.
func (a Aio) GoString() string { return "config.Aio{" + Redact(&a) + "}" }

// LogValue hides secrets from a log line that carries the whole struct.
func (a Aio) LogValue() slog.Value { return slog.StringValue(Redact(&a)) }

// MarshalText hides secrets from encoders.
func (a Aio) MarshalText() ([]byte, error) { return []byte(Redact(&a)), nil }
