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

// settings are what a restart may change. They are stored: a list of blocked URLs must survive a reboot.
type settings struct {
	Block   []string `json:"url_blocklist"` // null: as configured
	Allow   []string `json:"url_allowlist"` // likewise
	Dialogs *bool    `json:"allow_file_selection_dialogs,omitempty"`
	Locale  string   `json:"locale,omitempty"`
}

// maxRules is how many entries of a list Chromium applies.
const maxRules = 1000

// RestartIn is the mode of a restart and the settings to change.
type RestartIn struct {
	Mode    string    `json:"mode" doc:"soft restores the open tabs; hard starts with one new tab" enum:"soft,hard" default:"hard"`
	Block   *[]string `json:"url_blocklist" doc:"URLs to block, in the format of Chromium's URLBlocklist policy: a host including its subdomains, scheme://host:port/path, or * for all; an empty list blocks nothing"`
	Allow   *[]string `json:"url_allowlist" doc:"Exceptions from url_blocklist, in the same format"`
	Dialogs Dialogs   `json:"allow_file_selection_dialogs,omitempty" doc:"Whether pages may open file dialogs; null removes an earlier choice"`
	Locale  *string   `json:"locale" doc:"Language of the browser and preferred language of pages, such as de-DE; empty: as configured"`
}

// Dialogs is a choice that can be made, removed with null, or left as it is.
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
	Enforced string   `json:"enforced_by" doc:"What enforces the rules: policy (the browser itself), devtools (this server, while it runs), or empty if there are none"`
}

// Restart stops the browser and starts it again.
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
	out := Restarted{Mode: in.Mode, Block: set.Block, Allow: set.Allow, Dialogs: s.fileDialogs(set),
		Locale: s.languages(set), Enforced: c.enforcedBy}
	op.Say(ctx, "Browser restarted")
	if out.Enforced == byDevtools {
		op.Hint(ctx, "The policy folder %s is not writable, so this server enforces the rules over the DevTools "+
			"protocol while it runs.", s.policyFolder())
	}
	return out, nil
}

// updateSettings merges a request into the settings and stores them.
func (s *Service) updateSettings(in RestartIn) (settings, error) {
	set, err := s.storedSettings()
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
		if err := checkRules(*list.sent); err != nil {
			return set, err
		}
		*list.to = append([]string{}, *list.sent...) // an empty list is not nil
	}
	if in.Dialogs.Sent {
		set.Dialogs = in.Dialogs.Allow
	}
	if in.Locale != nil {
		if *in.Locale != "" && !isLocale(*in.Locale) {
			return set, op.Errorf(op.Invalid, "invalid locale %q; use a language tag such as de-DE", *in.Locale)
		}
		set.Locale = *in.Locale
	}
	return s.complete(set), s.store(set)
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
func (s *Service) fileDialogs(set settings) bool {
	if set.Dialogs != nil {
		return *set.Dialogs
	}
	return s.cfg.FileDialogs
}

// settings returns the settings of the next start.
func (s *Service) settings() (settings, error) {
	set, err := s.storedSettings()
	return s.complete(set), err
}

// complete adds the configured lists where no restart has set others.
func (s *Service) complete(set settings) settings {
	if set.Block == nil {
		set.Block = s.cfg.Block
	}
	if set.Allow == nil {
		set.Allow = s.cfg.Allow
	}
	return set
}

// storedSettings reads what restarts have set.
func (s *Service) storedSettings() (settings, error) {
	var set settings
	b, err := os.ReadFile(s.dir("settings.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return set, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &set)
	}
	if err != nil {
		// Without them, blocked pages would open.
		return set, fmt.Errorf("read the browser's settings: %w; remove %q to reset them", err, s.dir("settings.json"))
	}
	return set, nil
}

func (s *Service) store(set settings) error {
	b, err := json.Marshal(set)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.dir(""), 0o700); err != nil {
		return fmt.Errorf("store the browser's settings: %w", err)
	}
	err = atomicfile.Replace(s.dir("settings.json"), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("store the browser's settings: %w", err)
	}
	return nil
}
