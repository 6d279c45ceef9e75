package config

import (
	"log/slog"
	"time"
)

// Aio is the configuration of `aio serve`. The fields stand in groups; add a new one
// to its group with a key, a doc and, where others must set it from outside, a
// variable that begins with AIO_. Names without that prefix are fixed by the
// public contract.
type Aio struct {
	// Where the server listens and under which names it is known.
	Listen         string   `key:"listen" env:"AIO_LISTEN,COVE_LISTEN" default:"127.0.0.1:8080" doc:"Address to serve on: host:port, or unix:/path for a socket."`
	ListenFD       int      `key:"listen_fd" env:"AIO_LISTEN_FD" default:"0" min:"0" max:"1023" doc:"Descriptor of a socket that listens already at that address, as a hub hands one over; 0 means none."`
	PublicPort     int      `key:"public_port" env:"PUBLIC_PORT" default:"0" min:"0" max:"65535" doc:"Port under which callers outside reach the sandbox; 0 means the one it listens on."`
	PublicHosts    []string `key:"public_hosts" env:"AIO_PUBLIC_HOSTS" doc:"Host names under which the sandbox is reached, *.example.com for all below; needed for names other than localhost when no sign-in is set."`
	AllowedOrigins []string `key:"allowed_origins" env:"AIO_ALLOWED_ORIGINS" doc:"Origins of other web pages that may call the API, such as https://app.example.com."`
	TrustedProxies []string `key:"trusted_proxies" env:"AIO_TRUSTED_PROXIES" doc:"Addresses or networks (CIDR) of proxies whose X-Forwarded-* headers shape URLs."`
	Insecure       bool     `key:"insecure" env:"AIO_INSECURE" default:"false" doc:"Serve on an address that others can reach although no sign-in is set."`
	BodyLimit      Bytes    `key:"body_limit" env:"AIO_BODY_LIMIT" default:"64MiB" min:"64KiB" max:"16GiB" doc:"Largest request body; uploads that stream to disk are not bound by it."`

	// Sign-in. Any of the three credentials closes the server.
	JWTPublicKey string        `key:"jwt_public_key" env:"JWT_PUBLIC_KEY" secret:"true" doc:"RSA public key (base64 of its PEM) that verifies RS256 bearer tokens."`
	AuthToken    string        `key:"auth_token" env:"AUTH_TOKEN" secret:"true" doc:"Shared token, sent as Authorization: Bearer."`
	APIKey       string        `key:"api_key" env:"AIO_API_KEY" secret:"true" doc:"Key, sent as X-API-Key."`
	TicketTTL    time.Duration `key:"ticket_ttl" env:"TICKET_TTL_SECONDS" default:"30s" min:"1s" max:"1h" doc:"How long a one-time ticket can be used."`

	// Who and where.
	User       string   `key:"user" env:"AIO_USER" doc:"User (name or number) that everything runs as; empty means who started it."`
	Home       string   `key:"home" env:"AIO_HOME" doc:"Home folder; empty means the user's own."`
	Workspace  string   `key:"workspace" env:"WORKSPACE" doc:"Folder that relative paths and new sessions start in; empty means the home folder."`
	State      string   `key:"state" env:"AIO_STATE" doc:"Folder for what must survive a restart; empty means aio below XDG_STATE_HOME or ~/.local/state."`
	Runtime    string   `key:"runtime" env:"AIO_RUNTIME" doc:"Folder for sockets; empty means aio below XDG_RUNTIME_DIR if that exists, else the state folder."`
	Venv       string   `key:"venv" env:"AIO_VENV" doc:"Python environment with the project's packages; empty means venv below the state folder."`
	TZ         string   `key:"tz" env:"TZ" doc:"Time zone of everything that runs, such as Europe/Berlin; empty means the machine's."`
	SkillsPath []string `key:"skills_path" env:"AIO_SKILLS_PATH" sep:"path" doc:"Folders whose skills are registered at start."`

	// Start and readiness.
	Init               bool          `key:"init" env:"AIO_INIT" default:"false" doc:"Wait to be told environment, files and folder by POST /v1/sandbox/init, and do nothing else before."`
	Contained          bool          `key:"contained" env:"AIO_CONTAINED" default:"false" doc:"All processes end with this server anyway, as in a sandbox of a hub: none is kept to watch over them."`
	Alone              bool          `key:"alone" env:"AIO_ALONE" default:"false" doc:"GOMAXPROCS is meant for the start only, as in a sandbox of a hub: after it the server uses what processors there are."`
	WaitPorts          []int         `key:"wait_ports" env:"WAIT_PORTS" min:"1" max:"65535" doc:"Local ports that must accept connections before the sandbox calls itself ready."`
	WaitTimeout        time.Duration `key:"wait_timeout" env:"AIO_WAIT_TIMEOUT" default:"5m" min:"1s" max:"1h" doc:"How long to wait for those ports before readiness reports a failure."`
	RunHookInit        string        `key:"run_hook_init" env:"RUN_HOOK_INIT" doc:"Shell command run first at start."`
	RunHookPreServices string        `key:"run_hook_pre_services" env:"RUN_HOOK_PRE_SERVICES" doc:"Shell command run before any component starts."`
	RunHookPostReady   string        `key:"run_hook_post_ready" env:"RUN_HOOK_POST_READY" doc:"Shell command run once the sandbox is ready."`
	DisableJupyter     bool          `key:"disable_jupyter" env:"DISABLE_JUPYTER" default:"false" doc:"Leave out the notebook pages."`
	DisableCodeServer  bool          `key:"disable_code_server" env:"DISABLE_CODE_SERVER" default:"false" doc:"Leave out the editor in the browser."`

	// Display and browser.
	DisplayWidth       int           `key:"display_width" env:"DISPLAY_WIDTH" default:"1280" min:"320" max:"7680" doc:"Width of the display in pixels."`
	DisplayHeight      int           `key:"display_height" env:"DISPLAY_HEIGHT" default:"1024" min:"240" max:"4320" doc:"Height of the display in pixels."`
	DisplayIdle        time.Duration `key:"display_idle" env:"AIO_DISPLAY_IDLE" default:"30m" doc:"Stop the display after this long without use; 0 means never."`
	BrowserIdle        time.Duration `key:"browser_idle" env:"AIO_BROWSER_IDLE" default:"30m" doc:"Stop the browser after this long without use; 0 means never."`
	BrowserProgram     string        `key:"browser_program" env:"AIO_BROWSER_PROGRAM" doc:"Path of the browser; empty means chromium or google-chrome as found."`
	Homepage           string        `key:"homepage" env:"HOMEPAGE" doc:"Page that the browser opens when it starts."`
	BrowserLang        string        `key:"browser_lang" env:"BROWSER_LANG" default:"en-US" doc:"Languages that the browser asks pages for, best first, comma separated."`
	ChromeUILang       string        `key:"chrome_ui_lang" env:"CHROME_UI_LANG" doc:"Language of the browser's own menus; empty means the first of browser_lang."`
	BrowserUserAgent   string        `key:"browser_user_agent" env:"BROWSER_USER_AGENT" doc:"User agent to send instead of the browser's own."`
	BrowserExtraArgs   []string      `key:"browser_extra_args" env:"BROWSER_EXTRA_ARGS" sep:"space" doc:"Further switches for the browser, each beginning with --."`
	BrowserFileDialogs bool          `key:"browser_allow_file_selection_dialogs" env:"BROWSER_ALLOW_FILE_SELECTION_DIALOGS" default:"true" doc:"Let pages open the dialog that picks a file."`
	DNSOverHTTPS       []string      `key:"dns_over_https_templates" env:"DNS_OVER_HTTPS_TEMPLATES" sep:"space" doc:"Addresses (templates) of DNS-over-HTTPS servers for the browser."`

	// Outbound proxy.
	ProxyServer  string            `key:"proxy_server" env:"PROXY_SERVER" secret:"url" doc:"Upstream proxy: host:port, or http://, https:// or socks5://, with user:password@ if it wants them."`
	ProxyExclude []string          `key:"proxy_exclude" env:"PROXY_EXCLUDE" doc:"Hosts that bypass the upstream proxy."`
	ProxyInclude []string          `key:"proxy_include" env:"PROXY_INCLUDE" doc:"If set, only these hosts use the upstream proxy."`
	Egress       string            `key:"egress" env:"AIO_EGRESS,COVE_EGRESS" doc:"Where the way out begins in a sandbox without a network: unix:/path or tcp:host:port."`
	Outlet       string            `key:"outlet" env:"AIO_OUTLET" default:"127.0.0.1:3128" doc:"Address on loopback at which programs inside find that way; when its port is taken, another is used."`
	ProxyMap     map[string]string `key:"proxy_map" env:"PROXY_MAP" doc:"Hosts answered by a local service: pattern=port."`

	// Limits of sessions.
	ShellMaxSessions   int           `key:"shell_max_sessions" env:"AIO_SHELL_MAX_SESSIONS,MAX_SHELL_SESSIONS" default:"50" min:"1" max:"1000" doc:"Most shell sessions at a time."`
	ShellIdle          time.Duration `key:"shell_idle" env:"AIO_SHELL_IDLE" default:"1h" doc:"End a shell session after this long without use; 0 means never."`
	BashMaxSessions    int           `key:"bash_max_sessions" env:"AIO_BASH_MAX_SESSIONS" default:"100" min:"1" max:"10000" doc:"Most bash sessions at a time."`
	BashIdle           time.Duration `key:"bash_idle" env:"AIO_BASH_IDLE" default:"1h" doc:"Forget a bash session after this long without use; 0 means never."`
	JupyterMaxSessions int           `key:"jupyter_max_sessions" env:"AIO_JUPYTER_MAX_SESSIONS" default:"16" min:"1" max:"256" doc:"Most kernels at a time."`
	JupyterIdle        time.Duration `key:"jupyter_idle" env:"AIO_JUPYTER_IDLE" default:"30m" doc:"End a kernel after this long without use; 0 means never."`
	JupyterWarm        int           `key:"jupyter_warm" env:"AIO_JUPYTER_WARM" default:"1" min:"0" max:"8" doc:"Kernels kept started once one was used, so that a new session need not wait."`
	NodeMaxSessions    int           `key:"nodejs_max_sessions" env:"AIO_NODEJS_MAX_SESSIONS" default:"16" min:"1" max:"256" doc:"Most Node.js sessions at a time."`
	NodeIdle           time.Duration `key:"nodejs_idle" env:"AIO_NODEJS_IDLE" default:"30m" doc:"End a Node.js session after this long without use; 0 means never."`

	// Traces.
	OTLPEndpoint string            `key:"otlp_endpoint" env:"AIO_OTLP_ENDPOINT,OTEL_EXPORTER_OTLP_ENDPOINT" doc:"Address of an OpenTelemetry collector (OTLP over HTTP) that gets a trace of every call."`
	OTLPHeaders  map[string]string `key:"otlp_headers" env:"AIO_OTLP_HEADERS,OTEL_EXPORTER_OTLP_HEADERS" secret:"true" doc:"Headers to send there: name=value."`

	// Log.
	LogFormat string `key:"log_format" env:"AIO_LOG_FORMAT" default:"text" enum:"text,json" doc:"Form of log lines."`
	LogLevel  string `key:"log_level" env:"AIO_LOG_LEVEL" default:"info" enum:"debug,info,warn,error" doc:"Least level that is logged."`

	// Settings of coding agents, by full variable name. They hold keys, so they are not shown, but
	// children keep them: the programs are started from any terminal and read them there.
	Codex    map[string]string `key:"codex" env:"CODEX_*" secret:"print" doc:"Variables for codex."`
	OpenCode map[string]string `key:"opencode" env:"OPENCODE_*" secret:"print" doc:"Variables for opencode."`
}

// String hides secrets.
func (a Aio) String() string { return Redact(&a) }

// GoString hides secrets from %#v.
func (a Aio) GoString() string { return "config.Aio{" + Redact(&a) + "}" }

// LogValue hides secrets from a log line that carries the whole struct.
func (a Aio) LogValue() slog.Value { return slog.StringValue(Redact(&a)) }

// MarshalText hides secrets from encoders.
func (a Aio) MarshalText() ([]byte, error) { return []byte(Redact(&a)), nil }
