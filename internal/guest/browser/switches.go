package browser

import (
	"encoding/base64"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// quiet are features that talk to servers of the maker, or come between the agent and the page.
var quiet = []string{"Translate", "MediaRouter", "OptimizationHints", "DialMediaRouteProvider", "InterestFeedContentSuggestions"}

// smallMemory is below what pages with video or large canvases need of /dev/shm.
const smallMemory = 256 << 20

// owned are the switches that make the browser ours; a caller's would break it.
var owned = []string{"--remote-debugging-port", "--remote-debugging-pipe", "--remote-debugging-address", "--user-data-dir", "--profile-directory", "--headless"}

// switches is the command line of a start.
func (s *Service) switches(set settings, tabs bool) []string {
	args := []string{
		"--user-data-dir=" + s.dir("profile"),
		"--remote-debugging-address=127.0.0.1", "--remote-debugging-port=0",
		"--no-first-run", "--no-default-browser-check", "--disable-background-networking", "--disable-sync", "--disable-component-update",
		"--disable-default-apps", "--disable-breakpad", "--disable-gpu", "--password-store=basic", "--use-mock-keychain",
		"--noerrdialogs", "--hide-crash-restore-bubble", "--disable-search-engine-choice-screen",
		// Whoever closes the last window, a client from outside or a person, must not end the browser for all others.
		"--keep-alive-for-test",
		"--start-maximized", "--ozone-platform=x11",
		"--lang=" + s.menuLanguage(set), "--accept-lang=" + s.languages(set),
	}
	if s.unsandboxed() != "" {
		// The second keeps away a bar that warns of the first and takes room from the page.
		args = append(args, "--no-sandbox", "--test-type")
	}
	if s.cfg.UserAgent != "" {
		args = append(args, "--user-agent="+s.cfg.UserAgent)
	}
	if pac := s.cfg.Proxy.script(); pac != "" {
		args = append(args, "--proxy-pac-url=data:application/x-ns-proxy-autoconfig;base64,"+base64.StdEncoding.EncodeToString([]byte(pac)))
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

// extraArgs are the configured switches, without those that are ours. Lists of features are joined with our own, because of
// several such switches Chromium heeds only the last.
func (s *Service) extraArgs() []string {
	off := slices.Clone(quiet)
	var args []string
	for _, arg := range s.cfg.ExtraArgs {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "--disable-features":
			off = append(off, strings.Split(value, ",")...)
		case slices.Contains(owned, name) || !strings.HasPrefix(name, "--"):
			s.cfg.Log.Warn("switch for the browser is left out: it is the sandbox's own", "switch", name)
		default:
			args = append(args, arg)
		}
	}
	return append(args, "--disable-features="+strings.Join(off, ","))
}

// languages are what pages are asked for.
func (s *Service) languages(set settings) string {
	if set.Locale != "" {
		return set.Locale
	}
	return s.cfg.Lang
}

// menuLanguage is the browser's own.
func (s *Service) menuLanguage(set settings) string {
	if set.Locale == "" && s.cfg.UILang != "" {
		return s.cfg.UILang
	}
	first, _, _ := strings.Cut(s.languages(set), ",")
	return strings.TrimSpace(first)
}

// environ is what the browser inherits. Menus follow LANGUAGE, not the switch.
func (s *Service) environ(set settings) []string {
	locale := strings.ReplaceAll(s.menuLanguage(set), "-", "_")
	language, _, _ := strings.Cut(locale, "_")
	return append(s.cfg.Runner.Environ(), "LANGUAGE="+locale+":"+language)
}
