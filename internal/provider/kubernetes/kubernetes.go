// Package kubernetes runs sandboxes as Pods of a Kubernetes cluster. An init container adds the hub's server to
// any image, read-only.
//
// The only open port of a Pod accepts only the holder of the hub's key. Through it, the hub reaches ports of the
// sandbox and carries outgoing connections to its egress proxy. Programs inside cannot reach other Pods, the API
// server or the node.
//
// The package owns the objects with its label in its namespaces. A Secret holds the record of a sandbox, because
// a spec contains secrets, can exceed the size limit of annotations, and outlives the Pod. The Secret owns all other
// objects of the sandbox, so the cluster removes those that the hub cannot. Privileged containers, host paths and
// host namespaces are never used.
package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/filesystem/lockfile"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/access"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/connect"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/disks"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/watch"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Values of Config.Reach.
const (
	ReachPod = cluster.ReachPod
	ReachAPI = cluster.ReachAPI
)

// Port is the port of a Pod on which it serves the tunnel.
const Port = create.Port

// Config configures a provider. Dir, Access, Namespace and Programs are required; other fields have defaults.
type Config = cluster.Config

// Store is an S3-compatible store, and a prefix in it.
type Store = bucket.Config

// Access is the address of an API server, with credentials.
type Access = access.Access

// InCluster returns the access of the current Pod. Host and port are the values of the variables
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func InCluster(host, port string) (Access, error) { return access.InCluster(host, port) }

// ReadKubeconfig returns the access of a context of a kubeconfig file; empty is its current context.
func ReadKubeconfig(path, context string) (Access, error) {
	return access.ReadKubeconfig(path, context)
}

// Provider implements sandbox.Provider.
type Provider struct {
	session   *cluster.Session
	creator   *create.Creator
	watcher   *watch.Watcher
	connector *connect.Connector
	volumes   *disks.Volumes
	*snapshots

	lock  *os.File
	lease *leaseHolder
	table *sandbox.Table[*box.Box]

	once sync.Once
	err  error // of Close
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

// openTimeout bounds the wait for an API server that does not answer.
const openTimeout = 30 * time.Second

// Open takes ownership of the hub's objects, adopts existing sandboxes and removes unfinished ones.
func Open(ctx context.Context, cfg Config) (*Provider, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	s, err := cluster.Connect(cfg)
	if err != nil {
		return nil, err
	}
	p := newProvider(s)
	if err := p.open(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func newProvider(s *cluster.Session) *Provider {
	p := &Provider{session: s, table: sandbox.NewTable[*box.Box]()}
	p.watcher = &watch.Watcher{Session: s, Cache: &watch.Cache{}, Changed: p.refreshLater, Listed: p.refreshAll}
	p.creator = &create.Creator{Session: s, Pods: p.watcher.Cache}
	p.volumes = &disks.Volumes{Session: s, Sandboxes: func() ([]sandbox.Sandbox, error) { return p.table.List(sandbox.Filter{}) }}
	p.connector = &connect.Connector{Session: s, Pods: p.watcher.Cache, Provisioning: p.volumes.Provisioning}
	p.snapshots = &snapshots{p: p}
	return p
}

func (p *Provider) open(ctx context.Context) error {
	dir := p.session.Config.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create state folder: %w", err)
	}
	var err error
	if p.lock, err = lockFolder(dir); err != nil {
		return err
	}
	holder, err := readHolderID(filepath.Join(dir, "identity"))
	if err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	p.lease = &leaseHolder{Session: p.session, id: holder}
	if err := p.lease.acquire(first); err != nil {
		return explainOpen(err, p.session.Client)
	}
	if err := p.session.LoadIdentity(first); err != nil {
		return explainOpen(err, p.session.Client)
	}
	if p.copies, err = disks.Open(p.session, p.creator, p.connector); err != nil {
		return err
	}
	for _, ns := range p.session.Namespaces() {
		if err := ensurePolicy(first, p.session, ns); err != nil {
			return explainOpen(err, ns)
		}
		version, err := p.adopt(ctx, ns)
		if err != nil {
			return explainOpen(err, ns)
		}
		p.table.Go(func(ctx context.Context) { p.watcher.Follow(ctx, ns, version) })
	}
	p.table.Go(func(ctx context.Context) { p.lease.renew(ctx, p.leaseLost) })
	if p.copies != nil {
		p.table.Go(p.copies.Load)
	}
	return nil
}

// explainOpen adds advice to an error of the API server.
func explainOpen(err error, ns *api.Client) error {
	switch {
	case errors.Is(err, sandbox.ErrInUse):
		return err
	case api.HasCode(err, 401):
		return fmt.Errorf("the API server %s does not accept the credentials: %w", ns.Server, err)
	case api.HasCode(err, 403):
		return fmt.Errorf("%w; grant the role of deploy/kubernetes/install.yaml in namespace %q", err, ns.Namespace)
	case api.IsMissing(err):
		return fmt.Errorf("%w; create the namespace %q", err, ns.Namespace)
	}
	return fmt.Errorf("reach the API server %s: %w", ns.Server, err)
}

// lockFolder makes sure that no other process uses the state folder.
func lockFolder(dir string) (*os.File, error) {
	f, err := lockfile.Open(filepath.Join(dir, "lock"))
	if errors.Is(err, lockfile.ErrLocked) {
		return nil, fmt.Errorf("%w: %s", sandbox.ErrInUse, dir)
	}
	return f, err
}

// readHolderID returns the name with which this state folder holds the lease.
func readHolderID(path string) (string, error) {
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

// leaseLost closes a provider whose objects another hub has taken over.
func (p *Provider) leaseLost() {
	p.session.Config.Log.Error("another hub has taken over the sandboxes; restart this hub", "lease", p.lease.name())
	go p.table.Close(sandbox.ErrInUse) // it waits for the caller
}

// Close implements sandbox.Provider.
func (p *Provider) Close() error {
	p.once.Do(func() {
		p.table.Close(sandbox.ErrClosed)
		p.table.Each(func(b *box.Box) { b.Close() })
		if p.lease != nil {
			p.lease.release()
		}
		p.session.Client.HTTP.CloseIdleConnections()
		if p.copies != nil {
			p.copies.Close()
		}
		if p.lock != nil {
			p.err = lockfile.Release(p.lock)
		}
	})
	return p.err
}

// SamePlace implements sandbox.Placer: a Pod cannot move to another namespace.
func (p *Provider) SamePlace(a, b string) bool {
	return p.session.ForOwner(a).Namespace == p.session.ForOwner(b).Namespace
}

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
