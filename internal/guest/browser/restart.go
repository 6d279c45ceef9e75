package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/op"
)

// settings are what a restart may change. They outlive the server: a list of blocked addresses must not be forgotten
// because a machine was restarted.
type settings struct {
	Block   []string `json:"url_blocklist,omitempty"`
	Allow   []string `json:"url_allowlist,omitempty"`
	Dialogs *bool    `json:"allow_file_selection_dialogs,omitempty"`
	Locale  string   `json:"locale,omitempty"`
}

// maxRules is how many addresses Chromium heeds in a list.
const maxRules = 1000

// RestartIn says how to restart, and what to change.
type RestartIn struct {
	Mode    string    `json:"mode" doc:"soft brings the open tabs back; hard begins with one fresh tab" enum:"soft,hard" default:"hard"`
	Block   *[]string `json:"url_blocklist" doc:"Addresses that pages may not be opened from, in the form of Chromium's URLBlocklist policy: a host with everything below it, scheme://host:port/path, or * for all; an empty list blocks none"`
	Allow   *[]string `json:"url_allowlist" doc:"Exceptions from url_blocklist, in the same form"`
	Dialogs *bool     `json:"allow_file_selection_dialogs" doc:"Whether pages may open the dialog that picks a file"`
	Locale  *string   `json:"locale" doc:"Language of the browser and of the pages it asks for, such as de-DE; empty: as configured"`
}

// Restarted tells how the browser runs now.
type Restarted struct {
	Mode     string   `json:"mode"`
	Block    []string `json:"url_blocklist"`
	Allow    []string `json:"url_allowlist"`
	Dialogs  bool     `json:"allow_file_selection_dialogs"`
	Locale   string   `json:"locale"`
	Enforced string   `json:"enforced_by" doc:"What keeps the rules: policy (the browser itself), devtools (this server, while it runs), or nothing when there are none"`
}

// Restart ends the browser and starts it again.
func (s *Service) Restart(ctx context.Context, in RestartIn) (Restarted, error) {
	select {
	case s.restart <- struct{}{}:
		defer func() { <-s.restart }()
	case <-ctx.Done():
		return Restarted{}, ctx.Err()
	}
	if err := s.installed(); err != nil {
		return Restarted{}, op.Errorf(op.Unavailable, "the browser is not installed: %w", err)
	}
	set, err := s.change(in)
	if err != nil {
		return Restarted{}, err
	}
	s.mu.Lock()
	s.demand = freshTab
	if in.Mode == "soft" {
		s.demand = oldTabs
	}
	s.news = ""
	s.mu.Unlock()
	s.chrome.Stop()
	c, release, err := s.hold(ctx)
	if err != nil {
		return Restarted{}, err
	}
	release()
	out := Restarted{Mode: in.Mode, Block: set.Block, Allow: set.Allow, Dialogs: s.dialogs(set), Locale: s.languages(set), Enforced: c.keeper}
	op.Say(ctx, "The browser was restarted")
	if out.Enforced == byDevtools {
		op.Hint(ctx, "The browser's policy folder %s cannot be written to, so the rules are kept over the DevTools protocol: they hold for pages and frames as long as this server runs.", s.policyFolder())
	}
	return out, nil
}

// change merges what was sent into the settings and keeps them.
func (s *Service) change(in RestartIn) (settings, error) {
	set, err := s.settings()
	if err != nil {
		return set, err
	}
	for _, list := range []struct {
		sent *[]string
		to   *[]string
	}{{in.Block, &set.Block}, {in.Allow, &set.Allow}} {
		if list.sent == nil {
			continue
		}
		if len(*list.sent) > maxRules {
			return set, op.Errorf(op.Invalid, "the list has %d addresses, and the browser heeds %d; a host stands for everything below it", len(*list.sent), maxRules)
		}
		for _, rule := range *list.sent {
			if _, err := parseRule(rule); err != nil {
				return set, op.Errorf(op.Invalid, "the address %q cannot be a rule: %w", rule, err)
			}
		}
		*list.to = *list.sent
	}
	if in.Dialogs != nil {
		set.Dialogs = in.Dialogs
	}
	if in.Locale != nil {
		if *in.Locale != "" && !isLocale(*in.Locale) {
			return set, op.Errorf(op.Invalid, "%q is no language; send one such as de-DE", *in.Locale)
		}
		set.Locale = *in.Locale
	}
	return set, s.keep(set)
}

// isLocale takes language tags, also with an underscore.
func isLocale(s string) bool {
	if len(s) < 2 || len(s) > 35 {
		return false
	}
	for i, r := range s {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i < 2 || r != '-' && r != '_' && (r < '0' || r > '9')) {
			return false
		}
	}
	return true
}

// dialogs tells whether pages may open the file dialog.
func (s *Service) dialogs(set settings) bool {
	if set.Dialogs != nil {
		return *set.Dialogs
	}
	return s.cfg.FileDialogs
}

// settings reads what was kept.
func (s *Service) settings() (settings, error) {
	var set settings
	b, err := os.ReadFile(s.dir("settings.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return set, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &set)
	}
	if err != nil {
		// Going on without them would open what was blocked.
		return set, fmt.Errorf("read the browser's settings: %w: remove %s to begin anew", err, s.dir("settings.json"))
	}
	return set, nil
}

func (s *Service) keep(set settings) error {
	b, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir(""), 0o700); err != nil {
		return fmt.Errorf("keep the browser's settings: %w", err)
	}
	err = atomicfile.Replace(s.dir("settings.json"), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("keep the browser's settings: %w", err)
	}
	return nil
}
