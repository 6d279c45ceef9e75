package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// settings are the settings that a restart can change. They are stored, because the list of blocked URLs must survive a
// reboot.
type settings struct {
	Block   []string `json:"url_blocklist"` // nil: as configured
	Allow   []string `json:"url_allowlist"` // nil: as configured
	Dialogs *bool    `json:"allow_file_selection_dialogs,omitempty"`
	Locale  string   `json:"locale,omitempty"`
}

// setup is the configuration of a start: that of the service, and the settings of restarts.
type setup struct {
	settings
	cfg *Config
}

// maxRules is the number of entries of a list that Chromium applies.
const maxRules = 1000

// RestartIn is the mode of a restart and the settings to change.
type RestartIn struct {
	Mode    string    `json:"mode" doc:"soft restores the open tabs; hard starts with one new tab" enum:"soft,hard" default:"hard"`
	Block   *[]string `json:"url_blocklist" doc:"URLs to block as in Chromium's URLBlocklist policy; an empty list blocks nothing"`
	Allow   *[]string `json:"url_allowlist" doc:"Exceptions from url_blocklist, in the same format"`
	Dialogs Dialogs   `json:"allow_file_selection_dialogs,omitempty" doc:"Whether pages may open file dialogs; null restores the default"`
	Locale  *string   `json:"locale" doc:"Language of the browser and of pages, such as de-DE; empty: the configured language"`
}

// Dialogs is an optional setting: omitted means unchanged, null restores the default.
type Dialogs struct {
	Sent  bool
	Allow *bool // nil: as configured
}

// DecodeOp accepts true, false and null.
func (d *Dialogs) DecodeOp(v any) error {
	switch v := v.(type) {
	case nil:
		*d = Dialogs{Sent: true}
	case bool:
		*d = Dialogs{Sent: true, Allow: &v}
	default:
		return errors.New("must be true, false or null")
	}
	return nil
}

// SchemaOp implements op.Decoder.
func (*Dialogs) SchemaOp() *jsonschema.Schema {
	return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "boolean"}, {Type: "null"}}}
}

// Restarted is the configuration after a restart.
type Restarted struct {
	Mode     string   `json:"mode"`
	Block    []string `json:"url_blocklist"`
	Allow    []string `json:"url_allowlist"`
	Dialogs  bool     `json:"allow_file_selection_dialogs"`
	Locale   string   `json:"locale"`
	Enforced string   `json:"enforced_by" doc:"What enforces the rules: policy (the browser), devtools (this server) or empty (no rules)"`
}

// Restart changes settings and restarts the browser.
func (s *Service) Restart(ctx context.Context, in RestartIn) (Restarted, error) {
	select {
	case s.restart <- struct{}{}:
		defer func() { <-s.restart }()
	case <-ctx.Done():
		return Restarted{}, ctx.Err()
	}
	if err := s.cfg.installed(); err != nil {
		return Restarted{}, op.Errorf(op.Unavailable, "the browser is not installed: %w", err)
	}
	set, err := s.updateSettings(in)
	if err != nil {
		return Restarted{}, err
	}
	s.mu.Lock()
	s.next = startFresh
	if in.Mode == "soft" {
		s.next = startRestore
	}
	s.restarted = ""
	s.mu.Unlock()
	s.chrome.Stop()
	c, release, err := s.hold(ctx)
	if err != nil {
		return Restarted{}, err
	}
	release()
	out := Restarted{Mode: in.Mode, Block: set.Block, Allow: set.Allow, Dialogs: set.fileDialogs(),
		Locale: set.languages(), Enforced: c.enforcedBy}
	op.Say(ctx, "Browser restarted")
	if out.Enforced == byDevtools {
		op.Hint(ctx, "The policy folder %s is not writable, so this server enforces the rules over the DevTools "+
			"protocol while it runs.", s.cfg.policyFolder())
	}
	return out, nil
}

// updateSettings merges a request into the settings and stores them.
func (s *Service) updateSettings(in RestartIn) (setup, error) {
	set, err := s.cfg.readSettings()
	if err != nil {
		return setup{}, err
	}
	for _, list := range []struct {
		sent *[]string
		to   *[]string
	}{{in.Block, &set.Block}, {in.Allow, &set.Allow}} {
		if list.sent == nil {
			continue
		}
		if err := checkRules(*list.sent); err != nil {
			return setup{}, err
		}
		*list.to = append([]string{}, *list.sent...) // an empty list is not nil
	}
	if in.Dialogs.Sent {
		set.Dialogs = in.Dialogs.Allow
	}
	if in.Locale != nil {
		if *in.Locale != "" && !isLocale(*in.Locale) {
			return setup{}, op.Errorf(op.Invalid, "invalid locale %q; use a language tag such as de-DE", *in.Locale)
		}
		set.Locale = *in.Locale
	}
	return s.cfg.complete(set), s.cfg.storeSettings(set)
}

// checkRules validates a list of URLs.
func checkRules(list []string) error {
	if len(list) > maxRules {
		return op.Errorf(op.Invalid, "the list has %d entries (limit %d); a host includes its subdomains", len(list), maxRules)
	}
	for _, rule := range list {
		if _, err := parseRule(rule); err != nil {
			return op.Errorf(op.Invalid, "invalid rule %q: %w", rule, err)
		}
	}
	return nil
}

// isLocale accepts language tags, also with underscores.
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

// fileDialogs reports whether pages may open file dialogs.
func (s setup) fileDialogs() bool {
	if s.Dialogs != nil {
		return *s.Dialogs
	}
	return s.cfg.FileDialogs
}

// setup returns the configuration of the next start.
func (s *Service) setup() (setup, error) {
	set, err := s.cfg.readSettings()
	return s.cfg.complete(set), err
}

// complete adds the configured lists unless a restart set others.
func (c *Config) complete(set settings) setup {
	if set.Block == nil {
		set.Block = c.Block
	}
	if set.Allow == nil {
		set.Allow = c.Allow
	}
	return setup{set, c}
}

// readSettings reads the settings of restarts.
func (c *Config) readSettings() (settings, error) {
	var set settings
	b, err := os.ReadFile(c.dir("settings.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return set, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &set)
	}
	if err != nil {
		// Without the settings, blocked pages would open.
		return set, fmt.Errorf("read the browser's settings: %w; remove %q to reset them", err, c.dir("settings.json"))
	}
	return set, nil
}

func (c *Config) storeSettings(set settings) error {
	b, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(c.dir(""), 0o700); err != nil {
		return fmt.Errorf("store the browser's settings: %w", err)
	}
	err = atomicfile.Replace(c.dir("settings.json"), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("store the browser's settings: %w", err)
	}
	return nil
}
