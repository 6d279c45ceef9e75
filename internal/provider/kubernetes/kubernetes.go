// Package kubernetes runs sandboxes as Pods of a Kubernetes cluster. The hub's own server is
// injected into any image, read-only.
//
// A Pod has no network but one port, at which only the holder of the hub's key is let in: the
// hub reaches ports inside through it, and takes the outgoing connections of programs inside to
// its egress proxy. So nothing inside can reach other Pods, the API server or the node.
//
// It owns the objects with its label in one namespace. The record of a sandbox is a Secret,
// since a spec holds secrets and can be larger than annotations may be, and since it outlives
// the Pod; everything else belongs to that Secret, so the cluster removes what we cannot. It
// refuses privileges, host paths and the host's namespaces.
package kubernetes

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/access"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// How the hub reaches Pods.
const (
	ReachPod = "pod" // by their addresses, from within the cluster
	ReachAPI = "api" // by port forwarding of the API server
)

// Config says where and how sandboxes run. Zero fields have defaults, except Dir, Access,
// Namespace and Programs.
type Config struct {
	Dir       string // holds the identity of this hub
	Access    Access
	Namespace string
	// TenantNamespaces are the namespaces of owners that have one of their own.
	TenantNamespaces map[string]string
	// Name tells hubs of one namespace apart.
	Name string
	// Reach is ReachPod, the default, or ReachAPI.
	Reach string
	// Programs is an image with cove-container, and beside it the other programs of the hub.
	Programs string
	// Installer is the path of cove-container in that image.
	Installer string
	// Command runs in sandboxes whose spec has none.
	Command []string
	// Env is part of every sandbox's environment; the spec's takes precedence.
	Env map[string]string
	// Image is that of specs without one.
	Image       string
	PullSecrets []string
	// Defaults are the resources of specs that leave them open.
	Defaults sandbox.Resources
	// RuntimeClass is that of specs without isolation; RuntimeClasses are those that specs may
	// name as isolation.
	RuntimeClass   string
	RuntimeClasses []string
	// UserNamespaces maps the users of a Pod to others of the node.
	UserNamespaces bool
	// Root lets programs inside become root, which the Pod Security level "restricted" forbids.
	Root bool
	// Seccomp is a profile in the kubelet's folder; empty means that of the container runtime.
	Seccomp string
	// Persistent keeps the home of every sandbox in a PersistentVolumeClaim.
	Persistent bool
	// StorageClass is that of claims; empty means the cluster's default.
	StorageClass string
	// SharedVolumes makes volumes usable by several sandboxes on different nodes.
	SharedVolumes bool
	VolumeSize    int64
	// Snapshots is the store of snapshots, as archives of disks; without an endpoint there is none.
	Snapshots Store
	// SnapshotClass is a VolumeSnapshotClass for snapshots of persistent homes instead.
	SnapshotClass string

	ReadyTimeout    time.Duration // of specs that have none
	ScheduleTimeout time.Duration // how long a cluster may find no node
	StopGrace       time.Duration // from SIGTERM to SIGKILL
	LeaseTime       time.Duration // after which another hub may take over
	Log             *slog.Logger  `json:"-"`
}

func (c *Config) fill() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return errors.New("kubernetes provider: an absolute Dir is required")
	case c.Programs == "":
		return errors.New("kubernetes provider: an image with the hub's programs is required")
	case c.Snapshots.Endpoint == "" && c.Snapshots.Bucket != "":
		return errors.New("kubernetes provider: a snapshot bucket without kubernetes_snapshot_endpoint")
	case c.SnapshotClass != "" && c.Snapshots.Endpoint != "":
		return errors.New("kubernetes provider: kubernetes_snapshot_class and kubernetes_snapshot_endpoint exclude " +
			"each other: snapshots are VolumeSnapshots, or archives in an S3-compatible store; remove one")
	case c.SnapshotClass != "" && !c.Persistent:
		return errors.New("kubernetes provider: kubernetes_snapshot_class takes snapshots of persistent homes: set " +
			"kubernetes_disk to persistent, or use an S3-compatible store (kubernetes_snapshot_endpoint)")
	case c.Reach != "" && c.Reach != ReachPod && c.Reach != ReachAPI:
		return fmt.Errorf("kubernetes provider: reach %q: use %s or %s", c.Reach, ReachPod, ReachAPI)
	}
	c.Name, c.Reach = cmp.Or(c.Name, "cove"), cmp.Or(c.Reach, ReachPod)
	c.Installer = cmp.Or(c.Installer, "/usr/local/lib/cove/cove-container")
	names := map[string]string{"name": c.Name, "namespace": c.Namespace}
	for owner, namespace := range c.TenantNamespaces {
		names[fmt.Sprintf("namespace of tenant %q", owner)] = namespace
	}
	for what, value := range names {
		if err := sandbox.CheckName(value); err != nil {
			return fmt.Errorf("kubernetes provider: %s: %w", what, err)
		}
	}
	c.Snapshots.Prefix = strings.Trim(cmp.Or(c.Snapshots.Prefix, c.Namespace+"/"+c.Name), "/") + "/"
	def := func(v *int64, d int64) { *v = cmp.Or(*v, d) }
	def(&c.Defaults.MemoryLimit, 1<<30)
	def(&c.Defaults.Disk, 10<<30)
	def(&c.Defaults.CPU, 20) // of 1000: a node has room for as many Pods as the kubelet allows
	def(&c.VolumeSize, 10<<30)
	def((*int64)(&c.ReadyTimeout), int64(2*time.Minute))
	def((*int64)(&c.ScheduleTimeout), int64(30*time.Second))
	def((*int64)(&c.StopGrace), int64(10*time.Second))
	def((*int64)(&c.LeaseTime), int64(15*time.Second))
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}

// Access is how to reach an API server, and as whom.
type Access = access.Access

// InCluster returns the access of the Pod that we run in. Host and port are those of the variables
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func InCluster(host, port string) (Access, error) { return access.InCluster(host, port) }

// ReadKubeconfig returns the access of a context of a kubeconfig file; empty is its current one.
func ReadKubeconfig(path, context string) (Access, error) {
	return access.ReadKubeconfig(path, context)
}

// Store is an S3-compatible store, and a place in it.
type Store = bucket.Config

// session is the connection to the cluster.
type session struct {
	cfg    Config
	client *client // for the namespace of the hub's own objects
	hub    identity
}

// of returns the client for the namespace of an owner.
func (s *session) of(owner string) *client {
	if own, ok := s.cfg.TenantNamespaces[owner]; ok {
		return s.client.In(own)
	}
	return s.client
}

// places returns a client for each namespace of sandboxes, the common one first.
func (s *session) places() []*client {
	all := []*client{s.client}
	for _, namespace := range slices.Sorted(maps.Values(s.cfg.TenantNamespaces)) {
		if namespace != all[len(all)-1].Namespace && namespace != s.cfg.Namespace {
			all = append(all, s.client.In(namespace))
		}
	}
	return all
}

// Kind is the kind of isolation of Pods without a RuntimeClass.
const Kind = "container"

// Provider implements sandbox.Provider.
type Provider struct {
	*session
	runner  *runner
	volumes *volumes
	*disks

	lock  *os.File
	lease *holder
	table *sandbox.Table[*box]
	pace  pace

	once sync.Once
	end  error
}

var _ interface {
	sandbox.Provider
	sandbox.Logger
	sandbox.Stater
	sandbox.Egresser
	sandbox.Volumer
	sandbox.Placer
	sandbox.Snapshotter
	sandbox.Forker
} = (*Provider)(nil)

// openTime bounds the wait for an API server that does not answer.
const openTime = 30 * time.Second

// Open takes hold of the hub's objects in the namespace, adopts the sandboxes that exist and removes
// what is unfinished.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.fill(); err != nil {
		return nil, err
	}
	c, err := api.Connect(cfg.Access, cfg.Namespace)
	if err != nil {
		return nil, err
	}
	s := &session{cfg: cfg, client: c}
	p := &Provider{session: s, table: sandbox.NewTable[*box](), volumes: &volumes{session: s}}
	p.runner = &runner{session: s, volumes: p.volumes}
	p.disks = &disks{p: p}
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Provider) open(ctx context.Context) error {
	if err := os.MkdirAll(p.cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	var err error
	if p.lock, err = lockFolder(p.cfg.Dir); err != nil {
		return err
	}
	me, err := readIdentity(filepath.Join(p.cfg.Dir, "identity"))
	if err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, openTime)
	defer cancel()
	p.lease = &holder{session: p.session, me: me}
	if err := p.lease.acquire(first); err != nil {
		return p.explainOpen(err, p.client)
	}
	if p.hub, err = p.loadIdentity(first); err != nil {
		return p.explainOpen(err, p.client)
	}
	if err := p.openCopies(); err != nil {
		return err
	}
	for _, place := range p.places() {
		if err := p.ensurePolicy(first, place); err != nil {
			return p.explainOpen(err, place)
		}
		version, err := p.adopt(ctx, place)
		if err != nil {
			return p.explainOpen(err, place)
		}
		p.table.Go(func(ctx context.Context) { p.follow(ctx, place, version) })
	}
	p.table.Go(func(ctx context.Context) { p.lease.renew(ctx, p.lost) })
	p.table.Go(p.disks.load)
	return nil
}

// explainOpen says what to do about an API server that does not let us in.
func (s *session) explainOpen(err error, place *client) error {
	switch {
	case errors.Is(err, sandbox.ErrInUse):
		return err
	case api.HasCode(err, 401):
		return fmt.Errorf("the API server %s does not accept the credentials: %w", s.cfg.Access.Server, err)
	case api.HasCode(err, 403):
		return fmt.Errorf("%w; grant the role of deploy/kubernetes/install.yaml in namespace %q", err, place.Namespace)
	case api.IsMissing(err):
		return fmt.Errorf("%w; create the namespace %q", err, place.Namespace)
	}
	return fmt.Errorf("reach the API server %s: %w", s.cfg.Access.Server, err)
}

// lockFolder makes sure that no other process uses the folder.
func lockFolder(dir string) (*os.File, error) {
	f, err := lockfile.Open(filepath.Join(dir, "lock"))
	if errors.Is(err, lockfile.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", sandbox.ErrInUse, dir)
	}
	return f, err
}

// readIdentity returns the name by which this state folder holds the lease.
func readIdentity(path string) (string, error) {
	if data, err := os.ReadFile(path); err == nil && len(data) > 0 {
		return string(data), nil
	}
	id := sandbox.NewID()
	err := atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.WriteString(id)
		return err
	})
	return id, err
}

// lost ends a provider whose objects another hub has taken over.
func (p *Provider) lost() {
	p.cfg.Log.Error("another hub has taken over the sandboxes; this one must be restarted", "lease", p.lease.name())
	go p.table.Close(sandbox.ErrInUse) // which waits for us
}

// Close implements sandbox.Provider.
func (p *Provider) Close() error {
	p.once.Do(func() {
		p.table.Close(sandbox.ErrClosed)
		p.table.Each(func(b *box) { b.close() })
		if p.lease != nil {
			p.lease.release()
		}
		p.client.HTTP.CloseIdleConnections()
		if p.copies != nil {
			p.copies.Close()
		}
		if p.lock != nil {
			p.end = lockfile.Release(p.lock)
		}
	})
	return p.end
}

// Abilities implements sandbox.Provider.
func (p *Provider) Abilities() sandbox.Abilities {
	a := sandbox.Abilities{Provider: "kubernetes", Stop: p.cfg.Persistent, AnyPort: true, Image: true, Volume: true,
		Egress: true, Logs: true, Stats: true,
		Isolation: p.isolation(), Limits: []string{"cpu", "disk", "files", "memory"}}
	a.Tiers = []string{"container: programs reach neither the node nor other Pods and have no network but the " +
		"hub's proxy, if the cluster enforces NetworkPolicies; they share the node's kernel, so a bug in it that they can reach is a way out"}
	for _, class := range p.cfg.RuntimeClasses {
		a.Tiers = append(a.Tiers, class+": as container, with what the RuntimeClass of this name adds")
	}
	a.Missing = []string{
		"a Pod cannot be paused: use stop, or keep it running",
		"the number of processes is limited by the kubelet (podPidsLimit) alone",
		"exports: the cluster does not hand out the image of a Pod",
		"the size of a volume is what was reserved for it",
	}
	if a.Snapshot = p.copies != nil; a.Snapshot {
		a.Fork = true
		a.Missing = append(a.Missing, p.copies.limits())
	} else {
		a.Missing = append(a.Missing, "snapshots and forks: set kubernetes_snapshot_class to a VolumeSnapshotClass "+
			"for those of persistent homes, or kubernetes_snapshot_endpoint and kubernetes_snapshot_bucket to keep "+
			"the disks of sandboxes in an S3-compatible store")
	}
	if p.cfg.Persistent {
		a.Missing = append(a.Missing, "a stopped sandbox keeps its home and its volumes; the rest of its disk is lost")
	} else {
		a.Missing = append(a.Missing, "a sandbox cannot be stopped: set kubernetes_disk to persistent to keep homes in PersistentVolumeClaims")
	}
	if !p.cfg.Root {
		a.Missing = append(a.Missing, "programs inside cannot become root (sudo): set kubernetes_root, which needs "+
			"the Pod Security level baseline")
	} else if !p.cfg.UserNamespaces {
		a.Missing = append(a.Missing, "root inside a sandbox is root of the node without most of its capabilities; "+
			"set kubernetes_user_namespaces to map it to another user")
	}
	slices.Sort(a.Missing)
	return a
}

// isolation lists what specs may ask for, the default first.
func (s *session) isolation() []string {
	kinds := append([]string{Kind}, s.cfg.RuntimeClasses...)
	if s.cfg.RuntimeClass != "" {
		kinds = append([]string{s.cfg.RuntimeClass}, s.cfg.RuntimeClasses...)
	}
	slices.Sort(kinds[1:])
	return slices.Compact(kinds)
}

// SamePlace implements sandbox.Placer: a Pod cannot move to another namespace.
func (s *session) SamePlace(a, b string) bool { return s.of(a).Namespace == s.of(b).Namespace }

// Get implements sandbox.Provider.
func (p *Provider) Get(_ context.Context, id string) (sandbox.Sandbox, error) { return p.table.Get(id) }

// List implements sandbox.Provider.
func (p *Provider) List(_ context.Context, f sandbox.Filter) ([]sandbox.Sandbox, error) {
	return p.table.List(f)
}

// Watch implements sandbox.Provider.
func (p *Provider) Watch(ctx context.Context) (<-chan sandbox.Event, error) {
	return p.table.Watch(ctx)
}

// shorten makes a label of a text that a label cannot hold.
func shorten(sum [32]byte) string { return hex.EncodeToString(sum[:8]) }
