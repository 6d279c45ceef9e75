package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/hub/activity"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/internal/pool"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
	"github.com/cove-sandbox/cove/internal/hub/internal/secretstore"
	"github.com/cove-sandbox/cove/internal/hub/internal/ship"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/network/authority"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// stores is what a hub keeps beside the provider's own state. The zero value
// keeps nothing: one owner, no limits, no secrets, no audit log.
type stores struct {
	tenants *tenant.Store // nil: there is one owner
	quota   *quota.Keeper // nil: there are no limits

	audit    *auditlog.Log // of changes; nil: nothing is recorded
	auditDir string
	auditKey []byte
	// requests is the log of what changes nothing in the hub; nil: it is in audit.
	requests    *auditlog.Log
	requestsDir string
	marks       string        // file of the last lines of both, outside of their folders
	shipper     *ship.Shipper // nil: lines stay on this machine

	secrets   *secretstore.Store
	authority *authority.Authority // vouches for hosts to whose requests a secret is added

	records *activity.Store // nil: what sandboxes recorded ends with them

	tokens *token.Signer // of sandboxes, for E2B's clients

	pool   *pool.Pool // nil: no sandboxes are kept ready
	tracer *span.Tracer
	// scratch is where uploaded archives wait to be read. It is beside the images,
	// so that a small /tmp does not limit them.
	scratch string
}

// StateFiles are what a hub keeps in its state folder beside the provider's, in the order in
// which a backup must read them while the hub runs: what says how far a log goes comes before the log.
var StateFiles = []string{"audit.marks", "forward", "audit/head", "audit", "requests/head", "requests", "keys.json",
	firstKeyFile, "secrets", recordsDir}

// recordsDir is the folder of the activity records.
const recordsDir = "records"

// missing returns the tags of operations that always fail without a store.
func (s stores) missing() []string {
	var tags []string
	if s.tenants == nil {
		tags = append(tags, "key", "share")
	}
	if s.audit == nil {
		tags = append(tags, "audit")
	}
	if s.records == nil {
		tags = append(tags, "record")
	}
	return tags
}

// openStores opens what the configuration asks for. Without a provider it only
// reads: then there is no hub to serve, just its table of operations.
func openStores(cfg Config) (_ stores, err error) {
	s := stores{}
	if cfg.State == "" {
		return s, nil
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	keys, err := cfg.Tenants.Enforced()
	if err != nil {
		return s, err
	}
	if keys {
		if s.tenants, err = tenant.Open(tenant.Config{Path: cfg.Tenants.Keys, MaxShare: cfg.Tenants.MaxShare,
			Limits: cfg.Tenants.Limits, Log: cfg.Log}); err != nil {
			return s, err
		}
	}
	s.quota = quota.New(quota.Config{Creates: cfg.Creates, RequestMemory: cfg.RequestMemory, Limits: s.limits(cfg)})
	if cfg.Provider == nil {
		return s, nil
	}
	s.scratch = filepath.Join(cfg.State, "import")
	// An upload that an earlier hub did not finish is useless.
	if err := errors.Join(os.RemoveAll(s.scratch), os.MkdirAll(s.scratch, 0o700)); err != nil {
		return s, err
	}
	if cfg.KeepActivity > 0 {
		s.records = activity.New(activity.Config{Dir: filepath.Join(cfg.State, recordsDir), Keep: cfg.KeepActivity, Log: cfg.Log})
	}
	dir := filepath.Join(cfg.State, "secrets")
	if s.secrets, err = secretstore.Open(secretstore.Config{Dir: dir, Log: cfg.Log}); err != nil {
		return s, err
	}
	if s.tokens, err = token.Open(filepath.Join(dir, "access.key")); err != nil {
		return s, err
	}
	if s.authority, err = authority.Open(filepath.Join(dir, "authority.pem")); err != nil {
		return s, err
	}
	s.tracer = span.New(span.Config{Endpoint: cfg.Traces.Endpoint, Headers: cfg.Traces.Headers, Service: "cove-hub",
		Version: cfg.Version, Log: cfg.Log})
	return s, s.openAudit(cfg)
}

// limits returns the limits of each tenant. The operator has none: who signs in with
// the hub's own credentials, and the only user of a hub without any.
func (s *stores) limits(cfg Config) func(tenant string) quota.Limits {
	return func(tenant string) quota.Limits {
		switch {
		case tenant == "":
			return quota.Limits{}
		case s.tenants == nil:
			return cfg.Tenants.Limits // users of another system that signs tokens
		}
		return s.tenants.Limits(tenant)
	}
}

func (s *stores) openAudit(cfg Config) (err error) {
	if !cfg.Audit.Enabled {
		return nil
	}
	s.auditDir = filepath.Join(cfg.State, "audit")
	if cfg.Audit.KeyFile != "" {
		if s.auditKey, err = readAuditKey(cfg.Audit.KeyFile); err != nil {
			return err
		}
	}
	open := func(dir string) (*auditlog.Log, error) {
		l, err := auditlog.Open(auditlog.Config{Dir: dir, Key: s.auditKey, Sync: 100 * time.Millisecond, Log: cfg.Log})
		if errors.Is(err, auditlog.ErrDamaged) {
			err = fmt.Errorf("%w; run 'cove audit verify --dir %s' for details, then move the directory away to start a new log", err, dir)
		}
		return l, err
	}
	if s.audit, err = open(s.auditDir); err != nil {
		return err
	}
	s.requestsDir = filepath.Join(cfg.State, "requests")
	if s.requests, err = open(s.requestsDir); err != nil {
		return err
	}
	s.marks = filepath.Join(cfg.State, "audit.marks")
	if err := s.checkMarks(cfg.Log); err != nil {
		return err
	}
	if len(cfg.Audit.Forward) > 0 {
		s.shipper, err = ship.Start(ship.Config{
			Logs: map[string]string{"changes": s.auditDir, "requests": s.requestsDir}, To: cfg.Audit.Forward, Headers: cfg.Audit.ForwardHeaders,
			State: filepath.Join(cfg.State, "forward"), Log: cfg.Log,
		})
	}
	return err
}

// Enforced reports whether tenants sign in with keys: on request, or because a
// keys file exists.
func (t Tenants) Enforced() (bool, error) {
	if t.Enabled || t.Keys == "" {
		return t.Enabled, nil
	}
	_, err := os.Stat(t.Keys)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look for the keys file: %w", err)
	}
	return err == nil, nil
}

func readAuditKey(path string) ([]byte, error) {
	const minimum = 16
	key, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the key of the audit log: %w", err)
	}
	if len(key) < minimum {
		return nil, fmt.Errorf("the key of the audit log in %q has %d bytes; use at least %d random bytes", path, len(key), minimum)
	}
	return key, nil
}

// maxWarm bounds the sandboxes of all environments that are kept ready: what one setting allows.
const maxWarm = 1000

// newPool keeps sandboxes of the environments ready that ask for it.
func newPool(cfg Config, want func() map[string]pool.Want) *pool.Pool {
	inner := cfg.Provider
	return pool.New(pool.Config{
		Provider: inner, Size: want, Max: maxWarm, Log: cfg.Log,
		Bind: pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) { return inner.Endpoint(ctx, id, 0) }),
	})
}

// keepers returns who keeps records, nil if nobody does.
func (s stores) keepers() fleet.Records {
	if s.records == nil {
		return nil // not a nil pointer in an interface
	}
	return s.records
}

// warm returns what counts the sandboxes that are ready, nil if none are kept.
func (s stores) warm() func() map[string]int {
	if s.pool == nil {
		return nil
	}
	return s.pool.Ready
}

// firstKeyFile is the name of the file with the first admin key.
const firstKeyFile = "admin.key"

// CreateFirstKey creates an admin key if none is valid, writes it to a file in
// the state folder and writes to out where it is.
func (h *Hub) CreateFirstKey(out io.Writer) error {
	if h.stores.tenants == nil {
		return nil
	}
	for _, k := range h.stores.tenants.List() {
		if k.Role == tenant.RoleAdmin && k.IsValid(time.Now()) {
			return nil
		}
	}
	secret, _, err := h.stores.tenants.Add("admin", tenant.RoleAdmin, "made at the first start", time.Time{})
	if err != nil {
		return err
	}
	path := filepath.Join(h.cfg.State, firstKeyFile)
	err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.WriteString(secret + "\n")
		return err
	})
	if err != nil {
		return fmt.Errorf("write the first key: %w", err)
	}
	_, err = fmt.Fprintf(out, "created a key with the role admin in %s\n", path)
	return err
}

// IsKey reports whether a secret has the form of a tenant's key or link.
func IsKey(secret string) bool { return tenant.IsSecret(secret) }

// AuditCheck says which audit log to verify, AuditReport what was found.
type (
	AuditCheck  = auditlog.Check
	AuditReport = auditlog.Report
)

// VerifyAudit checks the audit log in a folder that no hub need serve. The key
// file is the one the log was written with; empty: none.
func VerifyAudit(ctx context.Context, check AuditCheck, keyFile string) (AuditReport, error) {
	if keyFile != "" {
		key, err := readAuditKey(keyFile)
		if err != nil {
			return AuditReport{}, op.Errorf(op.Invalid, "%w", err)
		}
		check.Key = key
	}
	return auditlog.Verify(ctx, check)
}

func (s *stores) close() error {
	var err error
	if s.pool != nil {
		err = s.pool.Close()
	}
	err = errors.Join(err, s.tracer.Close())
	if s.shipper != nil {
		err = errors.Join(err, s.shipper.Close())
	}
	for _, l := range []*auditlog.Log{s.audit, s.requests} {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
	}
	if s.marks != "" {
		err = errors.Join(err, s.saveMarks())
	}
	return err
}
