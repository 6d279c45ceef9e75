package browser

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// What enforces the rules.
const (
	byNone     = ""
	byPolicy   = "policy"
	byDevtools = "devtools"
)

// policyFolder is the folder of policies that the user cannot change.
func (c *Config) policyFolder() string {
	if c.Policies != "" {
		return c.Policies
	}
	if path, _ := c.program(); strings.Contains(filepath.Base(path), "google") {
		return "/etc/opt/chrome/policies/managed"
	}
	return "/etc/chromium/policies/managed"
}

// policyFile is the file of this sandbox; other sandboxes may share the folder.
func (c *Config) policyFile() string {
	sum := sha256.Sum256([]byte(c.State))
	return filepath.Join(c.policyFolder(), "aio-"+hex.EncodeToString(sum[:6])+".json")
}

// installPolicy writes the rules to the browser's policy folder before a start, and returns what enforces them: this server
// if the folder is not writable.
func (s setup) installPolicy() (enforcedBy string, err error) {
	if len(s.Block) == 0 && s.fileDialogs() {
		return byNone, s.cfg.removePolicy()
	}
	if err := s.writePolicy(); err != nil {
		s.cfg.Log.Info("browser rules are enforced over the devtools protocol", "reason", err)
		return byDevtools, s.cfg.removePolicy()
	}
	return byPolicy, nil
}

func (s setup) writePolicy() error {
	policy := map[string]any{"AllowFileSelectionDialogs": s.fileDialogs()}
	if len(s.Block) > 0 {
		policy["URLBlocklist"], policy["URLAllowlist"] = s.Block, append([]string{}, s.Allow...)
	}
	b, err := json.Marshal(policy)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.cfg.policyFolder(), 0o755); err != nil {
		return fmt.Errorf("create the browser's policy folder: %w", err)
	}
	err = atomicfile.Replace(s.cfg.policyFile(), atomicfile.Options{Perm: 0o644}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the browser's policy: %w", err)
	}
	return nil
}

// removePolicy removes the rules, because every browser on the machine reads the folder.
func (c *Config) removePolicy() error {
	err := os.Remove(c.policyFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("remove the browser's policy: %w", err)
	}
	return nil
}
