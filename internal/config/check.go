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
	_ "time/tzdata" // time zones can be judged in an image that has none
)

// Complete fills what depends on the machine and checks what tags cannot say.
func (a *Aio) Complete(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	a.Listen = strings.TrimPrefix(a.Listen, "tcp:") // as a hub tells it
	a.places(lookup, fault)
	checkServer(a.Listen, a.PublicHosts, a.AllowedOrigins, a.TrustedProxies, fault)
	a.checkSignIn(fault)
	a.checkBrowser(fault)
	a.checkProxy(fault)
	if err := checkZone(a.TZ); err != nil {
		fault("tz", "%s %v", quote(a.TZ), err)
	}
	checkNames("codex", "CODEX_", a.Codex, fault)
	checkNames("opencode", "OPENCODE_", a.OpenCode, fault)
}

// checkNames matters for the file, where any name could be written.
func checkNames(key, prefix string, m map[string]string, fault func(key, format string, args ...any)) {
	for _, name := range sortedKeys(m) {
		if !strings.HasPrefix(name, prefix) {
			fault(key, "%s is not the name of a variable that begins with %s", quote(name), prefix)
		}
	}
}

// places derives the folders. The user's own home counts, not that of whoever
// started the server with --user.
func (a *Aio) places(lookup func(string) (string, bool), fault func(key, format string, args ...any)) {
	home, _ := lookup("HOME")
	stateHome, _ := lookup("XDG_STATE_HOME")
	runtimeDir, _ := lookup("XDG_RUNTIME_DIR")
	if a.User != "" {
		stateHome, runtimeDir = "", ""
		u, err := findUser(a.User)
		if err != nil {
			fault("user", "%s is not a user of this machine; name one from /etc/passwd or give a number", quote(a.User))
		} else {
			home = u.HomeDir
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
	if a.State == "" {
		if filepath.IsAbs(stateHome) {
			a.State = filepath.Join(stateHome, "aio")
		} else {
			a.State = filepath.Join(a.Home, ".local/state/aio")
		}
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
	for _, p := range []struct {
		key  string
		path *string
	}{{"home", &a.Home}, {"workspace", &a.Workspace}, {"state", &a.State}, {"runtime", &a.Runtime}, {"venv", &a.Venv}} {
		*p.path = expand(*p.path, a.Home)
		if !filepath.IsAbs(*p.path) {
			fault(p.key, "%s is not an absolute path (it must begin with / or ~/)", quote(*p.path))
		}
	}
	for i := range a.SkillsPath {
		a.SkillsPath[i] = expand(a.SkillsPath[i], a.Home)
		if !filepath.IsAbs(a.SkillsPath[i]) {
			fault("skills_path", "%s is not an absolute path (it must begin with / or ~/)", quote(a.SkillsPath[i]))
		}
	}
}

func expand(path, home string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = home + path[1:]
	}
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return path
}

// findUser accepts a number without an entry, as containers run under those.
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
		if err != nil || u.Scheme == "" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || strings.Contains(o, "*") {
			fault("allowed_origins", "%s is not an origin; name each one in full, such as https://app.example.com or http://localhost:3000", quote(o))
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
		// The kernel's limit for a socket's path.
		if !filepath.IsAbs(path) || len(path) > 107 {
			return errors.New("is not a socket address: unix: must be followed by an absolute path of at most 107 bytes")
		}
		return nil
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil || !isPort(port, 0) {
		return errors.New("is not an address: give host:port with a port from 0 to 65535 (such as 127.0.0.1:8080), or unix:/path")
	}
	if _, err := netip.ParseAddr(host); host != "" && err != nil && !hostName().MatchString(host) {
		return errors.New("is not an address: the part before the port must be an IP address or a host name")
	}
	return nil
}

func isPort(s string, low uint64) bool {
	n, err := strconv.ParseUint(s, 10, 16)
	return err == nil && n >= low
}

// Prefixes reads networks; a single address stands for itself.
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

func (a *Aio) checkSignIn(fault func(key, format string, args ...any)) {
	if a.JWTPublicKey != "" {
		if _, err := RSAPublicKey(a.JWTPublicKey); err != nil {
			fault("jwt_public_key", "%v", err)
		}
	}
	// Anything else could be configured but never be sent.
	for _, s := range []struct{ key, value string }{{"auth_token", a.AuthToken}, {"api_key", a.APIKey}} {
		if strings.ContainsFunc(s.value, func(c rune) bool { return c <= ' ' || c > '~' }) {
			fault(s.key, "must consist of printable ASCII characters without spaces, since it travels in a header")
		}
	}
}

// RSAPublicKey reads a public key of at least 2048 bits from base64 of its PEM, or from
// the PEM itself. Its errors quote nothing of the text.
func RSAPublicKey(text string) (*rsa.PublicKey, error) {
	const want = "give the base64 form of an RSA public key in PEM (-----BEGIN PUBLIC KEY-----)"
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
		return nil, errors.New("holds no PEM block; " + want)
	}
	if strings.Contains(block.Type, "PRIVATE") {
		return nil, errors.New("holds a private key, which must stay with the issuer of tokens; " + want)
	}
	var key any
	var err error
	switch block.Type {
	case "PUBLIC KEY":
		key, err = x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		key, err = x509.ParsePKCS1PublicKey(block.Bytes)
	default:
		return nil, errors.New("holds a PEM block that is no public key; " + want)
	}
	if err != nil {
		return nil, errors.New("holds a public key that cannot be read; " + want)
	}
	public, ok := key.(*rsa.PublicKey)
	if !ok {
		return nil, errors.New("holds a key that is not RSA; " + want)
	}
	if bits := public.N.BitLen(); bits < 2048 {
		return nil, fmt.Errorf("holds an RSA key of %d bits; at least 2048 are needed", bits)
	}
	return public, nil
}

// isLanguage: two or three letters, then parts of two to eight letters or digits,
// such as de, en-US or zh_Hant_TW.
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
		fault("homepage", "%s is not a full address such as https://example.com or about:blank", quote(a.Homepage))
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
		fault("browser_user_agent", "must be one line without control characters")
	}
	for _, arg := range a.BrowserExtraArgs {
		if !strings.HasPrefix(arg, "--") || len(arg) == 2 {
			fault("browser_extra_args", "%s is not a switch; each must begin with -- (quote one that holds spaces)", quote(arg))
		}
	}
	for _, t := range a.DNSOverHTTPS {
		if u, _, _ := strings.Cut(t, "{"); !isURL(u, "https") {
			fault("dns_over_https_templates", "%s is not an https:// address such as https://dns.example/dns-query{?dns}", quote(t))
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
			fault("proxy_server", "is not a proxy's address: give host:port, http://host:port, https://host:port or socks5://host:port")
		}
	}
	for _, source := range sortedKeys(a.ProxyMap) {
		target := a.ProxyMap[source]
		_, port, err := net.SplitHostPort(target)
		if !isPort(target, 1) && (err != nil || !isPort(port, 1)) && !isURL(target, "http", "https") {
			fault("proxy_map", "%s: %s is not a port from 1 to 65535, host:port or http:// address", quote(source), quote(target))
		}
	}
}

var posixZone = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([A-Za-z]{3,}|<[A-Za-z0-9+-]{3,}>)[+-]?\d{1,2}(:\d{2}){0,2}`)
})

// checkZone accepts what the C library does: a name, a file, or a POSIX rule.
func checkZone(tz string) error {
	name := strings.TrimPrefix(tz, ":")
	if name == "" || posixZone().MatchString(name) {
		return nil
	}
	if filepath.IsAbs(name) {
		if _, err := os.Stat(name); err != nil {
			return errors.New("is not a time zone file that can be read")
		}
		return nil
	}
	if _, err := time.LoadLocation(name); err != nil {
		return errors.New("is not a time zone; give a name such as UTC, Europe/Berlin or Asia/Shanghai")
	}
	return nil
}
