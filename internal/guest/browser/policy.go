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

	"github.com/cove-sandbox/cove/internal/atomicfile"
)

// Who keeps the rules.
const (
	byNobody   = ""
	byPolicy   = "policy"
	byDevtools = "devtools"
)

// policyFolder is where the browser reads policies that a person cannot change.
func (s *Service) policyFolder() string {
	if s.cfg.Policies != "" {
		return s.cfg.Policies
	}
	if path, _ := s.program(); strings.Contains(filepath.Base(path), "google") {
		return "/etc/opt/chrome/policies/managed"
	}
	return "/etc/chromium/policies/managed"
}

// policyFile is ours alone: another sandbox on the same machine has its own.
func (s *Service) policyFile() string {
	sum := sha256.Sum256([]byte(s.cfg.State))
	return filepath.Join(s.policyFolder(), "aio-"+hex.EncodeToString(sum[:6])+".json")
}

// enforce puts the rules into the browser's policy folder before a start, and tells who keeps them: where the folder cannot
// be written to, this server does.
func (s *Service) enforce(set settings) (keeper string, err error) {
	if len(set.Block) == 0 && s.dialogs(set) {
		return byNobody, s.dropPolicy()
	}
	if err := s.writePolicy(set); err != nil {
		s.cfg.Log.Info("rules for the browser are kept over the devtools protocol", "reason", err)
		return byDevtools, s.dropPolicy()
	}
	return byPolicy, nil
}

func (s *Service) writePolicy(set settings) error {
	policy := map[string]any{"AllowFileSelectionDialogs": s.dialogs(set)}
	if len(set.Block) > 0 {
		policy["URLBlocklist"], policy["URLAllowlist"] = set.Block, append([]string{}, set.Allow...)
	}
	b, err := json.Marshal(policy)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.policyFolder(), 0o755); err != nil {
		return fmt.Errorf("make the browser's policy folder: %w", err)
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

// dropPolicy takes our rules back: the folder serves every browser on the machine.
func (s *Service) dropPolicy() error {
	err := os.Remove(s.policyFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return fmt.Errorf("remove the browser's policy: %w", err)
	}
	return nil
}
