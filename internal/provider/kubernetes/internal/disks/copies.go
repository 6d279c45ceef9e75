package disks

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/archive"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/connect"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Copies holds copies of disks, and the catalog of the snapshots that are made from them.
type Copies struct {
	*catalog.Catalog
	copier
	connector *connect.Connector
}

// copier copies disks.
type copier interface {
	// Cut copies the current disk of a sandbox and pins the copy, which can be used after Await.
	Cut(ctx context.Context, b *box.Box, src *catalog.Source) error
	// Await returns when a copy can be used. It fails if the copy does not exist.
	Await(ctx context.Context, src *catalog.Source) error
	// Fill fills the disk of a Pod that waits for it.
	Fill(ctx context.Context, b *box.Box) error
	// Limits describes what a copy lacks and costs.
	Limits() string
	String() string
	Close()
}

// Open opens the store that the settings name. Without one, it returns nil.
func Open(s *cluster.Session, creator *create.Creator, connector *connect.Connector) (*Copies, error) {
	switch {
	case s.Config.SnapshotClass != "":
		store := NewHomeSnapshots(s)
		return &Copies{store.Catalog, store, connector}, nil
	case s.Config.Snapshots.Endpoint != "":
		store, err := archive.New(archive.Config{Bucket: s.Config.Snapshots, Hub: s.Hub.Pin, Log: s.Config.Log})
		if err != nil {
			return nil, err
		}
		return &Copies{store.Catalog, &archives{store, creator, connector}, connector}, nil
	}
	return nil, nil
}

// Load reads the catalog. Only snapshots require it, so an error is logged.
func (c *Copies) Load(ctx context.Context) {
	if err := c.Ready(ctx); err != nil && ctx.Err() == nil {
		c.connector.Config.Log.Error("cannot use the snapshot store", "store", c.String(), "error", err)
	}
}

// Take copies the disk of a sandbox and pins the copy. It can be used after Await.
func (c *Copies) Take(ctx context.Context, b *box.Box) (src catalog.Source, err error) {
	sb := b.Record.Sandbox
	if err := context.Cause(ctx); err != nil {
		return src, err
	}
	if b.Record.Restore != nil {
		return src, fmt.Errorf("%w: the disk of sandbox %q is not restored yet; start it first", sandbox.ErrState, sb.Spec.Name)
	}
	src = catalog.Source{From: b.Record.From, Named: cmp.Or(sb.Spec.Image, b.Record.Named),
		Base: cmp.Or(b.Record.Base, sb.Spec.Image, b.Config.Image)}
	if sb.State == sandbox.Running {
		c.connector.WaitReported(ctx, b.Record.PodName())
		p, _ := c.connector.Pods.Get(b.Record.PodName())
		src.Pin = p.ImageDigest()
	}
	return src, c.Cut(ctx, b, &src)
}

// FindFor finds a snapshot for a sandbox in a namespace and pins its copy.
func (c *Copies) FindFor(ctx context.Context, owner, name string, ns *api.Client) (catalog.Entry, error) {
	e, err := c.Find(ctx, owner, name)
	if err != nil {
		return e, err
	}
	if err = c.Await(ctx, &e.Source); err == nil {
		err = CheckNamespace(e.Source, ns)
	}
	if err != nil {
		c.Release(ctx, e.Source.Key())
	}
	return e, err
}

// CheckNamespace returns ErrInvalid for a copy that cannot be used in a namespace.
func CheckNamespace(src catalog.Source, ns *api.Client) error {
	if namespace, _, ok := strings.Cut(src.Volume, "/"); ok && namespace != ns.Namespace {
		return fmt.Errorf("%w: a snapshot in namespace %q cannot be used in %q, the namespace of another tenant",
			sandbox.ErrInvalid, namespace, ns.Namespace)
	}
	return nil
}
