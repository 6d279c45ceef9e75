package config

import (
	"log/slog"
	"time"
)

// Aio is the configuration of `aio serve`. Add a new setting to its group, with a key, a text
// in Docs and, if it must be settable from outside, a variable that starts with AIO_. Names
// without that prefix are part of the public contract.
type Aio struct {
	// Addresses and limits of the server.
	Listen         string        `key:"listen" env:"AIO_LISTEN,COVE_LISTEN" default:"127.0.0.1:8080"`
	PublicPort     int           `key:"public_port" env:"PUBLIC_PORT" default:"0" minimum:"0" maximum:"65535"`
	ListenFD       int           `key:"listen_fd" env:"AIO_LISTEN_FD" default:"0" minimum:"0" maximum:"1023"`
	Door           string        `key:"door" env:"AIO_DOOR"`
	Loopback       string        `key:"loopback" env:"AIO_LOOPBACK"`
	PublicHosts    []string      `key:"public_hosts" env:"AIO_PUBLIC_HOSTS"`
	AllowedOrigins []string      `key:"allowed_origins" env:"AIO_ALLOWED_ORIGINS"`
	TrustedProxies []string      `key:"trusted_proxies" env:"AIO_TRUSTED_PROXIES"`
	Insecure       bool          `key:"insecure" env:"AIO_INSECURE" default:"false"`
	MCPTools       string        `key:"mcp_tools" env:"AIO_MCP_TOOLS"`
	MCPServers     string        `key:"mcp_servers" env:"AIO_MCP_SERVERS"`
	MCPExtra       string        `key:"mcp_extra_servers" env:"EXTRA_MCP_SERVERS"`
	MCPSessions    int           `key:"mcp_sessions" env:"AIO_MCP_SESSIONS" default:"1000" minimum:"1" maximum:"10000"`
	MCPIdle        time.Duration `key:"mcp_idle" env:"AIO_MCP_IDLE" default:"10m" minimum:"0s"`
	BodyLimit      Bytes         `key:"body_limit" env:"AIO_BODY_LIMIT" default:"64MiB" minimum:"64KiB" maximum:"16GiB"`

	// Authentication. It is on if any of the credentials is set.
	JWTPublicKey  string        `key:"jwt_public_key" env:"JWT_PUBLIC_KEY" secret:"public"`
	JWTIssuer     string        `key:"jwt_issuer" env:"JWT_ISSUER"`
	JWTAudience   string        `key:"jwt_audience" env:"JWT_AUDIENCE"`
	AuthToken     string        `key:"auth_token" env:"AUTH_TOKEN" secret:"true"`
	APIKey        string        `key:"api_key" env:"AIO_API_KEY" secret:"true"`
	SandboxAPIKey string        `key:"sandbox_api_key" env:"SANDBOX_API_KEY" secret:"true"`
	TicketTTL     time.Duration `key:"ticket_ttl" env:"TICKET_TTL_SECONDS" default:"30s" minimum:"1s" maximum:"1h"`
	LocalUsers    []string      `key:"local_users" env:"AIO_LOCAL_USERS"`

	// User and directories.
	User          string `key:"user" env:"AIO_USER"`
	UserUID       int    `key:"user_uid" env:"USER_UID" default:"0" minimum:"0" maximum:"2147483647"`
	UserGID       int    `key:"user_gid" env:"USER_GID" default:"0" minimum:"0" maximum:"2147483647"`
	Home          string `key:"home" env:"AIO_HOME"`
	Workspace     string `key:"workspace" env:"WORKSPACE"`
	State         string `key:"state" env:"AIO_STATE"`
	SessionLogs   string `key:"session_logs" env:"AIO_SESSION_LOGS"`
	Runtime       string `key:"runtime" env:"AIO_RUNTIME"`
	Venv          string `key:"venv" env:"AIO_VENV"`
	Python        string `key:"python" env:"AIO_PYTHON"`
	PythonVersion string `key:"python_version" env:"PYTHON_VERSION"`
	NodeVersion   string `key:"node_version" env:"NODE_CODE_EXEC_VERSION"`
	TZ            string `key:"tz" env:"TZ"`

	// Startup and readiness.
	Init               bool          `key:"init" env:"AIO_INIT" default:"false"`
	Contained          bool          `key:"contained" env:"AIO_CONTAINED" default:"false"`
	Alone              bool          `key:"alone" env:"AIO_ALONE" default:"false"`
	WaitPorts          []int         `key:"wait_ports" env:"WAIT_PORTS" minimum:"1" maximum:"65535"`
	WaitTimeout        time.Duration `key:"wait_timeout" env:"AIO_WAIT_TIMEOUT" default:"5m" minimum:"1s" maximum:"1h"`
	RunHookInit        string        `key:"run_hook_init" env:"RUN_HOOK_INIT"`
	RunHookPreServices string        `key:"run_hook_pre_services" env:"RUN_HOOK_PRE_SERVICES"`
	RunHookPostReady   string        `key:"run_hook_post_ready" env:"RUN_HOOK_POST_READY"`
	RunHooksStrict     bool          `key:"run_hooks_strict" env:"RUN_HOOKS_STRICT" default:"false"`
	Build              bool          `key:"build" env:"AIO_BUILD" default:"false"`
	Installing         string        `key:"installing" env:"AIO_INSTALLING"`

	// Shutdown.
	ShutdownHooks   string        `key:"shutdown_hooks" env:"SANDBOX_SHUTDOWN_HOOKS"`
	ShutdownTimeout time.Duration `key:"shutdown_hooks_timeout" env:"SANDBOX_SHUTDOWN_HOOKS_TIMEOUT" default:"30s" minimum:"1s" maximum:"1h"`

	// Components.
	Activity          bool `key:"activity" env:"AIO_ACTIVITY" default:"true"`
	DisableJupyter    bool `key:"disable_jupyter" env:"DISABLE_JUPYTER" default:"false"`
	DisableCodeServer bool `key:"disable_code_server" env:"DISABLE_CODE_SERVER" default:"false"`
	DisableBrowser    bool `key:"disable_browser" env:"DISABLE_BROWSER" default:"false"`
	DisableMCPBrowser bool `key:"disable_mcp_browser" env:"DISABLE_MCP_BROWSER" default:"false"`
	DisableVNC        bool `key:"disable_vnc" env:"DISABLE_VNC" default:"false"`

	SkillsPath []string `key:"skills_path" env:"AIO_SKILLS_PATH"`

	// Programs with web pages.
	Components    string        `key:"components" env:"AIO_COMPONENTS"`
	WorkbenchIdle time.Duration `key:"workbench_idle" env:"AIO_WORKBENCH_IDLE" default:"10m" minimum:"0s"`

	// Display and browser.
	DisplayWidth       int           `key:"display_width" env:"DISPLAY_WIDTH" default:"1280" minimum:"320" maximum:"7680"`
	DisplayHeight      int           `key:"display_height" env:"DISPLAY_HEIGHT" default:"1024" minimum:"240" maximum:"4320"`
	DisplayIdle        time.Duration `key:"display_idle" env:"AIO_DISPLAY_IDLE" default:"30m"`
	BrowserIdle        time.Duration `key:"browser_idle" env:"AIO_BROWSER_IDLE" default:"30m"`
	BrowserProgram     string        `key:"browser_program" env:"AIO_BROWSER_PROGRAM"`
	Homepage           string        `key:"homepage" env:"HOMEPAGE"`
	BrowserLang        string        `key:"browser_lang" env:"BROWSER_LANG" default:"en-US"`
	ChromeUILang       string        `key:"chrome_ui_lang" env:"CHROME_UI_LANG"`
	BrowserUserAgent   string        `key:"browser_user_agent" env:"BROWSER_USER_AGENT"`
	BrowserExtraArgs   []string      `key:"browser_extra_args" env:"BROWSER_EXTRA_ARGS" sep:"space"`
	BrowserFileDialogs bool          `key:"browser_allow_file_selection_dialogs" env:"BROWSER_ALLOW_FILE_SELECTION_DIALOGS" default:"true"`
	BrowserBlocklist   []string      `key:"browser_url_blocklist" env:"BROWSER_URL_BLOCKLIST"`
	BrowserAllowlist   []string      `key:"browser_url_allowlist" env:"BROWSER_URL_ALLOWLIST"`
	BrowserCookies     string        `key:"browser_init_cookies" env:"BROWSER_INIT_COOKIES" secret:"true"`
	BrowserDownloads   string        `key:"browser_download_dir" env:"BROWSER_DOWNLOAD_DIR"`
	DNSOverHTTPS       []string      `key:"dns_over_https_templates" env:"DNS_OVER_HTTPS_TEMPLATES" sep:"space"`

	// Outgoing traffic.
	ProxyServer  string   `key:"proxy_server" env:"PROXY_SERVER" secret:"url"`
	ProxyExclude []string `key:"proxy_exclude" env:"PROXY_EXCLUDE"`
	ProxyInclude []string `key:"proxy_include" env:"PROXY_INCLUDE"`
	ProxyMap     string   `key:"proxy_map" env:"PROXY_MAP"`
	Egress       string   `key:"egress" env:"AIO_EGRESS,COVE_EGRESS"`
	Outlet       string   `key:"outlet" env:"AIO_OUTLET" default:"127.0.0.1:8118"`

	// Session limits.
	ShellMaxSessions int `key:"shell_max_sessions" env:"AIO_SHELL_MAX_SESSIONS,MAX_SHELL_SESSIONS" default:"50" minimum:"1" maximum:"1000"`

	ShellIdle time.Duration `key:"shell_idle" env:"AIO_SHELL_IDLE" default:"1h"`

	BashMaxSessions    int           `key:"bash_max_sessions" env:"AIO_BASH_MAX_SESSIONS" default:"100" minimum:"1" maximum:"10000"`
	BashIdle           time.Duration `key:"bash_idle" env:"AIO_BASH_IDLE" default:"1h"`
	JupyterMaxSessions int           `key:"jupyter_max_sessions" env:"AIO_JUPYTER_MAX_SESSIONS" default:"16" minimum:"1" maximum:"256"`
	JupyterIdle        time.Duration `key:"jupyter_idle" env:"AIO_JUPYTER_IDLE" default:"30m"`
	JupyterWarm        int           `key:"jupyter_warm" env:"AIO_JUPYTER_WARM" default:"1" minimum:"0" maximum:"8"`
	NodeMaxSessions    int           `key:"nodejs_max_sessions" env:"AIO_NODEJS_MAX_SESSIONS" default:"16" minimum:"1" maximum:"256"`
	NodeIdle           time.Duration `key:"nodejs_idle" env:"AIO_NODEJS_IDLE" default:"30m"`

	// Traces.
	OTLPEndpoint string            `key:"otlp_endpoint" env:"AIO_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT"`
	OTLPHeaders  map[string]string `key:"otlp_headers" env:"AIO_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" secret:"true"`

	// Log.
	LogFormat string `key:"log_format" env:"AIO_LOG_FORMAT" default:"text" enum:"text,json"`
	LogDir    string `key:"log_dir" env:"LOG_DIR"`
	LogLevel  string `key:"log_level" env:"AIO_LOG_LEVEL" default:"info" enum:"debug,info,warn,error"`

	// Variables of coding agents, by full name. They contain keys, so they are hidden in output.
	// Children inherit them, because agents are started from any terminal.
	Codex    map[string]string `key:"codex" env:"CODEX_*" secret:"print"`
	OpenCode map[string]string `key:"opencode" env:"OPENCODE_*" secret:"print"`
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
