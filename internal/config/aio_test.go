package config

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func publicPEM(t *testing.T, key any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

func TestAioDefaults(t *testing.T) {
	t.Parallel()
	var a Aio
	if _, err := Load(&a, Source{Environ: []string{"HOME=/home/x"}, Prefix: "AIO_"}); err != nil {
		t.Fatal(err)
	}
	got := []any{a.Listen, a.DisplayWidth, a.DisplayHeight, a.TicketTTL.Seconds(), a.Home, a.Workspace, a.State,
		a.Venv, a.BrowserFileDialogs, a.Insecure}
	want := []any{"127.0.0.1:8080", 1280, 1024, 30.0, "/home/x", "/home/x", "/home/x/.local/state/aio",
		"/home/x/.local/state/aio/venv", true, false}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestSessionLogsAreNotInTheHome: a recursive search of the home does not find session logs.
func TestSessionLogsAreNotInTheHome(t *testing.T) {
	t.Parallel()
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"HOME=" + me.HomeDir}, "/var/tmp/aio-" + me.Uid},
		{[]string{"HOME=/home/x"}, "/home/x/.local/state/aio"}, // one of several homes
		{[]string{"HOME=" + me.HomeDir, "AIO_STATE=/s"}, "/s"},
		{[]string{"HOME=" + me.HomeDir, "AIO_STATE=/s", "AIO_SESSION_LOGS=/l"}, "/l"},
	} {
		var a Aio
		if _, err := Load(&a, Source{Environ: c.env, Prefix: "AIO_"}); err != nil || a.SessionLogs != c.want {
			t.Errorf("%v: got %s, %v, want %s", c.env, a.SessionLogs, err, c.want)
		}
	}
}

func TestAioRuntime(t *testing.T) {
	t.Parallel()
	there := t.TempDir()
	for _, c := range []struct {
		env  []string
		want string
	}{
		{[]string{"XDG_RUNTIME_DIR=" + there}, there + "/aio"},
		{[]string{"XDG_RUNTIME_DIR=" + there, "AIO_USER=0", "AIO_STATE=/s"}, "/s"}, // it belongs to another user
		{[]string{"XDG_RUNTIME_DIR=" + there + "/none"}, "/home/x/.local/state/aio"},
		{[]string{"XDG_RUNTIME_DIR=."}, "/home/x/.local/state/aio"},
		{nil, "/home/x/.local/state/aio"},
		{[]string{"XDG_RUNTIME_DIR=" + there, "AIO_RUNTIME=~/r"}, "/home/x/r"},
	} {
		var a Aio
		if _, err := Load(&a, Source{Environ: append([]string{"HOME=/home/x"}, c.env...), Prefix: "AIO_"}); err != nil || a.Runtime != c.want {
			t.Errorf("%v: got runtime %q and error %v, want %q", c.env, a.Runtime, err, c.want)
		}
	}
}

func TestLanguages(t *testing.T) {
	t.Parallel()
	for tag, want := range map[string]bool{
		"de": true, "en-US": true, "zh_Hant_TW": true, "es-419": true, "yue-HK": true, "sl-rozaj-biske": true,
		"": false, "e": false, "engl": false, "e1": false, "en-": false, "-US": false, "en--US": false, "en-U": false,
		"en-Überall": false, "en US": false, "en-abcdefghi": false, "@{": false,
	} {
		if got := isLanguage(tag); got != want {
			t.Errorf("%q: got %v, want %v", tag, got, want)
		}
	}
}

func TestAioDirectories(t *testing.T) {
	t.Parallel()
	var a Aio
	env := []string{"HOME=/home/x", "XDG_STATE_HOME=/state", "WORKSPACE=~/project/"}
	if _, err := Load(&a, Source{Environ: env, Prefix: "AIO_"}); err != nil {
		t.Fatal(err)
	}
	if a.State != "/state/aio" || a.Workspace != "/home/x/project" {
		t.Errorf("got state %s, workspace %s, want /state/aio, /home/x/project", a.State, a.Workspace)
	}
	root, err := user.LookupId("0")
	if err != nil {
		t.Skip("this machine has no user 0")
	}
	var b Aio
	if _, err := Load(&b, Source{Environ: append(env, "AIO_USER=0")}); err != nil {
		t.Fatal(err)
	}
	if b.Home != root.HomeDir || !strings.HasPrefix(b.State, root.HomeDir) {
		t.Errorf("got home %s, state %s, want those of the user, below %s", b.Home, b.State, root.HomeDir)
	}
	var c Aio
	if _, err := Load(&c, Source{Environ: append(env, "AIO_USER=987654321")}); err != nil {
		t.Fatal(err)
	}
	if c.Home != "/" {
		t.Errorf("home of a user without an entry: got %s, want /", c.Home)
	}
}

func TestAioAccepts(t *testing.T) {
	t.Parallel()
	good := b64(publicPEM(t, &rsaKey(t, 2048).PublicKey))
	for _, v := range []string{
		"AIO_LISTEN=0.0.0.0:80", "AIO_LISTEN=:8080", "AIO_LISTEN=[::1]:0", "AIO_LISTEN=localhost:1", "AIO_LISTEN=unix:/run/aio.sock",
		"TZ=UTC", "TZ=Asia/Shanghai", "TZ=:Europe/Berlin", "TZ=EST5EDT", "TZ=UTC0", "TZ=<+03>-3",
		"HOMEPAGE=https://example.com", "HOMEPAGE=about:blank", "HOMEPAGE=file:///tmp/x.html", "HOMEPAGE=data:text/html,hi",
		"BROWSER_LANG=zh-CN", "BROWSER_LANG=de-DE,de;q=0.9,en", "CHROME_UI_LANG=pt_BR", "BROWSER_USER_AGENT=Mozilla/5.0 (X11; Linux)",
		"BROWSER_EXTRA_ARGS=--disable-gpu --disable-features=A,B",
		"DNS_OVER_HTTPS_TEMPLATES=https://dns.example/dns-query{?dns} https://b.example/",
		"PROXY_SERVER=proxy:3128", "PROXY_SERVER=http://u:p@proxy:3128", "PROXY_SERVER=socks5://127.0.0.1:1080",
		"PROXY_EXCLUDE=localhost,*.internal",
		"WAIT_PORTS=3000,5000", "TICKET_TTL_SECONDS=60", "DISABLE_JUPYTER=1", "DISABLE_BROWSER=yes", "DISABLE_VNC=on", "DISABLE_MCP_BROWSER=true",
		"PUBLIC_PORT=9000", "PYTHON_VERSION=3.12.7", "PYTHON_VERSION=python3.11", "NODE_CODE_EXEC_VERSION=node22",
		"NODE_CODE_EXEC_VERSION=v20.1", "BROWSER_URL_BLOCKLIST=[\"a.example\",\"b.example\"]",
		"BROWSER_DOWNLOAD_DIR=~/in", "LOG_DIR=/var/log/gem",
		"JWT_PUBLIC_KEY=" + good, "AUTH_TOKEN=s3cret", "AIO_API_KEY=k", "AIO_PUBLIC_HOSTS=a.example,*.b.example,c.example:8080,192.0.2.1",
		"AIO_ALLOWED_ORIGINS=https://a.example,http://localhost:3000", "AIO_TRUSTED_PROXIES=10.0.0.0/8,192.0.2.1,fd00::/8",
		"CODEX_API_KEY=k", "OPENCODE_MODEL=m", "MAX_SHELL_SESSIONS=3", "RUN_HOOK_INIT=echo a\necho b",
	} {
		if _, err := Load(&Aio{}, Source{Environ: []string{"HOME=/h", v}, Prefix: "AIO_"}); err != nil {
			t.Errorf("%.60s: got %v, want no error", v, err)
		}
	}
}

func TestAioNamesRejectedVariables(t *testing.T) {
	t.Parallel()
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := rsaKey(t, 2048)
	private := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	tests := []struct{ variable, want string }{
		{"AIO_LISTEN=8080", "host:port"},
		{"AIO_LISTEN=127.0.0.1:99999", "0 to 65535"},
		{"AIO_LISTEN=127.0.0.1:http", "0 to 65535"},
		{"AIO_LISTEN=bad host:80", "host name"},
		{"AIO_LISTEN=unix:relative", "absolute path"},
		{"AIO_LISTEN=unix:/" + strings.Repeat("x", 120), "107"},
		{"AIO_LISTEN_FD=70000", "0 to 1023"},
		{"PUBLIC_PORT=70000", "0 to 65535"}, {"USER_UID=gem", "a whole number"}, {"PYTHON_VERSION=newest", "3.12"},
		{"NODE_CODE_EXEC_VERSION=lts", "node22"},
		{"DISABLE_VNC=maybe", "true or false"}, {"LOG_DIR=logs", "absolute path"}, {"BROWSER_DOWNLOAD_DIR=in", "absolute path"},
		{"AIO_DOOR=127.0.0.1:61080", "127.0.0.1:61080/word"}, {"AIO_DOOR=0.0.0.0:61080/word", "loopback"},
		{"AIO_DOOR=127.0.0.1:61080/word", "unix:/path"},
		{"DISPLAY_WIDTH=wide", "320 to 7680"},
		{"DISPLAY_HEIGHT=10", "240 to 4320"},
		{"TZ=Mars/Olympus", "Europe/Berlin"},
		{"TZ=/no/such/zone", "time zone file"},
		{"TZ=../../etc/passwd", "time zone"},
		{"HOMEPAGE=example.com", "not a URL"},
		{"HOMEPAGE=javascript:alert(1)", "not a URL"},
		{"BROWSER_LANG=english!", "en-US"},
		{"CHROME_UI_LANG=en-US,de", "en-US"},
		{"BROWSER_USER_AGENT=a\nX-Evil: 1", "control characters"},
		{"BROWSER_EXTRA_ARGS=disable-gpu", "start with --"},
		{"BROWSER_ALLOW_FILE_SELECTION_DIALOGS=perhaps", "true or false"},
		{"DNS_OVER_HTTPS_TEMPLATES=http://dns.example", "https://"},
		{"PROXY_SERVER=ftp://hunter2@x", "host:port"},
		{"PROXY_SERVER=http://:80", "host:port"},
		{"WAIT_PORTS=0", "1 to 65535"},
		{"TICKET_TTL_SECONDS=0", "from 1s to 1h"},
		{"DISABLE_JUPYTER=nope", "true or false"},
		{"JWT_PUBLIC_KEY=%%%", "not base64"},
		{"JWT_PUBLIC_KEY=" + b64("hello"), "no PEM"},
		{"JWT_PUBLIC_KEY=" + b64(private), "private key"},
		{"JWT_PUBLIC_KEY=" + b64(publicPEM(t, &ec.PublicKey)), "not an RSA key"},
		{"JWT_PUBLIC_KEY=" + b64(publicPEM(t, &rsaKey(t, 1024).PublicKey)), "1024 bits"},
		{"AUTH_TOKEN=hunter2 hunter2", "printable ASCII"},
		{"AIO_API_KEY=hünter2", "printable ASCII"},
		{"AIO_ALLOWED_ORIGINS=*", "not an origin"},
		{"AIO_ALLOWED_ORIGINS=https://a.example/path", "not an origin"},
		{"AIO_TRUSTED_PROXIES=10.0.0.0/33", "10.0.0.0/8"},
		{"AIO_PUBLIC_HOSTS=https://x", "host name"},
		{"AIO_USER=no-such-user-here", "/etc/passwd"},
		{"WORKSPACE=relative/path", "absolute path"},
		{"AIO_LOG_LEVEL=loud", "debug, info, warn, error"},
		{"AIO_BODY_LIMIT=1", "64KiB"},
		{"AIO_TOKEN=x", "unknown variable"},
	}
	for _, tt := range tests {
		name, value, _ := strings.Cut(tt.variable, "=")
		_, err := Load(&Aio{}, Source{Environ: []string{"HOME=/h", tt.variable}, Prefix: "AIO_"})
		if err == nil {
			t.Errorf("%s=%.20s: got no error, want one with %q", name, value, tt.want)
			continue
		}
		if text := err.Error(); !strings.Contains(text, name) || !strings.Contains(text, tt.want) ||
			strings.Contains(text, "hunter2") || strings.Contains(text, "hünter2") {
			t.Errorf("%.40s: got %v, want the variable, %q and no secret", tt.variable, err, tt.want)
		}
	}
	path := write(t, "codex: {OTHER: x}\n")
	if _, err := Load(&Aio{}, Source{File: path}); err == nil || !strings.Contains(err.Error(), "CODEX_") {
		t.Errorf("codex in the file: %v", err)
	}
}

func TestRSAPublicKeyForms(t *testing.T) {
	t.Parallel()
	key := rsaKey(t, 2048)
	text := publicPEM(t, &key.PublicKey)
	pkcs1 := string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&key.PublicKey)}))
	wrapped := regexp.MustCompile(`.{1,64}`).ReplaceAllString(b64(text), "$0\n")
	for name, s := range map[string]string{
		"base64": b64(text), "wrapped base64": wrapped, "without padding": strings.TrimRight(b64(text), "="),
		"URL alphabet": base64.URLEncoding.EncodeToString([]byte(text)), "plain PEM": text, "PKCS #1": b64(pkcs1),
	} {
		if got, err := RSAPublicKey(s); err != nil || !got.Equal(&key.PublicKey) {
			t.Errorf("%s: got error %v, want the key", name, err)
		}
	}
}

func TestAioNeverPrintsSecrets(t *testing.T) {
	t.Parallel()
	a := Aio{AuthToken: "hunter2", APIKey: "hunter2", JWTPublicKey: "hunter2", ProxyServer: "http://u:hunter2@p",
		Codex: map[string]string{"CODEX_KEY": "hunter2"}}
	var log bytes.Buffer
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "config", a, "pointer", &a)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "config", a, "pointer", &a)
	encoded, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprintf("%v %+v %#v %s %v %#v", a, a, a, a, &a, &a) + log.String() + string(encoded)
	if strings.Contains(all, "hunter2") {
		t.Error("got a secret in the output, want none")
	}
	if !strings.Contains(all, "•••") {
		t.Errorf("got %q, want hidden secrets", all)
	}
}

// Each variable of the public contract must have a setting.
func TestAioKnowsTheContractsVariables(t *testing.T) {
	t.Parallel()
	var known []string
	for _, f := range Fields(&Aio{}) {
		known = append(known, f.Env...)
	}
	for _, name := range strings.Fields(`WORKSPACE HOMEPAGE BROWSER_LANG CHROME_UI_LANG BROWSER_USER_AGENT BROWSER_EXTRA_ARGS
		BROWSER_ALLOW_FILE_SELECTION_DIALOGS DISPLAY_WIDTH DISPLAY_HEIGHT TZ PROXY_SERVER PROXY_EXCLUDE PROXY_INCLUDE
		DNS_OVER_HTTPS_TEMPLATES JWT_PUBLIC_KEY AUTH_TOKEN TICKET_TTL_SECONDS WAIT_PORTS DISABLE_JUPYTER DISABLE_BROWSER
		DISABLE_MCP_BROWSER DISABLE_VNC PUBLIC_PORT
		RUN_HOOK_INIT RUN_HOOK_PRE_SERVICES RUN_HOOK_POST_READY CODEX_X OPENCODE_X AIO_API_KEY USER_UID USER_GID BROWSER_URL_BLOCKLIST
		BROWSER_URL_ALLOWLIST BROWSER_INIT_COOKIES BROWSER_DOWNLOAD_DIR PROXY_MAP SANDBOX_API_KEY RUN_HOOKS_STRICT SANDBOX_SHUTDOWN_HOOKS
		SANDBOX_SHUTDOWN_HOOKS_TIMEOUT AIO_SKILLS_PATH EXTRA_MCP_SERVERS MAX_SHELL_SESSIONS PYTHON_VERSION NODE_CODE_EXEC_VERSION LOG_DIR`) {
		if !matches(known, name) {
			t.Errorf("%s has no setting", name)
		}
	}
	left := Scrub([]string{"AUTH_TOKEN=a", "JWT_PUBLIC_KEY=b", "AIO_API_KEY=c", "PROXY_SERVER=d", "PATH=/bin", "CODEX_X=e"}, &Aio{})
	if d := cmp.Diff([]string{"PATH=/bin", "CODEX_X=e"}, left); d != "" {
		t.Error(d)
	}
}

func TestSystemReadsTheProcess(t *testing.T) {
	path := write(t, "log_level: warn\n")
	t.Setenv("AIO_CONFIG", path)
	t.Setenv("AIO_LOG_FORMAT", "json")
	src := System("aio", map[string][]string{"config": {path}})
	if src.File != path || src.Prefix != "AIO_" || len(src.Environ) != len(os.Environ()) {
		t.Errorf("got file %s, prefix %s and %d variables, want %s, AIO_ and %d", src.File, src.Prefix, len(src.Environ), path, len(os.Environ()))
	}
	var a Aio
	if _, err := Load(&a, src); err != nil {
		t.Fatal(err)
	}
	if a.LogLevel != "warn" || a.LogFormat != "json" {
		t.Errorf("got level %s, format %s, want warn, json", a.LogLevel, a.LogFormat)
	}
}

// TestPublicPort: the port of the public image applies only to the default address.
func TestPublicPort(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"PUBLIC_PORT=9000", "127.0.0.1:9000"}, {"PUBLIC_PORT=9000 AIO_LISTEN=0.0.0.0:80", "0.0.0.0:80"},
		{"PUBLIC_PORT=9000 COVE_LISTEN=unix:/run/aio.sock", "unix:/run/aio.sock"}, {"PUBLIC_PORT=", "127.0.0.1:8080"},
	} {
		var a Aio
		if _, err := Load(&a, Source{Environ: append(strings.Fields(c.env), "HOME=/h")}); err != nil || a.Listen != c.want {
			t.Errorf("%s: got %s, %v, want %s", c.env, a.Listen, err, c.want)
		}
	}
}

func TestListsAsJSON(t *testing.T) {
	var a Aio
	_, err := Load(&a, Source{Environ: []string{"HOME=/h", `BROWSER_URL_BLOCKLIST=["a.example/x,y", "b.example"]`,
		"BROWSER_URL_ALLOWLIST=c.example,d.example", "AIO_PUBLIC_HOSTS=[::1]:80,x.example"}})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"a.example/x,y", "b.example"}, {"c.example", "d.example"}, {"[::1]:80", "x.example"}}
	if d := cmp.Diff(want, [][]string{a.BrowserBlocklist, a.BrowserAllowlist, a.PublicHosts}); d != "" {
		t.Errorf("lists (-want +got):\n%s", d)
	}
}
