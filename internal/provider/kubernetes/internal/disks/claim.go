package disks

import (
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Claim is a PersistentVolumeClaim, with the fields that the provider uses.
type Claim struct {
	api.Object
	Spec   claimSpec `json:"spec"`
	Status struct {
		Phase    string            `json:"phase,omitempty"`
		Capacity map[string]string `json:"capacity,omitempty"`
	} `json:"status,omitzero"`
}

type claimSpec struct {
	AccessModes      []string       `json:"accessModes"`
	StorageClassName *string        `json:"storageClassName,omitempty"`
	Resources        claimResources `json:"resources"`
	DataSource       *dataSource    `json:"dataSource,omitempty"`
}

type claimResources struct {
	Requests map[string]string `json:"requests,omitempty"`
}

// dataSource is the initial content of a claim.
type dataSource struct {
	APIGroup string `json:"apiGroup"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
}

// info describes the volume of a claim.
func (c Claim) info() sandbox.VolumeInfo {
	notes := c.Metadata.Annotations
	info := sandbox.VolumeInfo{Name: notes[cluster.NoteVolume], Owner: notes[cluster.NoteOwner], Sandboxes: []string{},
		Limit: api.Quantity(c.Spec.Resources.Requests["storage"])}
	info.Size = api.Quantity(c.Status.Capacity["storage"])
	info.Created, _ = time.Parse(time.RFC3339Nano, notes[cluster.NoteCreated])
	return info
}

// removeClaim deletes a claim and returns when it does not exist.
func (v *Volumes) removeClaim(ctx context.Context, ns *api.Client, name string) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	if err := ns.Remove(call, cluster.Claims, name, -1); err != nil {
		return err
	}
	return v.awaitRemoval(ctx, ns, name)
}

// awaitRemoval waits until a deleted claim does not exist: the cluster keeps it until no Pod uses it. Until then
// its name is taken, and it counts towards a quota.
func (v *Volumes) awaitRemoval(ctx context.Context, ns *api.Client, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), create.ConfirmTime)
	defer cancel()
	for pause := api.MinRetry; ; pause = min(2*pause, create.ConfirmTick) {
		var found Claim
		switch err := ns.Get(ctx, cluster.Claims, name, &found); {
		case api.IsMissing(err) || err == nil && found.Metadata.DeletionTimestamp == nil: // a new claim of that name
			return nil
		case err != nil && ctx.Err() == nil:
			return err
		}
		select {
		case <-ctx.Done(): // finalizers of others can keep it for any time
			v.Config.Log.Warn("cluster keeps a deleted PersistentVolumeClaim", "claim", name)
			return nil
		case <-time.After(pause):
		}
	}
}
