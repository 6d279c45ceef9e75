package config

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // to validate time zones in an image without a time zone database
)

// Complete implements Completer.
func (a *Aio) Complete(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	a.Listen = strings.TrimPrefix(a.Listen, "tcp:") // hubs pass this form
	a.resolvePublicNames()
	a.resolveDirectories(lookup, fault)
	checkServer(a.Listen, a.PublicHosts, a.AllowedOrigins, a.TrustedProxies, fault)
	if at, err := netip.ParseAddrPort(a.Loopback); a.Loopback != "" && (err != nil || !at.Addr().IsLoopback()) {
		fault("loopback", "is not a loopback address with a port; use one such as 127.0.0.1:8080")
	}
	if err := checkDoor(a.Door, a.Listen); err != nil {
		fault("door", "%v", err)
	}
	a.checkCredentials(fault)
	a.checkBrowser(fault)
	a.checkProxy(fault)
	a.checkVersions(fault)
	if err := checkZone(a.TZ); err != nil {
		fault("tz", "%s %v", quote(a.TZ), err)
	}
	checkNames("codex", "CODEX_", a.Codex, fault)
	checkNames("opencode", "OPENCODE_", a.OpenCode, fault)
}

// defaultListen is the default address, as in the tag of the setting.
const defaultListen = "127.0.0.1:8080"

// resolvePublicNames applies the settings that only the public image has: the port and the
// numeric IDs of the user.
func (a *Aio) resolvePublicNames() {
	if a.PublicPort != 0 && a.Listen == defaultListen {
		a.Listen = net.JoinHostPort("127.0.0.1", strconv.Itoa(a.PublicPort))
	}
	if a.User == "" && a.UserUID != 0 && os.Geteuid() == 0 { // only root can become another user
		a.User = strconv.Itoa(a.UserUID)
	}
}

var runtimeVersion = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?i:python|nodejs|node|v)?-?v?\d+(\.\d+){0,2}[a-z0-9]*$`)
})

func (a *Aio) checkVersions(fault func(key, format string, args ...any)) {
	if v := a.PythonVersion; v != "" && !runtimeVersion().MatchString(v) {
		fault("python_version", "%s is not a version such as 3.12", quote(v))
	}
	if v := a.NodeVersion; v != "" && v != "default" && v != "latest" && !runtimeVersion().MatchString(v) {
		fault("node_version", "%s is not a version such as node22 or 22.11", quote(v))
	}
}

// checkNames validates the names of collected variables, because a file can contain any name.
func checkNames(key, prefix string, m map[string]string, fault func(key, format string, args ...any)) {
	for _, name := range sortedKeys(m) {
		if !strings.HasPrefix(name, prefix) {
			fault(key, "%s is not the name of a variable that starts with %s", quote(name), prefix)
		}
	}
}

// resolveDirectories sets the directories that are not configured and makes all of them
// absolute. With --user, they are relative to that user's home.
func (a *Aio) resolveDirectories(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	home, _ := lookup("HOME")
	stateHome, _ := lookup("XDG_STATE_HOME")
	runtimeDir, _ := lookup("XDG_RUNTIME_DIR")
	uid := strconv.Itoa(os.Getuid())
	if a.User != "" {
		stateHome, runtimeDir = "", ""
		u, err := findUser(a.User)
		if err != nil {
			fault("user", "%s is not a user of this machine; use a name from /etc/passwd or a numeric ID", quote(a.User))
		} else {
			home, uid = u.HomeDir, u.Uid
		}
	}
	if home == "" {
		home = "/"
		if u, err := user.LookupId(strconv.Itoa(os.Getuid())); err == nil && u.HomeDir != "" {
			home = u.HomeDir
		}
	}
	if a.Home == "" {
		a.Home = home
	}
	a.Home = expand(a.Home, home)
	if a.Workspace == "" {
		a.Workspace = a.Home
	}
	logs := a.State
	if a.State == "" {
		if filepath.IsAbs(stateHome) {
			a.State = filepath.Join(stateHome, "aio")
		} else {
			a.State = filepath.Join(a.Home, ".local/state/aio")
		}
		logs = a.State
		// Servers with separate homes have separate logs.
		if u, err := user.LookupId(uid); err == nil && a.Home == u.HomeDir && (!a.Contained || sameDevice(a.Home, logsParent)) {
			logs = filepath.Join(logsParent, "aio-"+uid)
		}
	}
	if a.SessionLogs == "" {
		a.SessionLogs = logs
	}
	if a.Runtime == "" {
		a.Runtime = a.State
		if info, err := os.Stat(runtimeDir); err == nil && info.IsDir() && filepath.IsAbs(runtimeDir) {
			a.Runtime = filepath.Join(runtimeDir, "aio")
		}
	}
	if a.Venv == "" {
		a.Venv = filepath.Join(a.State, "venv")
	}
	if a.Components == "" {
		a.Components = filepath.Join(a.State, "components")
	}
	for _, p := range []struct {
		key  string
		path *string
	}{{"browser_download_dir", &a.BrowserDownloads}, {"log_dir", &a.LogDir}, {"installing", &a.Installing}} {
		if *p.path = expand(*p.path, a.Home); *p.path != "" && !filepath.IsAbs(*p.path) {
			fault(p.key, "%s is not an absolute path (it must start with / or ~/)", quote(*p.path))
		}
	}
	for _, p := range []struct {
		key  string
		path *string
	}{{"home", &a.Home}, {"workspace", &a.Workspace}, {"state", &a.State}, {"session_logs", &a.SessionLogs},
		{"runtime", &a.Runtime}, {"venv", &a.Venv}, {"components", &a.Components}} {
		*p.path = expand(*p.path, a.Home)
		if !filepath.IsAbs(*p.path) {
			fault(p.key, "%s is not an absolute path (it must start with / or ~/)", quote(*p.path))
		}
	}
}

// logsParent contains the logs of sessions. It survives a restart of the machine, and users do
// not search it for their files.
const logsParent = "/var/tmp"

// expand replaces a leading ~ and cleans an absolute path.
func expand(path, home string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = home + path[1:]
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return path
}

// findUser looks up a name or ID. It accepts an ID without an entry, because containers often
// run with one.
func findUser(name string) (*user.User, error) {
	if u, err := user.Lookup(name); err == nil {
		return u, nil
	}
	if _, err := strconv.ParseUint(name, 10, 31); err != nil {
		return nil, err
	}
	if u, err := user.LookupId(name); err == nil {
		return u, nil
	}
	return &user.User{Uid: name, Gid: name, Username: name, HomeDir: "/"}, nil
}

func checkServer(listen string, hosts, origins, proxies []string, fault func(key, format string, args ...any)) {
	if err := checkListen(listen); err != nil {
		fault("listen", "%s %v", quote(listen), err)
	}
	for _, h := range hosts {
		name := strings.TrimPrefix(h, "*.")
		if host, port, err := net.SplitHostPort(name); err == nil && isPort(port, 1) {
			name = host
		}
		if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err != nil && !hostName().MatchString(name) {
			fault("public_hosts", "%s is not a host name such as sandbox.example.com or *.example.com", quote(h))
		}
	}
	for _, o := range origins {
		u, err := url.Parse(o)
		if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" ||
			u.Fragment != "" || strings.Contains(o, "*") {
			fault("allowed_origins", "%s is not an origin such as https://app.example.com or "+
				"http://localhost:3000; wildcards are not supported", quote(o))
		}
	}
	if _, err := Prefixes(proxies); err != nil {
		fault("trusted_proxies", "%v", err)
	}
}

var hostName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?i:[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?)(\.(?i:[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?))*\.?$`)
})

func checkListen(listen string) error {
	if path, ok := strings.CutPrefix(listen, "unix:"); ok {
		// The kernel limits a socket's path to 107 bytes.
		if !filepath.IsAbs(path) || len(path) > 107 {
			return errors.New("is not a socket address; unix: must be followed by an absolute path of at most 107 bytes")
		}
		return nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || !isPort(port, 0) {
		return errors.New("is not an address; use host:port with a port from 0 to 65535 (such as 127.0.0.1:8080), or unix:/path")
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil && !hostName().MatchString(host) {
		return errors.New("is not an address; the part before the port must be an IP address or a host name")
	}
	return nil
}

// checkDoor validates the address that replaces a Unix socket.
func checkDoor(door, listen string) error {
	if door == "" {
		return nil
	}
	address, word, _ := strings.Cut(door, "/")
	if at, err := netip.ParseAddrPort(address); err != nil || !at.Addr().IsLoopback() || word == "" {
		return errors.New("is not a loopback address and a word; use one such as 127.0.0.1:61080/word")
	}
	if !strings.HasPrefix(listen, "unix:") {
		return errors.New("replaces a Unix socket; set listen to unix:/path")
	}
	return nil
}

func isPort(s string, low uint64) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n >= low
}

// Prefixes parses networks. A single address is a network with one address.
func Prefixes(list []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		if addr, err := netip.ParseAddr(s); err == nil {
			out = append(out, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%s is not an address or network such as 10.0.0.0/8 or 192.0.2.7", quote(s))
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func (a *Aio) checkCredentials(fault func(key, format string, args ...any)) {
	if a.JWTPublicKey != "" {
		if _, err := RSAPublicKey(a.JWTPublicKey); err != nil {
			fault("jwt_public_key", "%v", err)
		}
	}
	// Other characters cannot be sent in a header.
	for _, s := range []struct{ key, value string }{
		{"auth_token", a.AuthToken}, {"api_key", a.APIKey}, {"sandbox_api_key", a.SandboxAPIKey},
	} {
		if strings.ContainsFunc(s.value, func(c rune) bool { return c <= ' ' || c > '~' }) {
			fault(s.key, "must consist of printable ASCII characters without spaces, because it is sent in a header")
		}
	}
}

// RSAPublicKey parses a public key of at least 2048 bits from the base64 form of its PEM,
// or from the PEM itself. Its errors do not quote the text.
func RSAPublicKey(text string) (*rsa.PublicKey, error) {
	const want = "use the base64 form of an RSA public key in PEM (-----BEGIN PUBLIC KEY-----)"
	data := []byte(strings.TrimSpace(text))
	if !strings.HasPrefix(string(data), "-----BEGIN") {
		var err error
		compact := strings.TrimRight(strings.Join(strings.Fields(text), ""), "=")
		if data, err = base64.RawStdEncoding.DecodeString(compact); err != nil {
			if data, err = base64.RawURLEncoding.DecodeString(compact); err != nil {
				return nil, errors.New("is not base64; " + want)
			}
		}
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("has no PEM block; " + want)
	}
	if strings.Contains(block.Type, "PRIVATE") {
		return nil, errors.New("is a private key, which must stay with the issuer of the tokens; " + want)
	}
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return nil, errors.New("is not a public key; " + want)
	}
	if err != nil {
		return nil, errors.New("is an invalid public key; " + want)
	}
	public, ok := key.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("is not an RSA key; " + want)
	}
	if bits := public.N.BitLen(); bits < 2048 {
		return nil, fmt.Errorf("is an RSA key of %d bits; at least 2048 are required", bits)
	}
	return public, nil
}

// isLanguage reports whether tag is a language tag: two or three letters, then subtags of
// two to eight letters or digits, such as de, en-US or zh_Hant_TW.
func isLanguage(tag string) bool {
	letter := func(c rune) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }
	for i, part := range strings.Split(strings.ReplaceAll(tag, "_", "-"), "-") {
		longest, allowed := 8, func(c rune) bool { return letter(c) || '0' <= c && c <= '9' }
		if i == 0 {
			longest, allowed = 3, letter
		}
		if len(part) < 2 || len(part) > longest || strings.ContainsFunc(part, func(c rune) bool { return !allowed(c) }) {
			return false
		}
	}
	return true
}

func (a *Aio) checkBrowser(fault func(key, format string, args ...any)) {
	if a.Homepage != "" && !isURL(a.Homepage, "http", "https", "file", "about", "data", "chrome") {
		fault("homepage", "%s is not a URL such as https://example.com or about:blank", quote(a.Homepage))
	}
	for _, tag := range strings.Split(a.BrowserLang, ",") {
		tag, _, _ = strings.Cut(strings.TrimSpace(tag), ";")
		if !isLanguage(tag) {
			fault("browser_lang", "%s is not a language such as en-US, or a list such as de-DE,de,en", quote(a.BrowserLang))
			break
		}
	}
	if a.ChromeUILang != "" && !isLanguage(a.ChromeUILang) {
		fault("chrome_ui_lang", "%s is not a language such as en-US", quote(a.ChromeUILang))
	}
	if strings.ContainsFunc(a.BrowserUserAgent, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		fault("browser_user_agent", "must not contain control characters")
	}
	for _, arg := range a.BrowserExtraArgs {
		if !strings.HasPrefix(arg, "--") || len(arg) == 2 {
			fault("browser_extra_args", "%s is not a switch; each must start with -- (quote those with spaces)", quote(arg))
		}
	}
	for _, t := range a.DNSOverHTTPS {
		if u, _, _ := strings.Cut(t, "{"); !isURL(u, "https") {
			fault("dns_over_https_templates", "%s is not an https:// URL such as https://dns.example/dns-query{?dns}", quote(t))
		}
	}
}

func (a *Aio) checkProxy(fault func(key, format string, args ...any)) {
	if a.ProxyServer != "" {
		full := a.ProxyServer
		if !strings.Contains(full, "://") {
			full = "http://" + full
		}
		u, err := url.Parse(full)
		if err != nil || !slices.Contains([]string{"http", "https", "socks5", "socks5h"}, u.Scheme) || u.Hostname() == "" ||
			u.Port() != "" && !isPort(u.Port(), 1) || strings.Trim(u.Path, "/") != "" {
			fault("proxy_server", "is not a proxy address; use host:port, http://host:port, https://host:port or socks5://host:port")
		}
	}
}

var posixZone = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)[+-]?\d{1,2}(:\d{2}){0,2}`)
})

// checkZone accepts what the C library accepts: a name, a file, or a POSIX rule.
func checkZone(tz string) error {
	name := strings.TrimPrefix(tz, ":")
	if name == "" || posixZone().MatchString(name) {
		return nil
	}
	if filepath.IsAbs(name) {
		if _, err := os.Stat(name); err != nil {
			return errors.New("is not a readable time zone file")
		}
		return nil
	}
	if _, err := time.LoadLocation(name); err != nil {
		return errors.New("is not a time zone; use a name such as UTC, Europe/Berlin or Asia/Shanghai")
	}
	return nil
}
