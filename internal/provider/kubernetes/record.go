package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/catalog"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// The labels and annotations of our objects.
const (
	labelHub     = "io.cove.hub"  // the hub's name
	labelKind    = "io.cove.kind" // one of those below
	labelID      = "io.cove.id"
	labelOwner   = "io.cove.owner" // a hash: an owner can have any name
	labelRole    = "io.cove.role"  // of the hub's own Pods
	roleHub      = "hub"
	noteName     = "io.cove.name"
	noteOwner    = "io.cove.owner"
	noteVolume   = "io.cove.volume"
	noteCreated  = api.NoteCreated
	kindSandbox  = "sandbox"
	kindHub      = "hub"
	kindVolume   = "volume"
	kindSnapshot = "snapshot"
	recordName   = "record.json"
	logName      = "log"
)

// selector selects our objects of a kind.
func (s *session) selector(kind string) string {
	return labelHub + "=" + s.cfg.Name + "," + labelKind + "=" + kind
}

// labels are those of every object of a sandbox. The labels of users are not among them: they
// could make Services of others select a sandbox.
func (s *session) labels(sb sandbox.Sandbox) map[string]string {
	return map[string]string{labelHub: s.cfg.Name, labelKind: kindSandbox, labelID: sb.ID, labelOwner: hashOwner(sb.Spec.Owner)}
}

// hashOwner makes a label of an owner, who can have any name.
func hashOwner(owner string) string { return shorten(sha256.Sum256([]byte(owner))) }

func notes(sb sandbox.Sandbox) map[string]string {
	return map[string]string{noteName: sb.Spec.Name, noteOwner: sb.Spec.Owner, noteCreated: sb.Created.UTC().Format(time.RFC3339Nano)}
}

// record is everything about a sandbox.
type record struct {
	Sandbox sandbox.Sandbox `json:"sandbox"`
	// Generation counts the Pods that the sandbox has had.
	Generation int    `json:"generation,omitempty"`
	Pin        string `json:"pin"` // of the key of the sandbox
	// From is the snapshot that the disk started from; Named and Base are its image.
	From  string `json:"from,omitempty"`
	Named string `json:"named,omitempty"`
	Base  string `json:"base,omitempty"`
	// Restore is what the disk must be made equal to before the next start.
	Restore *catalog.Source `json:"restore,omitempty"`
	// Home is the claim of the home, if that has another name than the sandbox.
	Home string `json:"home,omitempty"`
}

// homeName names the claim of the home.
func (r record) homeName() string { return cmp.Or(r.Home, r.Sandbox.ID) }

// podName names the Pod of the present generation.
func (r record) podName() string {
	if r.Generation == 0 {
		return r.Sandbox.ID
	}
	return fmt.Sprintf("%s-%d", r.Sandbox.ID, r.Generation)
}

// box is a sandbox; only who has acquired its row uses it, except where.
type box struct {
	rec     record
	api     *client // for its namespace
	uid     string  // of the Secret
	version string  // of the Secret
	kept    []byte  // what the Secret holds as the record
	where   where
	tunnel  *tunnel.Client
	egress  interface{ Close() error }
	src     *catalog.Source // what the disk of the next Pod is filled with; nil: nothing
}

// filled reports whether the next Pod waits for what its disk begins with.
func (b *box) filled() bool { return b.src != nil && b.src.Archive != "" }

// remade reports whether the next Pod gets a new home, made of a snapshot, in the place of the one there is.
func (b *box) remade() bool { return b.rec.Restore != nil && b.rec.Restore.Volume != "" }

// home names the claim of the next Pod's home.
func (b *box) home() string {
	if b.remade() {
		return b.rec.podName() // another for each attempt
	}
	return b.rec.homeName()
}

// close ends what the box keeps open.
func (b *box) close() {
	b.leave()
	b.closeEgress()
}

func (b *box) closeEgress() {
	if b.egress != nil {
		b.egress.Close()
		b.egress = nil
	}
}

// leave forgets the Pod, which is not there any more, or not for long.
func (b *box) leave() {
	b.where.set("")
	if b.tunnel != nil {
		b.tunnel.DropSpares()
	}
}

// where is the Pod that connections go to, if there is one at the moment.
type where struct {
	mu      sync.Mutex
	pod     string
	changed chan struct{}
}

func (w *where) set(pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pod == pod {
		return
	}
	w.pod = pod
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// get returns the Pod, and what is closed when it changes.
func (w *where) get() (pod string, changed <-chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.pod, w.changed
}

// newSecret is the Secret of a new sandbox.
func (r *runner) newSecret(b *box) (secret, error) {
	cert, key, err := tunnel.NewIdentity()
	if err != nil {
		return secret{}, err
	}
	if b.rec.Pin, err = tunnel.Pin(cert); err != nil {
		return secret{}, err
	}
	s := secret{object: api.NewObject("v1", "Secret", meta{Name: b.rec.Sandbox.ID, Labels: r.labels(b.rec.Sandbox),
		Annotations: notes(b.rec.Sandbox)}), Type: "Opaque"}
	s.Data = map[string][]byte{containerinit.CertName: cert, containerinit.KeyName: key}
	if s.Data[containerinit.PlanName], err = r.encodePlan(b); err != nil {
		return secret{}, err
	}
	s.Data[recordName], err = json.Marshal(b.rec)
	return s, err
}

// encodePlan is the plan of the next Pod.
func (r *runner) encodePlan(b *box) ([]byte, error) {
	plan := r.plan(b.rec.Sandbox.Spec)
	plan.Fill = b.filled()
	return json.Marshal(plan)
}

// remember notes what the cluster holds.
func (b *box) remember(s secret) {
	b.uid, b.version, b.kept = s.Metadata.UID, s.Metadata.ResourceVersion, s.Data[recordName]
}

// save writes the record, and more data, with one patch that succeeds only if nobody has
// changed the record since.
func (r *runner) save(ctx context.Context, b *box, more map[string][]byte) error {
	call, cancel := api.Steady(ctx)
	defer cancel()
	raw, err := json.Marshal(b.rec)
	if err != nil {
		return err
	}
	data := map[string][]byte{recordName: raw}
	maps.Copy(data, more)
	sb, now := b.rec.Sandbox, secret{}
	for range 5 {
		change := map[string]any{"data": data, "metadata": map[string]any{"resourceVersion": b.version,
			"labels": r.labels(sb), "annotations": notes(sb)}}
		var got secret
		if err = b.api.Patch(call, secrets, []string{sb.ID}, api.MergePatch, change, &got); err == nil {
			b.remember(got)
			return nil
		}
		if !api.IsConflict(err) {
			break
		}
		if err := b.api.Get(call, secrets, sb.ID, &now); err != nil {
			return fmt.Errorf("read the record of the sandbox: %w", err)
		}
		switch {
		case bytes.Equal(now.Data[recordName], raw): // an earlier attempt, whose answer was lost
			b.remember(now)
			return nil
		case !bytes.Equal(now.Data[recordName], b.kept):
			return fmt.Errorf("save the record of the sandbox: %w: another hub has changed it", sandbox.ErrInUse)
		}
		b.version = now.Metadata.ResourceVersion // only a label or so has changed
	}
	return fmt.Errorf("save the record of the sandbox: %w", err)
}

// identity is the key of the hub, in PEM.
type identity struct {
	cert, key []byte
	pin       string
}

// loadIdentity reads the key of the hub, or makes one.
func (s *session) loadIdentity(ctx context.Context) (identity, error) {
	name := "cove-hub-" + s.cfg.Name
	var got secret
	err := s.client.Get(ctx, secrets, name, &got)
	if api.IsMissing(err) {
		cert, key, err := tunnel.NewIdentity()
		if err != nil {
			return identity{}, err
		}
		fresh := secret{object: api.NewObject("v1", "Secret",
			meta{Name: name, Labels: map[string]string{labelHub: s.cfg.Name, labelKind: kindHub},
				Annotations: map[string]string{noteCreated: time.Now().Format(time.RFC3339Nano)}}),
			Type: "Opaque", Data: map[string][]byte{containerinit.CertName: cert, containerinit.KeyName: key}}
		if err := s.client.Create(ctx, secrets, fresh, &got); err != nil {
			return identity{}, err
		}
	} else if err != nil {
		return identity{}, err
	}
	id := identity{cert: got.Data[containerinit.CertName], key: got.Data[containerinit.KeyName]}
	if id.pin, err = tunnel.Pin(id.cert); err != nil {
		return identity{}, fmt.Errorf("read Secret %q: %w; delete it for a new key, which no existing sandbox accepts", name, err)
	}
	return id, nil
}
