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
func (c *chrome) prepareProfile(ctx context.Context, set setup) error {
	if err := c.lockProfile(); err != nil {
		return err
	}
	if err := c.removeSingleton(ctx); err != nil {
		return err
	}
	if err := os.MkdirAll(c.s.Downloads(), 0o755); err != nil {
		return fmt.Errorf("create the downloads folder: %w", err)
	}
	if err := set.writePreferences(); err != nil {
		return err
	}
	var err error
	c.enforcedBy, err = set.installPolicy()
	return err
}

// removeSingleton removes the link with which Chromium locks its profile. The link contains the host name and the process
// id. After a kill, or when the host name of a container changes, Chromium would assume that another machine uses the
// profile and would not start. The server holds its own lock of the profile, so only the browser of a killed server can
// still use it, and that browser is ending.
func (c *chrome) removeSingleton(ctx context.Context) error {
	link := filepath.Join(c.s.cfg.dir("profile"), "SingletonLock")
	for {
		target, err := os.Readlink(link)
		if err != nil {
			break
		}
		pid, err := strconv.Atoi(target[strings.LastIndexByte(target, '-')+1:])
		if err != nil || !usesProfile(pid, c.s.cfg.dir("profile")) {
			break
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d still uses the browser's profile; stop this process", pid)
		case <-time.After(50 * time.Millisecond):
		}
	}
	for _, name := range []string{"SingletonLock", "SingletonSocket", "SingletonCookie"} {
		if err := os.Remove(filepath.Join(c.s.cfg.dir("profile"), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

// writePreferences sets preferences for which there is no switch. All other preferences are kept.
func (s setup) writePreferences() error {
	err := merge(filepath.Join(s.cfg.dir("profile"), "Default", "Preferences"), map[string]any{
		"download.default_directory":       s.cfg.downloads(),
		"download.prompt_for_download":     false,
		"savefile.default_directory":       s.cfg.downloads(),
		"intl.accept_languages":            s.languages(),
		"intl.selected_languages":          s.languages(),
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
	return merge(filepath.Join(s.cfg.dir("profile"), "Local State"), dns)
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
