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
	byNobody   = ""
	byPolicy   = "policy"
	byDevtools = "devtools"
)

// policyFolder is the folder of policies that the user cannot change.
func (s *Service) policyFolder() string {
	if s.cfg.Policies != "" {
		return s.cfg.Policies
	}
	if path, _ := s.program(); strings.Contains(filepath.Base(path), "google") {
		return "/etc/opt/chrome/policies/managed"
	}
	return "/etc/chromium/policies/managed"
}

// policyFile is this sandbox's own file: other sandboxes may share the folder.
func (s *Service) policyFile() string {
	sum := sha256.Sum256([]byte(s.cfg.State))
	return filepath.Join(s.policyFolder(), "aio-"+hex.EncodeToString(sum[:6])+".json")
}

// installPolicy writes the rules to the browser's policy folder before a start, and returns what enforces them: this server
// if the folder is not writable.
func (s *Service) installPolicy(set settings) (enforcedBy string, err error) {
	if len(set.Block) == 0 && s.fileDialogs(set) {
		return byNobody, s.dropPolicy()
	}
	if err := s.writePolicy(set); err != nil {
		s.cfg.Log.Info("browser rules are enforced over the devtools protocol", "reason", err)
		return byDevtools, s.dropPolicy()
	}
	return byPolicy, nil
}

func (s *Service) writePolicy(set settings) error {
	policy := map[string]any{"AllowFileSelectionDialogs": s.fileDialogs(set)}
	if len(set.Block) > 0 {
		policy["URLBlocklist"], policy["URLAllowlist"] = set.Block, append([]string{}, set.Allow...)
	}
	b, err := json.Marshal(policy)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.policyFolder(), 0o755); err != nil {
		return fmt.Errorf("create the browser's policy folder: %w", err)
	}
	err = atomicfile.Replace(s.policyFile(), atomicfile.Options{Perm: 0o644}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("write the browser's policy: %w", err)
	}
	return nil
}

// dropPolicy removes the rules: the folder serves every browser on the machine.
func (s *Service) dropPolicy() error {
	err := os.Remove(s.policyFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("remove the browser's policy: %w", err)
	}
	return nil
}
