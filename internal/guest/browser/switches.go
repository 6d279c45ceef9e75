package browser

import (
	"encoding/base64"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// disabledFeatures contact servers of the vendor or interfere with automation.
var disabledFeatures = []string{
	"Translate", "MediaRouter", "OptimizationHints", "DialMediaRouteProvider", "InterestFeedContentSuggestions",
	// These drop input to a page that has not been drawn yet.
	"PaintHolding", "DropInputEventsBeforeFirstPaint", "DropInputEventsWhilePaintHolding",
	// It lets chrome://inspect open a DevTools port.
	"DevToolsAcceptDebuggingConnections",
}

// smallMemory is the size of /dev/shm below which pages with video or large canvases fail.
const smallMemory = 256 << 20

// reserved switches are set by this package; other values would break the service.
var reserved = []string{
	"--remote-debugging-port", "--remote-debugging-pipe", "--remote-debugging-address", "--remote-debugging-targets",
	"--user-data-dir", "--profile-directory", "--headless",
}

// switches returns the command line arguments of a start. tabs restores the tabs of the previous browser; sandbox keeps
// Chromium's own sandbox on.
func (s setup) switches(tabs, sandbox bool) []string {
	args := []string{
		"--user-data-dir=" + s.cfg.dir("profile"),
		// Every local user and every page could reach a port.
		"--remote-debugging-pipe",
		"--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-sync", "--disable-component-update",
		"--disable-default-apps", "--disable-breakpad", "--disable-gpu", "--password-store=basic", "--use-mock-keychain",
		"--noerrdialogs", "--disable-hang-monitor", "--hide-crash-restore-bubble", "--disable-search-engine-choice-screen",
		// Closing the last window must not end the browser.
		"--keep-alive-for-test",
		"--start-maximized", "--ozone-platform=x11",
		// A page restored from the cache would have lost its DevTools sessions.
		"--disable-back-forward-cache",
		"--allow-pre-commit-input",
		// Pages in the background must run like those in front.
		"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
		"--lang=" + s.menuLanguage(), "--accept-lang=" + s.languages(),
	}
	if !sandbox {
		// The second switch hides a warning about the first, which would take space from the page.
		args = append(args, "--no-sandbox", "--test-type")
	}
	if s.cfg.UserAgent != "" {
		args = append(args, "--user-agent="+s.cfg.UserAgent)
	}
	if pac := s.cfg.Proxy.script(); pac != "" {
		args = append(args, "--proxy-pac-url=data:application/x-ns-proxy-autoconfig;base64,"+base64.StdEncoding.EncodeToString([]byte(pac)))
	}
	if s.cfg.Trust != nil && s.cfg.Proxy.script() != "" {
		args = append(args, s.cfg.Trust()...)
	}
	if memory := new(unix.Statfs_t); unix.Statfs("/dev/shm", memory) != nil || int64(memory.Blocks)*memory.Bsize < smallMemory {
		args = append(args, "--disable-dev-shm-usage")
	}
	args = append(args, s.cfg.extraArgs()...)
	switch {
	case tabs:
		return append(args, "--restore-last-session")
	case s.cfg.Homepage != "":
		return append(args, s.cfg.Homepage)
	}
	return append(args, "about:blank")
}

// extraArgs returns the configured switches without reserved ones. It merges lists of disabled features, because Chromium
// applies only the last.
func (c *Config) extraArgs() []string {
	off := slices.Clone(disabledFeatures)
	var args []string
	for _, arg := range c.ExtraArgs {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "--disable-features":
			off = append(off, strings.Split(value, ",")...)
		case slices.Contains(reserved, name) || !strings.HasPrefix(name, "--"):
			c.Log.Warn("reserved browser switch ignored", "switch", name)
		default:
			args = append(args, arg)
		}
	}
	return append(args, "--disable-features="+strings.Join(off, ","))
}

// languages are the preferred languages of pages.
func (s setup) languages() string {
	if s.Locale != "" {
		return s.Locale
	}
	return s.cfg.Lang
}

// menuLanguage is the language of the browser itself.
func (s setup) menuLanguage() string {
	if s.Locale == "" && s.cfg.UILang != "" {
		return s.cfg.UILang
	}
	first, _, _ := strings.Cut(s.languages(), ",")
	return strings.TrimSpace(first)
}

// environ is the environment of the browser. The language of menus follows LANGUAGE instead of the switch.
func (s setup) environ() []string {
	locale := strings.ReplaceAll(s.menuLanguage(), "-", "_")
	language, _, _ := strings.Cut(locale, "_")
	return append(s.cfg.Runner.Environ(), "LANGUAGE="+locale+":"+language)
}
