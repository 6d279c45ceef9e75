package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// prepareProfile locks the profile and writes preferences and policies before a start.
func (c *chrome) prepareProfile(ctx context.Context, set settings) error {
	if err := c.lockProfile(); err != nil {
		return err
	}
	if err := c.removeSingleton(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(c.s.Downloads(), 0o755); err != nil {
		return fmt.Errorf("create the downloads folder: %w", err)
	}
	if err := c.s.writePreferences(set); err != nil {
		return err
	}
	var err error
	c.enforcedBy, err = c.s.installPolicy(set)
	return err
}

// removeSingleton removes the link by which Chromium keeps a second instance from its profile. The link names host and
// process: after a kill, or when a container gets a new host name, Chromium would assume that another machine uses the
// profile and refuse to start. We hold the lock of the profile, so only a browser left by a killed server can use it, and
// that one is ending.
func (c *chrome) removeSingleton(ctx context.Context) error {
	link := filepath.Join(c.s.dir("profile"), "SingletonLock")
	for {
		target, err := os.Readlink(link)
		if err != nil {
			break
		}
		pid, err := strconv.Atoi(target[strings.LastIndexByte(target, '-')+1:])
		if err != nil || !usesProfile(pid, c.s.dir("profile")) {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d still uses the browser's profile; end it", pid)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, name := range []string{"SingletonLock", "SingletonSocket", "SingletonCookie"} {
		if err := os.Remove(filepath.Join(c.s.dir("profile"), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the browser's singleton link: %w", err)
		}
	}
	return nil
}

// usesProfile reports whether a process is a running browser with this profile.
func usesProfile(pid int, profile string) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(line), "--user-data-dir="+profile+"\x00")
}

// writePreferences sets what has no switch. All other preferences are kept.
func (s *Service) writePreferences(set settings) error {
	err := merge(filepath.Join(s.dir("profile"), "Default", "Preferences"), map[string]any{
		"download.default_directory":       s.Downloads(),
		"download.prompt_for_download":     false,
		"savefile.default_directory":       s.Downloads(),
		"intl.accept_languages":            s.languages(set),
		"intl.selected_languages":          s.languages(set),
		"credentials_enable_service":       false,
		"profile.password_manager_enabled": false,
		"translate.enabled":                false,
	})
	if err != nil {
		return err
	}
	dns := map[string]any{"dns_over_https.mode": "automatic", "dns_over_https.templates": ""}
	if len(s.cfg.DoH) > 0 {
		dns = map[string]any{"dns_over_https.mode": "secure", "dns_over_https.templates": strings.Join(s.cfg.DoH, " ")}
	}
	return merge(filepath.Join(s.dir("profile"), "Local State"), dns)
}

// merge sets values, named by dotted paths, in a JSON file. It replaces a file that is not JSON, as Chromium does.
func merge(path string, values map[string]any) error {
	tree := map[string]any{}
	if f, err := os.Open(path); err == nil {
		dec := json.NewDecoder(f)
		dec.UseNumber() // timestamps exceed the precision of a float
		if dec.Decode(&tree) != nil || tree == nil {
			tree = map[string]any{}
		}
		f.Close()
	}
	for name, value := range values {
		at := tree
		keys := strings.Split(name, ".")
		for _, key := range keys[:len(keys)-1] {
			next, ok := at[key].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[key] = next
			}
			at = next
		}
		at[keys[len(keys)-1]] = value
	}
	b, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the browser's preferences: %w", err)
	}
	return nil
}
