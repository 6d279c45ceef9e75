package box

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// Keys of the Secret, beside those of containerinit.
const (
	recordKey = "record.json"
	LogKey    = "log" // the last output of a stopped sandbox
)

// Record is the persistent state of a sandbox.
type Record struct {
	Sandbox sandbox.Sandbox `json:"sandbox"`
	// Generation is the number of restarts. Each generation has another Pod.
	Generation int    `json:"generation,omitempty"`
	Pin        string `json:"pin"` // of the key of the sandbox
	// From is the snapshot that the disk started from; Named and Base are its image.
	From  string `json:"from,omitempty"`
	Named string `json:"named,omitempty"`
	Base  string `json:"base,omitempty"`
	// Restore is the copy to which the disk must be reset before the next start.
	Restore *catalog.Source `json:"restore,omitempty"`
	// Home is the claim of the home if its name differs from the ID of the sandbox.
	Home string `json:"home,omitempty"`
}

// HomeName returns the name of the claim of the home.
func (r Record) HomeName() string { return cmp.Or(r.Home, r.Sandbox.ID) }

// PodName returns the name of the Pod of the current generation.
func (r Record) PodName() string {
	if r.Generation == 0 {
		return r.Sandbox.ID
	}
	return fmt.Sprintf("%s-%d", r.Sandbox.ID, r.Generation)
}

// ReadRecord reads and checks the record in a Secret.
func ReadRecord(s cluster.Secret) (r Record, err error) {
	if err := json.Unmarshal(s.Data[recordKey], &r); err != nil {
		return r, err
	}
	if r.Sandbox.ID != s.Metadata.Name {
		return r, fmt.Errorf("the Secret contains the record of sandbox %q", r.Sandbox.ID)
	}
	return r, r.Sandbox.Spec.Validate()
}

// NewSecret returns the Secret of a new sandbox, which gets a new key.
func (b *Box) NewSecret(plan []byte) (cluster.Secret, error) {
	cert, key, err := tunnel.NewIdentity()
	if err != nil {
		return cluster.Secret{}, err
	}
	if b.Record.Pin, err = tunnel.Pin(cert); err != nil {
		return cluster.Secret{}, err
	}
	sb := b.Record.Sandbox
	s := cluster.Secret{Object: api.NewObject("v1", "Secret", api.Meta{Name: sb.ID, Labels: b.Labels(sb),
		Annotations: cluster.Annotations(sb)}), Type: "Opaque"}
	s.Data = map[string][]byte{containerinit.CertName: cert, containerinit.KeyName: key, containerinit.PlanName: plan}
	s.Data[recordKey], err = json.Marshal(b.Record)
	return s, err
}

// Loaded notes which version of the Secret the record corresponds to.
func (b *Box) Loaded(s cluster.Secret) {
	b.uid, b.version, b.saved = s.Metadata.UID, s.Metadata.ResourceVersion, s.Data[recordKey]
}

// Save writes the record and more data in one patch. It fails with ErrInUse if another hub has changed the
// record since it was loaded.
func (b *Box) Save(ctx context.Context, more map[string][]byte) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	raw, err := json.Marshal(b.Record)
	if err != nil {
		return err
	}
	data := map[string][]byte{recordKey: raw}
	maps.Copy(data, more)
	sb, now := b.Record.Sandbox, cluster.Secret{}
	for range 5 {
		change := map[string]any{"data": data, "metadata": map[string]any{"resourceVersion": b.version,
			"labels": b.Labels(sb), "annotations": cluster.Annotations(sb)}}
		var got cluster.Secret
		if err = b.API.Patch(call, cluster.Secrets, []string{sb.ID}, api.MergePatch, change, &got); err == nil {
			b.Loaded(got)
			return nil
		}
		if !api.IsConflict(err) {
			break
		}
		if err := b.API.Get(call, cluster.Secrets, sb.ID, &now); err != nil {
			return fmt.Errorf("read the record of the sandbox: %w", err)
		}
		switch {
		case bytes.Equal(now.Data[recordKey], raw): // an earlier attempt succeeded, but its response was lost
			b.Loaded(now)
			return nil
		case !bytes.Equal(now.Data[recordKey], b.saved):
			return fmt.Errorf("save the record of the sandbox: %w: another hub has changed it", sandbox.ErrInUse)
		}
		b.version = now.Metadata.ResourceVersion // only metadata has changed
	}
	return fmt.Errorf("save the record of the sandbox: %w", err)
}

// SaveSandbox writes another state of the sandbox. If that fails, the record keeps its state.
func (b *Box) SaveSandbox(ctx context.Context, next sandbox.Sandbox, more map[string][]byte) error {
	before := b.Record.Sandbox
	b.Record.Sandbox = next
	err := b.Save(ctx, more)
	if err != nil {
		b.Record.Sandbox = before
	}
	return err
}
