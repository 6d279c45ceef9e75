// Package template owns the templates of tenants: it builds them, lists and deletes them, and finds them for new
// sandboxes. A template is an environment of its owner with a separate disk.
//
// It stores what it knows in package templatestore; the provider stores the disks. Nothing of a template is visible
// to another tenant.
package template

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"log/slog"
	"maps"
	"math/big"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/builder"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/task"
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/hub/internal/token"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Quota counts disks against the limits of their owners.
type Quota interface {
	CountDisk(d usage.Disk, size int64)
	FreeDisk(d usage.Disk)
	OpenRoom(ctx context.Context, owner string) *usage.Room
}

// Config of a Service. Without a Store, builds are rejected.
type Config struct {
	Provider     sandbox.Provider
	Fleet        Fleet
	Sandboxes    *lifecycle.Service
	Environments *environment.Catalog
	Quota        Quota
	Store        *templatestore.Store
	Tokens       *token.Signer
	Tasks        *task.Group
	Log          *slog.Logger
}

// Service implements the operations on templates.
type Service struct {
	Config
	builder *builder.Builder

	mu     sync.Mutex
	active map[string]*active // builds that wait or run
}

// active is a build in progress.
type active struct {
	cancel context.CancelCauseFunc
	done   chan struct{}
}

// New returns the service.
func New(cfg Config) *Service {
	s := &Service{Config: cfg, active: map[string]*active{}}
	s.builder = builder.New(builder.Config{Store: cfg.Store, Sandboxes: boxes{s}})
	return s
}

// MaxName is the maximum length of a name or tag.
const MaxName = 63

var (
	validName = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]*$`)
	validTag  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9_.-]*$`)
)

// DefaultTag is the tag of a template without one.
const DefaultTag = "default"

// Split separates NAME and TAG.
func Split(name string) (base, tag string, err error) {
	base, tag, tagged := strings.Cut(name, ":")
	if !tagged {
		tag = DefaultTag
	}
	if len(base) > MaxName || !validName.MatchString(base) {
		return "", "", op.Errorf(op.Invalid, "template name %.80q: use up to %d lower-case letters, digits, _, . and -", base, MaxName)
	}
	return base, tag, checkTag(tag)
}

func checkTag(tag string) error {
	if len(tag) > MaxName || !validTag.MatchString(tag) {
		return op.Errorf(op.Invalid, "tag %.80q: use up to %d letters, digits, _, . and -", tag, MaxName)
	}
	return nil
}

// ready returns an error if this hub cannot build templates.
func (s *Service) ready() error {
	switch a := s.Provider.Abilities(); {
	case s.Store == nil:
		return op.Errorf(op.Unsupported, "this hub has no state folder, so it stores no templates")
	case !a.Build || !a.Snapshot:
		return fault.CannotDo(a.Provider, "build templates")
	}
	return nil
}

// checkFree rejects names that already have a meaning.
func (s *Service) checkFree(name string) error {
	if slices.ContainsFunc(s.Environments.List(), func(e environment.Environment) bool { return e.Name == name }) {
		return op.Errorf(op.Conflict, "%q is an environment of this hub; choose another name", name)
	}
	return nil
}

// newID returns an ID in the form of E2B's: 20 lower-case letters and digits.
func newID() string {
	n := new(big.Int)
	var b [16]byte
	rand.Read(b[:])
	text := n.SetBytes(b[:]).Text(36)
	return (text + strings.Repeat("0", 20))[:20]
}

// newBuildID returns a UUID, which E2B's clients expect.
func newBuildID() string {
	var b [16]byte
	rand.Read(b[:])
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	x := hex.EncodeToString(b[:])
	return strings.Join([]string{x[:8], x[8:12], x[12:16], x[16:20], x[20:]}, "-")
}

// current returns the build of a template that a tag names.
func (s *Service) current(owner, name string) (templatestore.Template, templatestore.Build, error) {
	if s.Store == nil {
		return templatestore.Template{}, templatestore.Build{}, notFound(name)
	}
	base, tag, tagged := strings.Cut(name, ":")
	if !tagged {
		tag = DefaultTag
	}
	t, ok := s.Store.Template(owner, base)
	if !ok {
		return t, templatestore.Build{}, notFound(name)
	}
	b, ok := s.Store.Build(owner, t.Tags[tag])
	if !ok {
		return t, b, op.Errorf(op.NotFound, "template %q has no finished build with tag %q", t.Name, tag)
	}
	return t, b, nil
}

func notFound(name string) error {
	return op.Errorf(op.NotFound, "no template %.100q; list templates with GET /api/v1/template", name)
}

// programs is the folder of sudo and aio in sandboxes. A PATH of a template must include it.
const programs = "/run/bin"

// Find returns a template as an environment, with the disk that its sandboxes start from; empty: that of the
// environment.
func (s *Service) Find(owner, name string) (env environment.Environment, layer string, err error) {
	t, b, err := s.current(owner, name)
	if err != nil {
		return env, "", err
	}
	if b.Origin.Image == "" {
		if env, err = s.Environments.Find(b.Origin.Environment); err != nil {
			return env, "", err
		}
	}
	env.Name, env.Pool, env.Description = t.Name, 0, "Template"
	env.Image = cmp.Or(b.Origin.Image, env.Image)
	if b.Layer != "" {
		env.Image = "" // the disk includes it
	}
	vars := maps.Clone(env.Env)
	if vars == nil {
		vars = map[string]string{}
	}
	maps.Copy(vars, b.Config.Env)
	if p := vars["PATH"]; p != "" && !slices.Contains(strings.Split(p, ":"), programs) {
		vars["PATH"] = p + ":" + programs
	}
	env.Env, env.Workdir = vars, cmp.Or(b.Config.Workdir, env.Workdir)
	addStart(&env, b)
	most := s.Provider.Abilities()
	lower := func(n, most int64) int64 {
		if most > 0 {
			return min(n, most)
		}
		return n
	}
	if b.CPU > 0 {
		env.CPULimit = environment.Quantity(environment.FormatCPU(lower(b.CPU, most.MaxCPU)))
	}
	if b.Memory > 0 {
		env.MemoryLimit = environment.Quantity(environment.FormatSize(lower(b.Memory, most.MaxMemory>>20<<20)))
	}
	if b.Disk > 0 {
		env.DiskLimit = environment.Quantity(environment.FormatSize(b.Disk))
	}
	return env, b.Layer, nil
}

// sleeps is a ready command that only waits. E2B's clients add it to start commands, because E2B waits once, at the
// build; here each create would wait.
var sleeps = regexp.MustCompile(`^\s*sleep\s+[0-9.]+[smh]?\s*$`)

// startScript runs the start command in the background and waits for the ready command.
const startScript = `mkdir -p "$HOME/.cache" && { setsid /bin/sh -lc "$COVE_START" < /dev/null >> "$HOME/.cache/start.log" 2>&1 & }
[ -n "$COVE_READY" ] || exit 0
n=0
until /bin/sh -lc "$COVE_READY" > /dev/null 2>&1; do
	n=$((n + 1))
	[ $n -lt 120 ] || { echo "the ready command of the template did not succeed in a minute" >&2; tail "$HOME/.cache/start.log" >&2; exit 1; }
	sleep 0.5
done`

// addStart makes sandboxes run the start command before they are ready.
func addStart(env *environment.Environment, b templatestore.Build) {
	start, ready := b.Recipe.Start, b.Recipe.Ready
	if start == "" {
		return
	}
	if sleeps.MatchString(ready) {
		ready = ""
	}
	env.Env["COVE_START"], env.Env["COVE_READY"] = start, ready
	script := startScript
	if !b.Recipe.Login { // a login shell would replace the PATH of the template
		script = strings.ReplaceAll(script, "/bin/sh -lc", "/bin/sh -c")
	}
	env.Env["RUN_HOOK_PRE_SERVICES"], env.Env["RUN_HOOKS_STRICT"] = script, "true"
}

// Begin removes what an earlier hub has left behind, and counts what is stored.
func (s *Service) Begin(ctx context.Context) {
	if s.Store == nil {
		return
	}
	s.Store.Files(func(owner string, f templatestore.File) { s.Quota.CountDisk(uploadDisk(owner, f.Hash), f.Size) })
	list, err := s.Provider.List(ctx, sandbox.Filter{})
	if err != nil {
		s.Log.Warn("cannot list the sandboxes of interrupted builds", "error", err)
	}
	for _, sb := range list {
		if sb.Spec.Annotations[annotationBuild] != "" {
			s.Sandboxes.Discard(ctx, sb.ID)
		}
	}
	p, ok := s.Provider.(sandbox.Snapshotter)
	if !ok || !s.Provider.Abilities().Build || !s.Store.Complete() {
		return
	}
	layers, err := p.Snapshots(ctx, "")
	if err != nil {
		s.Log.Warn("cannot list the layers of templates", "error", err)
	}
	for _, l := range layers {
		if l.Layer && !s.Store.Knows(l.Owner, l.Name) {
			s.deleteLayer(ctx, p, l.Owner, l.Name)
		}
	}
}

func uploadDisk(owner, hash string) usage.Disk {
	return usage.Disk{Kind: "upload", Owner: owner, Name: hash}
}

func (s *Service) deleteLayer(ctx context.Context, p sandbox.Snapshotter, owner, id string) {
	if err := p.DeleteSnapshot(ctx, owner, id); err != nil {
		s.Log.Warn("cannot delete a layer", "owner", owner, "layer", id, "error", err)
		return
	}
	s.Quota.FreeDisk(usage.Disk{Kind: "snapshot", Owner: owner, Name: id})
}

// How long layers that no template needs, and uploads, are kept after their last use.
const (
	keepLayers = 7 * 24 * time.Hour
	keepFiles  = 24 * time.Hour
)

// Sweep removes layers and uploads that have not been used for long.
func (s *Service) Sweep(ctx context.Context) {
	p, ok := s.Provider.(sandbox.Snapshotter)
	if s.Store == nil || !ok {
		return
	}
	for owner, ids := range s.Store.Unused(time.Now().Add(-keepLayers)) {
		s.dropLayers(ctx, p, owner, ids)
	}
	gone, err := s.Store.SweepFiles(time.Now().Add(-keepFiles))
	if err != nil {
		s.Log.Warn("cannot remove uploaded files of builds", "error", err)
	}
	for _, f := range gone {
		s.Quota.FreeDisk(uploadDisk(f[0], f[1]))
	}
}

// dropLayers removes records before disks: a disk without a record is removed at the next start.
func (s *Service) dropLayers(ctx context.Context, p sandbox.Snapshotter, owner string, ids []string) {
	for _, id := range ids {
		if err := s.Store.DropLayer(owner, id); err != nil {
			s.Log.Warn("cannot remove the record of a layer", "owner", owner, "layer", id, "error", err)
			continue
		}
		s.deleteLayer(ctx, p, owner, id)
	}
}

// owner is the owner whose templates a call sees.
func (s *Service) owner(ctx context.Context) (string, error) {
	return caller.Owner(ctx), s.ready()
}
