package browser

import (
	"encoding/base64"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// disabledFeatures contact the vendor's servers, or get between the agent and the page.
var disabledFeatures = []string{
	"Translate", "MediaRouter", "OptimizationHints", "DialMediaRouteProvider", "InterestFeedContentSuggestions",
	// These drop input to a page that has not been drawn yet.
	"PaintHolding", "DropInputEventsBeforeFirstPaint", "DropInputEventsWhilePaintHolding",
	// It lets chrome://inspect open a DevTools port.
	"DevToolsAcceptDebuggingConnections",
}

// smallMemory is too little /dev/shm for pages with video or large canvases.
const smallMemory = 256 << 20

// reserved switches are set here; other values would break the service.
var reserved = []string{
	"--remote-debugging-port", "--remote-debugging-pipe", "--remote-debugging-address", "--remote-debugging-targets",
	"--user-data-dir", "--profile-directory", "--headless",
}

// switches returns the command line arguments of a start.
func (s *Service) switches(set settings, tabs bool) []string {
	args := []string{
		"--user-data-dir=" + s.dir("profile"),
		// Every local user and every page could reach a port.
		"--remote-debugging-pipe",
		"--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-sync", "--disable-component-update",
		"--disable-default-apps", "--disable-breakpad", "--disable-gpu", "--password-store=basic", "--use-mock-keychain",
		"--noerrdialogs", "--disable-hang-monitor", "--hide-crash-restore-bubble", "--disable-search-engine-choice-screen",
		// A client or a person that closes the last window must not end the browser for the others.
		"--keep-alive-for-test",
		"--start-maximized", "--ozone-platform=x11",
		// A page that comes back as it was left would have lost what was attached to it.
		"--disable-back-forward-cache",
		"--allow-pre-commit-input",
		// Pages behind other windows must run as those in front do.
		"--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows", "--disable-renderer-backgrounding",
		"--lang=" + s.menuLanguage(set), "--accept-lang=" + s.languages(set),
	}
	if s.sandboxOffReason() != "" {
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
	args = append(args, s.extraArgs()...)
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
func (s *Service) extraArgs() []string {
	off := slices.Clone(disabledFeatures)
	var args []string
	for _, arg := range s.cfg.ExtraArgs {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "--disable-features":
			off = append(off, strings.Split(value, ",")...)
		case slices.Contains(reserved, name) || !strings.HasPrefix(name, "--"):
			s.cfg.Log.Warn("reserved browser switch ignored", "switch", name)
		default:
			args = append(args, arg)
		}
	}
	return append(args, "--disable-features="+strings.Join(off, ","))
}

// languages are the preferred languages of pages.
func (s *Service) languages(set settings) string {
	if set.Locale != "" {
		return set.Locale
	}
	return s.cfg.Lang
}

// menuLanguage is the language of the browser itself.
func (s *Service) menuLanguage(set settings) string {
	if set.Locale == "" && s.cfg.UILang != "" {
		return s.cfg.UILang
	}
	first, _, _ := strings.Cut(s.languages(set), ",")
	return strings.TrimSpace(first)
}

// environ is the browser's environment. Menus follow LANGUAGE, not the switch.
func (s *Service) environ(set settings) []string {
	locale := strings.ReplaceAll(s.menuLanguage(set), "-", "_")
	language, _, _ := strings.Cut(locale, "_")
	return append(s.cfg.Runner.Environ(), "LANGUAGE="+locale+":"+language)
}
