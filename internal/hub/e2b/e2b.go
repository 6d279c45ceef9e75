// Package e2b implements the control API of E2B clients: sandboxes, snapshots and templates in their
// terms.
//
// It only translates. The same packages as for our own API do the work, so the same owners, limits
// and audit log apply. Unsupported features (teams) return an explanation.
package e2b

import (
	"cmp"
	"context"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/disk"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/meter"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/hub/template"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	// daemonVersion is the version of E2B's daemon whose features aio has.
	daemonVersion = "0.6.13"
	// clientID is a constant that E2B returns in every reply.
	clientID = "6532622b"
)

// Fleet finds and starts sandboxes.
type Fleet interface {
	Find(ctx context.Context, name string) (sandbox.Sandbox, error)
	Start(ctx context.Context, id string, start func(context.Context, string) error) error
	Observe(sandbox.Sandbox)
	Egress(sandbox.Sandbox) *egress.Proxy
}

// Config of a Service.
type Config struct {
	Provider     sandbox.Provider
	Fleet        Fleet
	Sandboxes    *lifecycle.Service
	Disks        *disk.Service
	Templates    *template.Service
	Environments *environment.Catalog
	Tokens       *token.Signer
	Domains      naming.Domains
	MaxTimeout   time.Duration
	Meter        *meter.Meter
	Secrets      *secret.Service
}

// Service implements the operations.
type Service struct {
	Config
	rules rulebook
}

// New returns the service.
func New(cfg Config) *Service {
	s := &Service{Config: cfg}
	s.rules.Config = &s.Config
	return s
}

// Creates are the names of the operations that create one sandbox.
var Creates = []string{"e2b_create", "e2b_create_v2"}

const (
	tag = "e2b"
	one = "/sandboxes/{id}"
)

func spec(name, route, doc string, change ...func(*op.Spec)) op.Spec {
	s := op.Spec{Name: "e2b_" + name, Route: route, Tag: tag, Doc: doc, Style: op.Coded, NoTool: true, NoVerb: true}
	for _, c := range change {
		c(&s)
	}
	return s
}

func status(code int) func(*op.Spec) { return func(s *op.Spec) { s.Status = code } }
func also(routes ...string) func(*op.Spec) {
	return func(s *op.Spec) { s.Also = routes }
}
func reads(s *op.Spec)    { s.ReadOnly, s.Access = true, op.AccessRead }
func destroys(s *op.Spec) { s.Destructive = true }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	list := slices.Concat(s.lifeOps(), s.diskOps(), builds{s}.ops(), s.inspectOps())
	return append(list, otherOp(list))
}

// lifeOps lists the operations on the life of sandboxes.
func (s *Service) lifeOps() []op.Op {
	return []op.Op{
		op.New(spec("create_v2", "POST /v2/sandboxes", "Create a sandbox for an E2B client.", status(201)), s.Create),
		op.New(spec("create", "POST /sandboxes",
			"Create a sandbox for an older E2B client. Default timeout: 15 seconds.", status(201)), s.CreateOld),
		op.New(spec("list_v2", "GET /v2/sandboxes",
			"List sandboxes for an E2B client. The header X-Next-Token has the nextToken of the next page.", reads), s.List),
		op.New(spec("list", "GET /sandboxes", "List running sandboxes for an older E2B client.", reads), s.ListOld),
		op.New(spec("get", "GET "+one, "Show a sandbox for an E2B client.", reads), s.Get),
		op.New(spec("kill", "DELETE "+one, "Delete a sandbox for an E2B client.", status(204), destroys), s.Kill),
		op.New(spec("connect_v2", "POST /v2"+one+"/connect",
			"Wake a sandbox and extend its timeout for an E2B client. Never shortens the timeout.", also("POST "+one+"/connect")), s.Connect),
		op.New(spec("resume", "POST "+one+"/resume", "Wake a paused sandbox for an older E2B client.", status(201)), s.Resume),
		op.New(spec("pause", "POST "+one+"/pause", "Pause a sandbox for an E2B client; with memory false, stop it.", status(204)), s.Pause),
		op.New(spec("timeout", "POST "+one+"/timeout",
			"Set the timeout of a sandbox, in seconds from now, for an E2B client.", status(204)), s.SetTimeout),
		op.New(spec("refresh", "POST "+one+"/refreshes",
			"Extend the timeout of a sandbox for an older E2B client. Never shortens it.", status(204)), s.Refresh),
	}
}

// Created is a sandbox that a client may use.
type Created struct {
	TemplateID   string `json:"templateID"`
	SandboxID    string `json:"sandboxID"`
	ClientID     string `json:"clientID"`
	EnvdVersion  string `json:"envdVersion"`
	Alias        string `json:"alias,omitempty"`
	AccessToken  string `json:"envdAccessToken,omitempty" doc:"Token for its files and processes"`
	TrafficToken string `json:"trafficAccessToken,omitempty" doc:"Token for its ports"`
	Domain       string `json:"domain,omitempty" doc:"Domain of the host names of its ports"`
}

func (s *Service) created(ctx context.Context, sb sandbox.Sandbox) Created {
	name := templateOf(sb.Spec)
	c := Created{TemplateID: name, Alias: name, SandboxID: naming.E2BID(sb.ID), ClientID: clientID,
		EnvdVersion: daemonVersion, Domain: s.domain(ctx)}
	if !op.CallOf(ctx).Reader {
		to := bearer(ctx)
		c.AccessToken, c.TrafficToken = s.Tokens.Access(sb.ID, to), s.Tokens.Traffic(sb.ID, to)
	}
	return c
}

// bearer is the key of a caller. The caller's tokens expire with it.
func bearer(ctx context.Context) token.Bearer {
	call := op.CallOf(ctx)
	if call.KeyID == "" {
		return token.Bearer{}
	}
	return token.Bearer{Key: call.KeyID, Tenant: call.Subject, Role: call.Role}
}

// templateOf is the template that a client named, or the environment.
func templateOf(spec sandbox.Spec) string {
	if name := spec.Annotations[naming.AnnotationTemplate]; name != "" {
		return name
	}
	return spec.Environment
}

// domain is the domain of the ports of sandboxes, as the caller reaches it.
func (s *Service) domain(ctx context.Context) string {
	base := op.CallOf(ctx).Base
	if base == nil {
		return ""
	}
	u, ok := s.Domains.Origin(*base, naming.Site{Name: "x"})
	if !ok {
		// The caller uses an IP address; every machine resolves names under localhost.
		local := *base
		local.Host = "localhost"
		if port := base.Port(); port != "" {
			local.Host += ":" + port
		}
		if u, ok = s.Domains.Origin(local, naming.Site{Name: "x"}); !ok {
			return ""
		}
	}
	return strings.TrimPrefix(u.Host, "x.")
}

// Listed is a sandbox in a list.
type Listed struct {
	TemplateID  string            `json:"templateID"`
	SandboxID   string            `json:"sandboxID"`
	ClientID    string            `json:"clientID"`
	EnvdVersion string            `json:"envdVersion"`
	Alias       string            `json:"alias,omitempty"`
	StartedAt   time.Time         `json:"startedAt"`
	EndAt       time.Time         `json:"endAt"`
	CPUs        int               `json:"cpuCount"`
	MemoryMB    int64             `json:"memoryMB"`
	DiskMB      int64             `json:"diskSizeMB"`
	State       string            `json:"state" enum:"running,paused"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

// never is the timeout that is shown for sandboxes without one.
const never = 10 * 365 * 24 * time.Hour

func (s *Service) listed(sb sandbox.Sandbox) Listed {
	name := templateOf(sb.Spec)
	l := Listed{
		TemplateID: name, Alias: name, SandboxID: naming.E2BID(sb.ID), ClientID: clientID, EnvdVersion: daemonVersion,
		StartedAt: sb.Created.UTC(), EndAt: sb.Created.Add(never).UTC(), State: stateOf(sb), Metadata: metadataOf(sb.Spec),
	}
	l.CPUs, l.MemoryMB, l.DiskMB = s.size(sb.Spec.Resources)
	if at, ok := fleet.Expiry(sb); ok {
		l.EndAt = at.UTC()
	}
	return l
}

// size is what a sandbox can use, as clients show it: its limits, or the machine where these are not enforced. 0: unknown.
func (s *Service) size(r sandbox.Resources) (cpus int, memoryMB, diskMB int64) {
	r = lifecycle.Enforced(s.Sandboxes, r)
	if r.CPULimit == 0 || r.MemoryLimit == 0 {
		able := s.Provider.Abilities()
		r.CPULimit, r.MemoryLimit = cmp.Or(r.CPULimit, able.MaxCPU), cmp.Or(r.MemoryLimit, able.MaxMemory)
	}
	return max(1, int(math.Ceil(float64(r.CPULimit)/1000))), r.MemoryLimit >> 20, r.Disk >> 20
}

// stateOf is one of the two states that clients know. Clients wake a stopped sandbox like a paused
// one.
func stateOf(sb sandbox.Sandbox) string {
	if sb.State == sandbox.Running {
		return "running"
	}
	return "paused"
}

func metadataOf(spec sandbox.Spec) map[string]string {
	var all map[string]string
	if text := spec.Annotations[naming.AnnotationMetadata]; text != "" && json.Unmarshal([]byte(text), &all) != nil {
		return nil
	}
	return all
}

// IDIn names a sandbox.
type IDIn struct {
	ID string `path:"id" doc:"ID of the sandbox"`
}

// Detail is a sandbox with all fields.
type Detail struct {
	Listed
	AccessToken string    `json:"envdAccessToken,omitempty"`
	Domain      string    `json:"domain,omitempty"`
	Internet    bool      `json:"allowInternetAccess"`
	Network     *Network  `json:"network,omitempty"`
	Lifecycle   Lifecycle `json:"lifecycle"`
}

// Lifecycle is the action at the timeout of a sandbox.
type Lifecycle struct {
	AutoResume bool   `json:"autoResume" doc:"Whether requests wake it"`
	OnTimeout  string `json:"onTimeout" enum:"kill,pause"`
}

// Get shows a sandbox.
func (s *Service) Get(ctx context.Context, in IDIn) (Detail, error) {
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return Detail{}, err
	}
	d := Detail{Listed: s.listed(sb), Domain: s.domain(ctx), Internet: isOpen(sb.Spec.Network), Network: networkOf(sb.Spec)}
	if rules := s.rules.of(ctx, sb.Spec); rules != nil {
		if d.Network == nil {
			d.Network = &Network{}
		}
		d.Network.Rules = rules
	}
	d.Lifecycle = Lifecycle{AutoResume: sb.Spec.Annotations[naming.AnnotationAutoResume] != "", OnTimeout: "kill"}
	if sb.Spec.Lifetime.EndPolicy == sandbox.IdlePause || sb.Spec.Lifetime.EndPolicy == sandbox.IdleStop {
		d.Lifecycle.OnTimeout = "pause"
	}
	if !op.CallOf(ctx).Reader {
		d.AccessToken = s.Tokens.Access(sb.ID, bearer(ctx))
	}
	return d, nil
}

// Kill deletes a sandbox.
func (s *Service) Kill(ctx context.Context, in IDIn) (op.None, error) {
	_, err := s.Sandboxes.Delete(ctx, lifecycle.NameIn{Name: in.ID})
	s.rules.release(ctx, nil)
	return op.None{}, err
}
