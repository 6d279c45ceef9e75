package config

// aioDocs documents the settings of Aio, in the order of its fields.
var aioDocs = [][2]string{
	// Addresses and limits of the server.
	{"listen", "Address to listen on: host:port, or unix:/path for a Unix socket."},
	{"public_port", "Port to listen on instead of the default port. An address set with listen takes precedence; 0 means none."},
	{"listen_fd", "File descriptor of an inherited socket that already listens on that address; 0 means none."},
	{"door", "Loopback address to listen on instead of the Unix socket, as host:port/word. Each connection must begin with the word. " +
		"Set by hubs that cannot provide a socket; empty means none."},
	{"loopback", "Additional loopback address, such as 127.0.0.1:8080, for programs in the sandbox, without authentication; " +
		"empty means none."},
	{"public_hosts", "Host names that clients use to reach the sandbox; *.example.com matches all subdomains. " +
		"Required for names other than localhost if authentication is off."},
	{"allowed_origins", "Origins of other web pages that may call the API, such as https://app.example.com."},
	{"trusted_proxies", "Addresses or networks (CIDR) of reverse proxies whose X-Forwarded-* headers are used to build URLs."},
	{"insecure", "Allow listening on a non-loopback address without authentication."},
	{"mcp_tools", "Tools offered to MCP clients: tools=a,b, servers=file,shell or tools=all. " +
		"By default, each client selects tools with the same parameters in the URL."},
	{"mcp_servers", "File with additional MCP servers, in the form {\"mcpServers\": {…}}. Default: ~/.config/aio/mcp.json."},
	{"mcp_extra_servers", "Additional MCP servers, as JSON in the same form or as the path of a file."},
	{"mcp_sessions", "Maximum number of open MCP sessions. At the limit, a new session replaces the least recently used one " +
		"if that was unused for a minute; otherwise it is rejected with status 429."},
	{"mcp_idle", "Idle time after which the process of an MCP server is stopped; 0 means never."},
	{"body_limit", "Maximum size of a request body. Uploads that are streamed to disk are not limited."},

	// Authentication. It is on if any of the credentials is set.
	{"jwt_public_key", "RSA public key (base64 of its PEM) that verifies RS256 bearer tokens."},
	{"jwt_issuer", "Required issuer (iss claim) of bearer tokens; empty means any."},
	{"jwt_audience", "Required audience (aud claim) of bearer tokens; empty means any."},
	{"auth_token", "Shared token, sent as Authorization: Bearer."},
	{"api_key", "API key, sent as X-API-Key, X-AIO-API-Key, Authorization: Bearer or ?api_key=."},
	{"sandbox_api_key", "Second API key, under the name of the public sandbox image. It is accepted like api_key."},
	{"ticket_ttl", "Lifetime of a one-time ticket."},
	{"local_users", "Local users (names or IDs) that may connect over loopback if authentication is off, " +
		"in addition to root and the user that runs the server; * means all."},

	// User and directories.
	{"user", "User (name or ID) to run as; empty means the current user."},
	{"user_uid", "Numeric ID of the user to run as, if started by root and user is empty; 0 means the current user."},
	{"user_gid", "Numeric ID of the group to run as, with user_uid; 0 means the group of that user."},
	{"home", "Home directory; empty means that of the user."},
	{"workspace", "Base directory of relative paths and start directory of sessions; empty means the home directory."},
	{"state", "Directory of data that must survive a restart; empty means aio below XDG_STATE_HOME or ~/.local/state."},
	{"session_logs", "Directory of session logs: the activity record, and output of commands that exceeds the memory limit. " +
		"Empty means aio-UID below /var/tmp, outside the home directory, or the state directory if state or home is set."},
	{"runtime", "Directory of sockets; empty means aio below XDG_RUNTIME_DIR if that exists, otherwise the state directory."},
	{"venv", "Python virtual environment; empty means venv below the state directory."},
	{"python", "Python interpreter of kernels; empty means that of the virtual environment, " +
		"otherwise the first one with ipykernel."},
	{"python_version", "Preferred Python version for code and kernels, such as 3.12, among installed versions with ipykernel."},
	{"node_version", "Default Node.js version, such as node22 or 22, among installed versions; empty means the first node in PATH."},
	{"tz", "Time zone, such as Europe/Berlin; empty means that of the machine."},

	// Startup and readiness.
	{"init", "Start no component before POST /v1/sandbox/init, which provides environment, files and working directory."},
	{"contained", "Do not start the process that kills orphaned children. " +
		"For servers whose processes all end with the server, as in a sandbox of a hub."},
	{"alone", "Limit the processors to GOMAXPROCS only during startup, as in a sandbox of a hub."},
	{"wait_ports", "Local ports that must accept connections before the sandbox is ready."},
	{"wait_timeout", "Timeout for wait_ports. After it, readiness reports a failure."},
	{"run_hook_init", "Shell command that runs first at startup."},
	{"run_hook_pre_services", "Shell command that runs before any component starts."},
	{"run_hook_post_ready", "Shell command that runs when the sandbox is ready."},
	{"run_hooks_strict", "Stop the startup if a start hook fails, so that the sandbox never becomes ready. " +
		"Otherwise the failure is logged and startup continues."},
	{"build", "Run steps of template builds; set by the hub. The server must run as root, and every caller can run steps."},
	{"installing", "File with the progress of an installation that continues after the start, which errors about missing " +
		"programs show. A file that has not changed for a minute is ignored."},

	// Shutdown.
	{"shutdown_hooks", "Shell command that runs when the sandbox stops, or a JSON list of commands " +
		"or of objects with name, command, timeout and priority."},
	{"shutdown_hooks_timeout", "Default timeout of shutdown_hooks."},

	// Components.
	{"activity", "Keep a bounded record of activity in the sandbox, for the Activity page."},
	{"disable_jupyter", "Disable JupyterLab at /jupyter/ and the notebook page."},
	{"disable_code_server", "Disable VS Code at /code-server/."},
	{"disable_browser", "Disable the browser: its operations and DevTools are rejected. The display remains available."},
	{"disable_mcp_browser", "Offer no browser tools to MCP clients."},
	{"disable_vnc", "Disable viewing of the display: the VNC page and its WebSocket are rejected."},

	{"skills_path", "Folders whose skills are registered at startup, separated by commas or colons."},

	// Programs with web pages.
	{"components", "Directory of installed components such as VS Code and JupyterLab; empty means components below the state directory. " +
		"/usr/local/lib/cove/components is searched too."},
	{"workbench_idle", "Stop VS Code or JupyterLab after this time without connections; 0 means never."},

	// Display and browser.
	{"display_width", "Display width in pixels."},
	{"display_height", "Display height in pixels."},
	{"display_idle", "Stop the display after this idle time; 0 means never."},
	{"browser_idle", "Stop the browser after this idle time; 0 means never."},
	{"browser_program", "Path of the browser; empty means the first chromium or google-chrome found."},
	{"homepage", "Page that the browser opens at startup."},
	{"browser_lang", "Preferred languages for web pages, best first, separated by commas."},
	{"chrome_ui_lang", "Language of the browser's user interface; empty means the first of browser_lang."},
	{"browser_user_agent", "User agent that the browser sends; empty means the default."},
	{"browser_extra_args", "Additional command-line switches of the browser, each starting with --."},
	{"browser_allow_file_selection_dialogs", "Allow pages to open file selection dialogs."},
	{"browser_url_blocklist", "URLs that the browser blocks, in the format of Chromium's URLBlocklist policy, " +
		"separated by commas or as a JSON list. A restart of the browser can change them."},
	{"browser_url_allowlist", "Exceptions from browser_url_blocklist, in the same format."},
	{"browser_init_cookies", "Cookies that are set at the first start of the browser, as a JSON list of objects " +
		"with name, value, and url or domain, or as the path of a file."},
	{"browser_download_dir", "Directory of browser downloads; empty means Downloads in the home directory."},
	{"dns_over_https_templates", "URI templates of DNS-over-HTTPS servers for the browser."},

	// Outgoing traffic.
	{"proxy_server", "Upstream proxy: host:port, or an http://, https:// or socks5:// URL, " +
		"with user:password@ if it requires authentication."},
	{"proxy_exclude", "Hosts that bypass the upstream proxy."},
	{"proxy_include", "Hosts that use the upstream proxy; empty means all hosts."},
	{"proxy_map", "Foreign hosts that are served by services in the sandbox, as SOURCE=TARGET such as https://api.example.com=3000, " +
		"separated by commas, semicolons or newlines, or as a JSON object."},
	{"egress", "Endpoint of the egress proxy in a sandbox without a network: unix:/path or tcp:host:port."},
	{"outlet", "Loopback address of the relay to the egress proxy of the hub. If its port is in use, another one is selected."},

	// Session limits.
	{"shell_max_sessions", "Maximum number of concurrent shell sessions."},
	{"shell_idle", "Close a shell session after this idle time; 0 means never."},
	{"bash_max_sessions", "Maximum number of concurrent bash sessions."},
	{"bash_idle", "Close a bash session after this idle time; 0 means never."},
	{"jupyter_max_sessions", "Maximum number of concurrent Jupyter kernels."},
	{"jupyter_idle", "Stop a kernel after this idle time; 0 means never."},
	{"jupyter_warm", "Number of spare kernels that run after the first use, so that new sessions start immediately."},
	{"nodejs_max_sessions", "Maximum number of concurrent Node.js sessions."},
	{"nodejs_idle", "Close a Node.js session after this idle time; 0 means never."},

	// Traces.
	{"otlp_endpoint", "URL of an OpenTelemetry collector (OTLP over HTTP) that receives a trace of every call."},
	{"otlp_headers", "HTTP headers for the collector, as name=value."},

	// Log.
	{"log_format", "Log format."},
	{"log_dir", "Directory of log files, one per service, in addition to standard error; empty means none."},
	{"log_level", "Minimum log level."},

	{"codex", "Environment variables for codex."},
	{"opencode", "Environment variables for opencode."},
}

// Docs implements Documented.
func (*Aio) Docs() [][2]string { return aioDocs }
