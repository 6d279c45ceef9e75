// Package volumesnapshot stores copies of volumes as VolumeSnapshots, which the driver of the volume creates. An
// annotation is the note of a snapshot.
//
// It owns the VolumeSnapshots with the labels of its hub and removes those that belong to no snapshot. It does not
// change other VolumeSnapshots.
package volumesnapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// API of VolumeSnapshots.
const (
	Group   = "snapshot.storage.k8s.io"
	version = Group + "/v1"
	kind    = "apis/" + version + "/volumesnapshots"
	classes = "apis/" + version + "/volumesnapshotclasses"
)

// noteSnapshot is the annotation with the note of a snapshot.
const noteSnapshot = "io.cove.snapshot"

// Config configures a store.
type Config struct {
	Class      string        // a VolumeSnapshotClass
	Namespaces []*api.Client // one client each
	// Labels are the labels of all VolumeSnapshots of the hub; Owner returns the additional labels of an owner.
	Labels map[string]string
	Owner  func(owner string) map[string]string
	Log    *slog.Logger
}

// Store creates VolumeSnapshots.
type Store struct {
	*catalog.Catalog
	keeper
}

// New returns a store. It sends no request.
func New(cfg Config) *Store {
	k := keeper{cfg}
	return &Store{catalog.New(k, cfg.Log), k}
}

func (s *Store) String() string { return "VolumeSnapshotClass " + s.cfg.Class }

// object is a VolumeSnapshot, with the fields that are set or read.
type object struct {
	api.Object
	Spec struct {
		Class  string `json:"volumeSnapshotClassName,omitempty"`
		Source struct {
			Claim string `json:"persistentVolumeClaimName,omitempty"`
		} `json:"source"`
	} `json:"spec"`
	Status struct {
		CreationTime string `json:"creationTime,omitempty"` // the copy does not depend on later writes
		ReadyToUse   bool   `json:"readyToUse,omitempty"`
		RestoreSize  string `json:"restoreSize,omitempty"`
		Error        *struct {
			Message string `json:"message"`
		} `json:"error,omitempty"`
	} `json:"status,omitzero"`
}

// Timeouts of a copy.
const (
	// cutTimeout is how long a driver may take until the volume may be written again.
	cutTimeout = 10 * time.Minute
	// readyTimeout is how long it may take until the copy can be used; some drivers upload it first.
	readyTimeout = time.Hour
	// errorTime is how long an error must persist, because controllers also report errors that a retry resolves.
	errorTime = 5 * time.Second
	minPause  = 50 * time.Millisecond
	maxPause  = 500 * time.Millisecond
)

// Cut copies the current content of a volume and pins the copy. When it returns, the volume may be written again;
// the copy can be used after Await.
func (s *Store) Cut(ctx context.Context, ns *api.Client, owner, claim string) (key string, err error) {
	name := sandbox.NewID()
	key = ns.Namespace + "/" + name
	labels := maps.Clone(s.cfg.Labels)
	maps.Copy(labels, s.cfg.Owner(owner))
	o := object{Object: api.NewObject(version, "VolumeSnapshot",
		api.Meta{Name: name, Labels: labels, Annotations: map[string]string{api.NoteCreated: time.Now().UTC().Format(time.RFC3339Nano)}})}
	o.Spec.Class, o.Spec.Source.Claim = s.cfg.Class, claim
	s.Pin(key) // before it exists, so that a concurrent load does not remove it
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err = s.explain(ns.Create(call, kind, o, nil)); err == nil {
		_, err = s.wait(ctx, ns, name, cutTimeout, func(o object) bool { return o.Status.CreationTime != "" })
	}
	if err != nil {
		s.Release(ctx, key)
		return "", err
	}
	return key, nil
}

// Await waits until a copy can be used, and returns the minimum size of a volume created from it.
func (s *Store) Await(ctx context.Context, key string) (size int64, err error) {
	ns, name, err := s.find(key)
	if err != nil {
		return 0, err
	}
	o, err := s.wait(ctx, ns, name, readyTimeout, func(o object) bool { return o.Status.ReadyToUse })
	return api.Quantity(o.Status.RestoreSize), err
}

// wait waits until done returns true for a VolumeSnapshot.
func (s *Store) wait(ctx context.Context, ns *api.Client, name string, timeout time.Duration,
	done func(object) bool) (o object, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout,
		fmt.Errorf("%w: the driver has not finished VolumeSnapshot %q in %v", sandbox.ErrUnavailable, name, timeout))
	defer cancel()
	var failing time.Time
	for pause := minPause; ; pause = min(pause*5/4, maxPause) {
		o = object{}
		err := ns.Get(ctx, kind, name, &o)
		switch {
		case ctx.Err() != nil:
			return o, context.Cause(ctx)
		case api.IsMissing(err) || err == nil && o.Metadata.DeletionTimestamp != nil:
			return o, fmt.Errorf("%w: VolumeSnapshot %q was removed externally", sandbox.ErrUnavailable, name)
		case err != nil:
			return o, s.explain(err)
		case done(o):
			return o, nil
		case o.Status.Error == nil:
			failing = time.Time{}
		case failing.IsZero():
			failing = time.Now()
		case time.Since(failing) > errorTime:
			return o, fmt.Errorf("%w: VolumeSnapshot %q: %s", sandbox.ErrUnavailable, name, o.Status.Error.Message)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// keeper stores copies and notes as VolumeSnapshots.
type keeper struct{ cfg Config }

// find returns the namespace and name of a copy.
func (k keeper) find(key string) (ns *api.Client, name string, err error) {
	namespace, name, _ := strings.Cut(key, "/")
	for _, ns := range k.cfg.Namespaces {
		if ns.Namespace == namespace {
			return ns, name, nil
		}
	}
	return nil, "", fmt.Errorf("%w: namespace %q is not configured for this hub", sandbox.ErrState, namespace)
}

// explain adds the error code for callers, and advice, to an error of the API server.
func (k keeper) explain(err error) error {
	var e *api.Error
	switch {
	case err == nil:
		return nil
	case api.IsMissing(err):
		return fmt.Errorf("%w: the cluster does not support VolumeSnapshots (%s): install the definitions and the "+
			"snapshot-controller of kubernetes-csi/external-snapshotter, or replace kubernetes_snapshot_class with "+
			"the settings of an S3-compatible store: %w", sandbox.ErrUnavailable, version, err)
	case api.HasCode(err, http.StatusForbidden) && strings.Contains(err.Error(), "exceeded quota"):
		return fmt.Errorf("%w: %w", sandbox.ErrExhausted, err)
	case api.HasCode(err, http.StatusForbidden):
		return fmt.Errorf("%w: %w; grant the role of deploy/kubernetes/volumesnapshots.yaml", sandbox.ErrUnavailable, err)
	case errors.As(err, &e):
		return fmt.Errorf("%w: %w", sandbox.ErrUnavailable, err)
	}
	return err
}

// Check checks that the class exists. If the hub may not read classes, known is false and err is nil.
func (k keeper) Check(ctx context.Context) (known bool, err error) {
	ns := k.cfg.Namespaces[0]
	_, err = ns.Do(ctx, api.Call{Method: http.MethodGet, URL: ns.Server.JoinPath(classes, k.cfg.Class).String()}, nil)
	switch {
	case api.HasCode(err, http.StatusForbidden):
		return false, nil
	case api.IsMissing(err):
		return true, fmt.Errorf("%w: no VolumeSnapshotClass %q; set kubernetes_snapshot_class to a class listed by kubectl "+
			"get volumesnapshotclass", sandbox.ErrUnavailable, k.cfg.Class)
	}
	return true, err
}

// Load implements catalog.Keeper.
func (k keeper) Load(ctx context.Context) (notes []catalog.Entry, copies []string, err error) {
	selector := []string{}
	for name, value := range k.cfg.Labels {
		selector = append(selector, name+"="+value)
	}
	for _, ns := range k.cfg.Namespaces {
		all, _, err := api.ListAll[object](ctx, ns, kind, strings.Join(selector, ","))
		if err != nil {
			return nil, nil, k.explain(err)
		}
		for _, o := range all {
			key := ns.Namespace + "/" + o.Metadata.Name
			if o.Metadata.DeletionTimestamp == nil && o.Metadata.Annotations[noteSnapshot] != "" {
				e, err := k.readNote(key, o)
				if err != nil {
					k.cfg.Log.Error("cannot read the note of a VolumeSnapshot; ignoring it", "snapshot", key, "error", err)
					continue
				}
				notes = append(notes, e)
			}
			copies = append(copies, key)
		}
	}
	if _, err := k.Check(ctx); err != nil { // existing snapshots do not require the class
		k.cfg.Log.Error("cannot take snapshots", "error", err)
	}
	return notes, copies, nil
}

// readNote reads and checks a note.
func (k keeper) readNote(key string, o object) (e catalog.Entry, err error) {
	if err := json.Unmarshal([]byte(o.Metadata.Annotations[noteSnapshot]), &e); err != nil {
		return e, err
	}
	for name, value := range k.cfg.Owner(e.Snapshot.Owner) {
		if o.Metadata.Labels[name] != value {
			return e, errors.New("the labels belong to another owner")
		}
	}
	if e.Source.Volume != key {
		return e, fmt.Errorf("the note belongs to %q", e.Source.Volume)
	}
	return e, nil
}

// WriteNote implements catalog.Keeper.
func (k keeper) WriteNote(ctx context.Context, e catalog.Entry) error {
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return k.annotate(ctx, e, string(data))
}

// RemoveNote implements catalog.Keeper.
func (k keeper) RemoveNote(ctx context.Context, e catalog.Entry) error {
	err := k.annotate(ctx, e, nil)
	if api.IsMissing(err) {
		return nil
	}
	return err
}

func (k keeper) annotate(ctx context.Context, e catalog.Entry, note any) error {
	ns, name, err := k.find(e.Source.Volume)
	if err != nil {
		return err
	}
	change := map[string]any{"metadata": map[string]any{"annotations": map[string]any{noteSnapshot: note}}}
	if err = ns.Patch(ctx, kind, []string{name}, api.MergePatch, change, nil); api.IsMissing(err) {
		return fmt.Errorf("%w: VolumeSnapshot %q was removed externally: %w", sandbox.ErrUnavailable, name, err)
	}
	return k.explain(err)
}

// RemoveCopy implements catalog.Keeper. The cluster keeps a VolumeSnapshot until volumes that are being created from
// it exist.
func (k keeper) RemoveCopy(ctx context.Context, key string) error {
	ns, name, err := k.find(key)
	if err != nil {
		return err
	}
	return k.explain(ns.Remove(ctx, kind, name, -1))
}
