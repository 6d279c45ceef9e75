package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
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
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/hub/internal/tombstone"
	"github.com/cove-sandbox/cove/internal/hub/internal/trash"
	"github.com/cove-sandbox/cove/internal/hub/network"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/span"
)

// stores is the state of the hub, without that of the provider. The zero value stores nothing: one owner,
// no limits, no secrets, no audit log.
type stores struct {
	tenants *tenant.Store // nil: one owner
	quota   *quota.Keeper // nil: no limits

	audit    *auditlog.Log // of changes; nil: nothing is recorded
	auditDir string
	auditKey []byte
	// requests is the log of requests that do not change the hub; nil: audit has them.
	requests    *auditlog.Log
	requestsDir string
	marks       string        // file with the last lines of both, outside of their folders
	shipper     *ship.Shipper // nil: lines stay on this machine

	secrets   *secretstore.Store
	authority *certificate.Authority // signs certificates for hosts to which secrets are brokered

	networks  *network.Store       // nil: only kept in memory
	templates *templatestore.Store // nil: there are no templates

	records *activity.Store // nil: activity records are not stored

	tombstones *tombstone.Log // nil: only kept in memory

	tokens *token.Signer // of sandboxes, for E2B clients

	pool   *pool.Pool // nil: no warm pool
	bin    *trash.Bin // nil: deleted sandboxes cannot be restored
	tracer *span.Tracer
	// scratch is the folder of uploaded archives. It is on the disk of the images, because /tmp can be
	// small.
	scratch string
}

// StateFiles lists the hub's own files in the state folder, in the order in which a backup of a running
// hub must read them: the files that mark the end of a log come before the log.
var StateFiles = []string{"audit.marks", "forward", "audit/head", "audit", "requests/head", "requests", "keys.json",
	networksFile, templatesDir, firstKeyFile, "secrets", recordsDir}

// networksFile is the name of the file with the private networks.
const networksFile = "networks.json"

// templatesDir is the folder of the templates. Their layers are snapshots, which the provider stores.
const templatesDir = "templates"

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

// openStores opens the stores of the configuration. Without a provider it only reads, because the hub
// then only has a table of operations.
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
	// Delete incomplete uploads of an earlier hub.
	if err := errors.Join(os.RemoveAll(s.scratch), os.MkdirAll(s.scratch, 0o700)); err != nil {
		return s, err
	}
	if cfg.KeepActivity > 0 {
		s.records = activity.New(activity.Config{Dir: filepath.Join(cfg.State, recordsDir), Keep: cfg.KeepActivity, Log: cfg.Log})
	}
	if s.templates, err = templatestore.Open(filepath.Join(cfg.State, templatesDir), cfg.Log); err != nil {
		return s, err
	}
	if s.tombstones, err = tombstone.Open(filepath.Join(cfg.State, "deleted.json")); err != nil {
		return s, err
	}
	if s.networks, err = network.Open(filepath.Join(cfg.State, networksFile)); err != nil {
		return s, err
	}
	dir := filepath.Join(cfg.State, "secrets")
	if s.secrets, err = secretstore.Open(secretstore.Config{Dir: dir, Log: cfg.Log}); err != nil {
		return s, err
	}
	if s.tokens, err = token.Open(filepath.Join(dir, "access.key")); err != nil {
		return s, err
	}
	if s.authority, err = certificate.OpenAuthority(filepath.Join(dir, "authority.pem")); err != nil {
		return s, err
	}
	s.tracer = span.New(span.Config{Endpoint: cfg.Traces.Endpoint, Headers: cfg.Traces.Headers, Service: "cove-hub",
		Version: cfg.Version, Log: cfg.Log})
	return s, s.openAudit(cfg)
}

// fill sets stores that every hub has.
func (s *stores) fill() {
	if s.quota == nil {
		s.quota = quota.New(quota.Config{Creates: math.MaxInt32, Queue: math.MaxInt32})
	}
	if s.tombstones == nil {
		s.tombstones = &tombstone.Log{}
	}
	if s.tokens == nil {
		s.tokens = token.New()
	}
	if s.networks == nil {
		s.networks, _ = network.Open("") // it reads no file
	}
}

// limits returns the limits of each tenant. The operator has none: callers with the hub's own credentials,
// and the only user of a hub without credentials.
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

// Enforced reports whether tenants need keys: if enabled, or if a keys file exists.
func (t Tenants) Enforced() (bool, error) {
	if t.Enabled || t.Keys == "" {
		return t.Enabled, nil
	}
	_, err := os.Stat(t.Keys)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("check the keys file: %w", err)
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

// maxWarm is the maximum size of all warm pools together, equal to the maximum of the setting.
const maxWarm = 1000

// newPool returns the warm pools of environments.
func newPool(cfg Config, want func() map[string]pool.Want) *pool.Pool {
	inner := cfg.Provider
	return pool.New(pool.Config{
		Provider: inner, Size: want, Max: maxWarm, Log: cfg.Log,
		Bind: pool.BindHTTP(func(ctx context.Context, id string) (sandbox.Endpoint, error) { return inner.Endpoint(ctx, id, 0) }),
	})
}

// saveTombstones stores the list of deleted sandboxes for the next hub.
func (s stores) saveTombstones(log *slog.Logger) {
	if err := s.tombstones.Save(); err != nil {
		log.Warn("after a restart, errors do not state why sandboxes were deleted", "error", err)
	}
}

// keepers returns the store of activity records, or nil.
func (s stores) keepers() fleet.Records {
	if s.records == nil {
		return nil // an interface with a nil pointer is not nil
	}
	return s.records
}

// warm returns the function that counts ready sandboxes, or nil.
func (s stores) warm() func() map[string]int {
	if s.pool == nil {
		return nil
	}
	return s.pool.Ready
}

// firstKeyFile is the name of the file with the first admin key.
const firstKeyFile = "admin.key"

// CreateFirstKey creates an admin key if none is valid, stores it in a file in the state folder and writes
// the path to out.
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

// AuditCheck selects an audit log to verify; AuditReport is the result.
type (
	AuditCheck  = auditlog.Check
	AuditReport = auditlog.Report
)

// VerifyAudit checks the audit log in a folder, also without a running hub. keyFile contains the key that
// the log was written with; empty: none.
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
