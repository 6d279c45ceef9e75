package cove

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/audit"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/egress"
	"github.com/cove-sandbox/cove/internal/quota"
	"github.com/cove-sandbox/cove/internal/secret"
	"github.com/cove-sandbox/cove/internal/span"
	"github.com/cove-sandbox/cove/internal/tenant"
)

// many is what a hub has for many tenants: their keys, and the record of what
// was done.
type many struct {
	tenants  *tenant.Store // nil: there is one owner
	audit    *audit.Log    // nil: nothing is written down
	auditDir string
	auditKey []byte

	secrets   *secret.Store
	authority *egress.Authority
	tracer    *span.Tracer
	// scratch is where archives wait to be read: beside the images, so that a small
	// /tmp does not bound them.
	scratch string
}

// open opens what the settings ask for. Only what serves writes anything.
func (m *many) open(cfg config.Cove, serves bool, version string, log *slog.Logger) error {
	if cfg.State == "" {
		return nil // only the table is wanted
	}
	on := cfg.Tenants
	if !on {
		_, err := os.Stat(cfg.Keys)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("look for the keys file: %w", err)
		}
		on = err == nil
	}
	if on {
		store, err := tenant.Open(tenant.Config{Path: cfg.Keys, MaxShare: cfg.MaxShare, Log: log})
		if err != nil {
			return err
		}
		m.tenants = store
	}
	if serves {
		m.scratch = filepath.Join(cfg.State, "import")
		// What an earlier hub did not finish is of no use.
		if err := errors.Join(os.RemoveAll(m.scratch), os.MkdirAll(m.scratch, 0o700)); err != nil {
			return err
		}
		if err := m.openSecrets(cfg.State, log); err != nil {
			return err
		}
		m.tracer = span.New(span.Config{Endpoint: cfg.OTLPEndpoint, Headers: pairs(cfg.OTLPHeaders), Service: "cove-hub", Version: version, Log: log})
	}
	if !cfg.Audit {
		return nil
	}
	m.auditDir = filepath.Join(cfg.State, "audit")
	if cfg.AuditKeyFile != "" {
		key, err := readKey(cfg.AuditKeyFile)
		if err != nil {
			return err
		}
		m.auditKey = key
	}
	if !serves {
		return nil
	}
	l, err := audit.Open(audit.Config{Dir: m.auditDir, Key: m.auditKey, Sync: 100 * time.Millisecond, Log: log})
	if errors.Is(err, audit.ErrDamaged) {
		err = fmt.Errorf("%w; see cove audit verify --dir %s, and move the folder away to begin a new log", err, m.auditDir)
	}
	m.audit = l
	return err
}

// openSecrets opens what tenants entrust to the hub, and who vouches for hosts
// whose requests are looked into.
func (m *many) openSecrets(state string, log *slog.Logger) (err error) {
	if m.secrets, err = secret.Open(secret.Config{Dir: filepath.Join(state, "secrets"), Log: log}); err != nil {
		return err
	}
	m.authority, err = egress.OpenAuthority(filepath.Join(state, "secrets", "authority.pem"))
	return err
}

// pairs takes name=value apart.
func pairs(list []string) map[string]string {
	out := map[string]string{}
	for _, pair := range list {
		name, value, _ := strings.Cut(pair, "=")
		out[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return out
}

// readKey reads the key of an audit log.
func readKey(path string) ([]byte, error) {
	const least = 16
	key, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of the audit log: %w", err)
	}
	if len(key) < least {
		return nil, fmt.Errorf("the key of the audit log in %s has %d bytes; use at least %d random ones", path, len(key), least)
	}
	return key, nil
}

// quota keeps tenants within the limits of the keys file.
func (m *many) quota(creates int) *quota.Keeper {
	c := quota.Config{Creates: creates}
	if m.tenants != nil {
		c.Limits = m.tenants.Limits
	}
	return quota.New(c)
}

// adminKey is the name of the file with the first key.
const adminKey = "admin.key"

// firstKey makes a key for whoever runs the hub, if there is none that could
// make others.
func (m *many) firstKey(state string, out io.Writer) error {
	if m.tenants == nil {
		return nil
	}
	for _, k := range m.tenants.List() {
		if k.Role == tenant.RoleAdmin && k.Living(time.Now()) {
			return nil
		}
	}
	secret, _, err := m.tenants.Add("admin", tenant.RoleAdmin, "made at the first start", time.Time{})
	if err != nil {
		return err
	}
	path := filepath.Join(state, adminKey)
	err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.WriteString(secret + "\n")
		return err
	})
	if err != nil {
		return fmt.Errorf("write the first key: %w", err)
	}
	_, err = fmt.Fprintf(out, "made a key with the role admin; it is in %s\n", path)
	return err
}

func (m *many) close() error {
	err := m.tracer.Close()
	if m.audit != nil {
		err = errors.Join(err, m.audit.Close())
	}
	return err
}
