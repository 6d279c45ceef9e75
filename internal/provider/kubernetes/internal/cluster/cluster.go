// Package cluster holds what all parts of the provider share: settings, connections to namespaces, names
// and labels of objects, and the key of the hub.
package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
)

// Kinds of objects, as paths of the API.
const (
	Pods    = "api/v1/pods"
	Secrets = "api/v1/secrets"
	Claims  = "api/v1/persistentvolumeclaims"
)

// Labels of objects, and their values.
const (
	LabelHub     = "io.cove.hub"  // the name of the hub
	LabelKind    = "io.cove.kind" // a Kind constant
	LabelID      = "io.cove.id"
	LabelOwner   = "io.cove.owner" // a hash, because the name of an owner may be no valid label
	LabelRole    = "io.cove.role"  // of the hub's own Pods
	RoleHub      = "hub"
	KindSandbox  = "sandbox"
	KindHub      = "hub"
	KindVolume   = "volume"
	KindSnapshot = "snapshot"
)

// Annotations of objects.
const (
	NoteName    = "io.cove.name"
	NoteOwner   = "io.cove.owner"
	NoteVolume  = "io.cove.volume"
	NoteCreated = api.NoteCreated
)

// IsolationContainer is the isolation of Pods without a RuntimeClass.
const IsolationContainer = "container"

// Container is the name of the container of a Pod that runs the sandbox.
const Container = "sandbox"

// Secret is a Secret of the API.
type Secret struct {
	api.Object
	Type string            `json:"type,omitempty"`
	Data map[string][]byte `json:"data,omitempty"`
}

// Session is the connection of a hub to its cluster.
type Session struct {
	Config Config
	Client *api.Client // for the namespace of the hub's own objects
	Hub    Identity
}

// Connect returns a session for a configuration that is complete. It sends no request.
func Connect(cfg Config) (*Session, error) {
	c, err := api.Connect(cfg.Access, cfg.Namespace)
	if err != nil {
		return nil, err
	}
	return &Session{Config: cfg, Client: c}, nil
}

// ForOwner returns the client for the namespace of an owner.
func (s *Session) ForOwner(owner string) *api.Client {
	if own, ok := s.Config.TenantNamespaces[owner]; ok {
		return s.Client.In(own)
	}
	return s.Client
}

// Namespaces returns a client for each namespace with sandboxes. The shared namespace is first.
func (s *Session) Namespaces() []*api.Client {
	all := []*api.Client{s.Client}
	for _, namespace := range slices.Sorted(maps.Values(s.Config.TenantNamespaces)) {
		if namespace != all[len(all)-1].Namespace && namespace != s.Config.Namespace {
			all = append(all, s.Client.In(namespace))
		}
	}
	return all
}

// Selector selects the objects of a kind that belong to this hub.
func (s *Session) Selector(kind string) string {
	return LabelHub + "=" + s.Config.Name + "," + LabelKind + "=" + kind
}

// Labels returns the labels of every object of a sandbox. Labels of users are excluded, because Services
// of others could select a sandbox by them.
func (s *Session) Labels(sb sandbox.Sandbox) map[string]string {
	return map[string]string{LabelHub: s.Config.Name, LabelKind: KindSandbox, LabelID: sb.ID, LabelOwner: HashOwner(sb.Spec.Owner)}
}

// Annotations returns the annotations of every object of a sandbox.
func Annotations(sb sandbox.Sandbox) map[string]string {
	return map[string]string{NoteName: sb.Spec.Name, NoteOwner: sb.Spec.Owner, NoteCreated: sb.Created.UTC().Format(time.RFC3339Nano)}
}

// HashOwner returns the value of LabelOwner.
func HashOwner(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8])
}

// VolumeClaim returns the name of the claim of a volume.
func (s *Session) VolumeClaim(owner, name string) string {
	return "cove-" + s.Config.Name + "-" + HashOwner(owner) + "-" + name
}

// Isolation lists the kinds of isolation that specs may request. The default is first.
func (s *Session) Isolation() []string {
	kinds := append([]string{IsolationContainer}, s.Config.RuntimeClasses...)
	if s.Config.RuntimeClass != "" {
		kinds = append([]string{s.Config.RuntimeClass}, s.Config.RuntimeClasses...)
	}
	slices.Sort(kinds[1:])
	return slices.Compact(kinds)
}

// Explain adds the error code for callers to an error of the API server.
func Explain(err error) error {
	switch {
	case api.HasCode(err, http.StatusForbidden) && strings.Contains(err.Error(), "exceeded quota"):
		return fmt.Errorf("%w: %w", sandbox.ErrExhausted, err)
	case api.HasCode(err, http.StatusForbidden) && exceedsLimitRange(err):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	case api.HasCode(err, http.StatusUnprocessableEntity), api.HasCode(err, http.StatusBadRequest):
		return fmt.Errorf("%w: %w", sandbox.ErrInvalid, err)
	}
	return err
}

// exceedsLimitRange reports whether a LimitRange rejects a Pod. The API server reports it only in the message.
func exceedsLimitRange(err error) bool {
	text := err.Error()
	return strings.Contains(text, "maximum ") && strings.Contains(text, " usage per ") ||
		strings.Contains(text, "minimum ") && strings.Contains(text, " usage per ")
}

// Identity is the key of the hub, in PEM.
type Identity struct {
	Cert, Key []byte
	Pin       string
}

// LoadIdentity reads the key of the hub, or creates it.
func (s *Session) LoadIdentity(ctx context.Context) error {
	name := "cove-hub-" + s.Config.Name
	var got Secret
	err := s.Client.Get(ctx, Secrets, name, &got)
	if api.IsMissing(err) {
		cert, key, err := tunnel.NewIdentity()
		if err != nil {
			return err
		}
		created := Secret{Object: api.NewObject("v1", "Secret",
			api.Meta{Name: name, Labels: map[string]string{LabelHub: s.Config.Name, LabelKind: KindHub},
				Annotations: map[string]string{NoteCreated: time.Now().Format(time.RFC3339Nano)}}),
			Type: "Opaque", Data: map[string][]byte{containerinit.CertName: cert, containerinit.KeyName: key}}
		if err := s.Client.Create(ctx, Secrets, created, &got); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	id := Identity{Cert: got.Data[containerinit.CertName], Key: got.Data[containerinit.KeyName]}
	if id.Pin, err = tunnel.Pin(id.Cert); err != nil {
		return fmt.Errorf("read Secret %q: %w; delete it to create a new key, which existing sandboxes reject", name, err)
	}
	s.Hub = id
	return nil
}
