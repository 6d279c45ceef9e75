// Package volumesnapshot keeps copies of volumes as VolumeSnapshots of a cluster, which the driver
// of the volume makes. An annotation of the
// object is the note of the snapshot.
//
// It owns the VolumeSnapshots with the labels of its hub, and removes those that belong to nobody. It does not touch the
// VolumeSnapshots of others.
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

// The API of VolumeSnapshots.
const (
	Group   = "snapshot.storage.k8s.io"
	version = Group + "/v1"
	kind    = "apis/" + version + "/volumesnapshots"
	classes = "apis/" + version + "/volumesnapshotclasses"
)

// noteSnapshot is the annotation that makes a VolumeSnapshot a snapshot.
const noteSnapshot = "io.cove.snapshot"

// Config says how snapshots are kept, and for whom.
type Config struct {
	Class      string        // a VolumeSnapshotClass
	Namespaces []*api.Client // one client each
	// Labels are those of all VolumeSnapshots of the hub; Owner returns those that tell owners apart.
	Labels map[string]string
	Owner  func(owner string) map[string]string
	Log    *slog.Logger
}

// Store keeps snapshots.
type Store struct {
	*catalog.Catalog
	keeper
}

// New returns a store. It does not connect.
func New(cfg Config) *Store {
	k := keeper{cfg}
	return &Store{catalog.New(k, cfg.Log), k}
}

func (s *Store) String() string { return "VolumeSnapshotClass " + s.cfg.Class }

// object is what we set and read of a VolumeSnapshot.
type object struct {
	api.Object
	Spec struct {
		Class  string `json:"volumeSnapshotClassName,omitempty"`
		Source struct {
			Claim string `json:"persistentVolumeClaimName,omitempty"`
		} `json:"source"`
	} `json:"spec"`
	Status struct {
		CreationTime string `json:"creationTime,omitempty"` // the volume may change from now on
		ReadyToUse   bool   `json:"readyToUse,omitempty"`
		RestoreSize  string `json:"restoreSize,omitempty"`
		Error        *struct {
			Message string `json:"message"`
		} `json:"error,omitempty"`
	} `json:"status,omitzero"`
}

// Bounds of a copy.
const (
	// cutTime is how long a driver may take until the volume may change again.
	cutTime = 10 * time.Minute
	// ReadyTime is how long it may take until the copy can be used, which may be until it was sent elsewhere.
	ReadyTime = time.Hour
	// errorTime is how long an error must last: controllers try again, and report also what succeeds the next time.
	errorTime = 5 * time.Second
	minPause  = 50 * time.Millisecond
	maxPause  = 500 * time.Millisecond
)

// Cut copies a volume as it is now and pins the copy. When it returns, the volume may change; the copy can be used after Await.
func (s *Store) Cut(ctx context.Context, place *api.Client, owner, claim string) (key string, err error) {
	name := sandbox.NewID()
	key = place.Namespace + "/" + name
	labels := maps.Clone(s.cfg.Labels)
	maps.Copy(labels, s.cfg.Owner(owner))
	o := object{Object: api.NewObject(version, "VolumeSnapshot",
		api.Meta{Name: name, Labels: labels, Annotations: map[string]string{api.NoteCreated: time.Now().UTC().Format(time.RFC3339Nano)}})}
	o.Spec.Class, o.Spec.Source.Claim = s.cfg.Class, claim
	s.Pin(key) // before it exists: who loads must not remove it
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err = s.explain(place.Create(call, kind, o, nil)); err == nil {
		_, err = s.wait(ctx, place, name, cutTime, func(o object) bool { return o.Status.CreationTime != "" })
	}
	if err != nil {
		s.Release(ctx, key)
		return "", err
	}
	return key, nil
}

// Await returns when a copy can be used, with the least size of a volume made of it.
func (s *Store) Await(ctx context.Context, key string) (size int64, err error) {
	place, name, err := s.find(key)
	if err != nil {
		return 0, err
	}
	o, err := s.wait(ctx, place, name, ReadyTime, func(o object) bool { return o.Status.ReadyToUse })
	return api.Quantity(o.Status.RestoreSize), err
}

// wait waits until a VolumeSnapshot is as far as it is wanted.
func (s *Store) wait(ctx context.Context, place *api.Client, name string, patience time.Duration,
	done func(object) bool) (o object, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, patience,
		fmt.Errorf("%w: the driver has not finished VolumeSnapshot %q in %v", sandbox.ErrUnavailable, name, patience))
	defer cancel()
	var failing time.Time
	for pause := minPause; ; pause = min(pause*5/4, maxPause) {
		o = object{}
		err := place.Get(ctx, kind, name, &o)
		switch {
		case ctx.Err() != nil:
			return o, context.Cause(ctx)
		case api.IsMissing(err) || err == nil && o.Metadata.DeletionTimestamp != nil:
			return o, fmt.Errorf("%w: VolumeSnapshot %q was removed by someone else", sandbox.ErrUnavailable, name)
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

// keeper keeps copies and notes as VolumeSnapshots.
type keeper struct{ cfg Config }

// find returns where a copy is.
func (k keeper) find(key string) (place *api.Client, name string, err error) {
	namespace, name, _ := strings.Cut(key, "/")
	for _, place := range k.cfg.Namespaces {
		if place.Namespace == namespace {
			return place, name, nil
		}
	}
	return nil, "", fmt.Errorf("%w: namespace %q is not one of the hub's any more", sandbox.ErrState, namespace)
}

// explain says what to do about a refusal.
func (k keeper) explain(err error) error {
	var e *api.Error
	switch {
	case err == nil:
		return nil
	case api.IsMissing(err):
		return fmt.Errorf("%w: the cluster has no VolumeSnapshots (%s): install the definitions and the "+
			"snapshot-controller of kubernetes-csi/external-snapshotter, or replace kubernetes_snapshot_class by "+
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

// Check returns what is wrong with the class. Not every hub may see classes: then it is nil, and known is false.
func (k keeper) Check(ctx context.Context) (known bool, err error) {
	place := k.cfg.Namespaces[0]
	_, err = place.Do(ctx, api.Call{Method: http.MethodGet, URL: place.Server.JoinPath(classes, k.cfg.Class).String()}, nil)
	switch {
	case api.HasCode(err, http.StatusForbidden):
		return false, nil
	case api.IsMissing(err):
		return true, fmt.Errorf("%w: no VolumeSnapshotClass %q; set kubernetes_snapshot_class to one of kubectl "+
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
	for _, place := range k.cfg.Namespaces {
		all, _, err := api.ListAll[object](ctx, place, kind, strings.Join(selector, ","))
		if err != nil {
			return nil, nil, k.explain(err)
		}
		for _, o := range all {
			key := place.Namespace + "/" + o.Metadata.Name
			if o.Metadata.DeletionTimestamp == nil && o.Metadata.Annotations[noteSnapshot] != "" {
				e, err := k.readNote(key, o)
				if err != nil {
					k.cfg.Log.Error("cannot read the note of a VolumeSnapshot; leaving it alone", "snapshot", key, "error", err)
					continue
				}
				notes = append(notes, e)
			}
			copies = append(copies, key)
		}
	}
	if _, err := k.Check(ctx); err != nil { // snapshots that exist do not need it
		k.cfg.Log.Error("cannot take snapshots", "error", err)
	}
	return notes, copies, nil
}

// readNote reads a note, unless it cannot be true.
func (k keeper) readNote(key string, o object) (e catalog.Entry, err error) {
	if err := json.Unmarshal([]byte(o.Metadata.Annotations[noteSnapshot]), &e); err != nil {
		return e, err
	}
	for name, value := range k.cfg.Owner(e.Snapshot.Owner) {
		if o.Metadata.Labels[name] != value {
			return e, errors.New("its labels are those of another owner")
		}
	}
	if e.Source.Volume != key {
		return e, fmt.Errorf("it is the note of %q", e.Source.Volume)
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
	place, name, err := k.find(e.Source.Volume)
	if err != nil {
		return err
	}
	change := map[string]any{"metadata": map[string]any{"annotations": map[string]any{noteSnapshot: note}}}
	if err = place.Patch(ctx, kind, []string{name}, api.MergePatch, change, nil); api.IsMissing(err) {
		return fmt.Errorf("%w: VolumeSnapshot %q was removed by someone else: %w", sandbox.ErrUnavailable, name, err)
	}
	return k.explain(err)
}

// RemoveCopy implements catalog.Keeper. The cluster keeps a VolumeSnapshot until the volumes that are being made of it exist.
func (k keeper) RemoveCopy(ctx context.Context, key string) error {
	place, name, err := k.find(key)
	if err != nil {
		return err
	}
	return k.explain(place.Remove(ctx, kind, name, -1))
}
