package agentsandbox

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// The supported resources.
const (
	claims    = "sandboxclaims"
	sandboxes = "sandboxes"
	templates = "sandboxtemplates"
	pools     = "sandboxwarmpools"
)

var resources = []string{claims, sandboxes, templates, pools}

// versions are the supported versions of the API, the preferred one first.
var versions = []string{"v1beta1", "v1alpha1"}

// kindOf is the path of a resource in a version.
func kindOf(resource, version string) string {
	group := "extensions.agents.x-k8s.io"
	if resource == sandboxes {
		group = "agents.x-k8s.io"
	}
	return "apis/" + group + "/" + version + "/" + resource
}

// key identifies an object.
type key struct{ resource, namespace, name string }

// object is the part of an object of any resource that we use.
type object struct {
	Metadata metadata `json:"metadata"`
	Spec     spec     `json:"spec"`
	Status   status   `json:"status"`

	// Size is set if the object is too large; then only its metadata is kept.
	Size int `json:"size"`
}

// metadataOf returns the metadata of an object, without what others have written into it.
func metadataOf(raw json.RawMessage) json.RawMessage {
	var o struct {
		Metadata metadata `json:"metadata"`
	}
	if json.Unmarshal(raw, &o) != nil {
		return json.RawMessage("{}")
	}
	small, err := json.Marshal(o.Metadata)
	if err != nil {
		return json.RawMessage("{}")
	}
	return small
}

type metadata struct {
	Name       string     `json:"name"`
	UID        string     `json:"uid"`
	Generation int64      `json:"generation"`
	Deleted    *time.Time `json:"deletionTimestamp"`
}

type spec struct {
	// Of a claim: the pool (v1beta1), or the template and the pool, "none" or "default" (v1alpha1).
	WarmPoolRef reference `json:"warmPoolRef"`
	WarmPool    string    `json:"warmpool"`
	Lifecycle   lifetime  `json:"lifecycle"`
	Additional  labels    `json:"additionalPodMetadata"`
	Env         []envVar  `json:"env"`
	// Of a claim (v1alpha1) and a pool.
	TemplateRef reference `json:"sandboxTemplateRef"`
	// Of a pool, and of a Sandbox (v1alpha1), which has 0 or 1.
	Replicas *int `json:"replicas"`
	// Of a template and a Sandbox.
	PodTemplate          podTemplate       `json:"podTemplate"`
	VolumeClaimTemplates []json.RawMessage `json:"volumeClaimTemplates"` // of a claim, too
	Service              bool              `json:"service"`
	// Of a template.
	NetworkPolicy *networkPolicy `json:"networkPolicy"`
	Management    string         `json:"networkPolicyManagement"`
	Injection     string         `json:"envVarsInjectionPolicy"`
	// Of a Sandbox.
	lifetime
	OperatingMode string `json:"operatingMode"`
}

type reference struct {
	Name string `json:"name"`
}

type labels struct {
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type envVar struct {
	Name      string          `json:"name"`
	Value     string          `json:"value"`
	Container string          `json:"containerName"`
	From      json.RawMessage `json:"valueFrom"`
}

// lifetime is the expiry of an object, and the action at its expiry.
type lifetime struct {
	ShutdownTime   *time.Time `json:"shutdownTime"`
	ShutdownPolicy string     `json:"shutdownPolicy"`
	TTL            *int64     `json:"ttlSecondsAfterFinished"`
}

type podTemplate struct {
	Metadata labels          `json:"metadata"`
	Spec     json.RawMessage `json:"spec"`
}

type networkPolicy struct {
	Ingress []json.RawMessage `json:"ingress"`
	Egress  []egressRule      `json:"egress"`
}

type status struct {
	Conditions []condition `json:"conditions"`
	Ready      int         `json:"readyReplicas"` // of a pool
	Replicas   int         `json:"replicas"`
}

// condition is a condition of Kubernetes.
type condition struct {
	Type       string    `json:"type"`
	Status     string    `json:"status"`
	Reason     string    `json:"reason"`
	Message    string    `json:"message"`
	Changed    time.Time `json:"lastTransitionTime"`
	Generation int64     `json:"observedGeneration,omitempty"`
}

// lifetime returns the lifetime of a claim or of a Sandbox.
func (o *object) lifetime(resource string) lifetime {
	if resource == claims {
		return o.Spec.Lifecycle
	}
	return o.Spec.lifetime
}

// suspended reports whether the object requests a suspended Sandbox.
func (o *object) suspended() bool {
	return o.Spec.OperatingMode == "Suspended" || o.Spec.Replicas != nil && *o.Spec.Replicas == 0
}

// find returns the condition of a type; false if it is missing.
func (s status) find(kind string) (condition, bool) {
	i := slices.IndexFunc(s.Conditions, func(c condition) bool { return c.Type == kind })
	if i < 0 {
		return condition{}, false
	}
	return s.Conditions[i], true
}

// with returns the conditions with one of them set. Only a change of its status counts as a transition.
func (s status) with(c condition, now time.Time) status {
	c.Message, c.Changed = clip(c.Message), now.UTC().Truncate(time.Second)
	out := slices.Clone(s.Conditions)
	i := slices.IndexFunc(out, func(old condition) bool { return old.Type == c.Type })
	if i < 0 {
		s.Conditions = append(out, c)
		return s
	}
	if out[i].Status == c.Status {
		c.Changed = out[i].Changed
	}
	out[i] = c
	s.Conditions = out
	return s
}

// maxMessage is the maximum length of the message of a condition; the API server accepts 32 KiB.
const maxMessage = 4096

func clip(text string) string {
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

// mark is the annotation on the sandbox of an object.
func mark(k key, uid string) string {
	return strings.Join([]string{k.resource, k.namespace, k.name, uid}, "/")
}

// markOf returns the object of a sandbox.
func markOf(sb sandbox.Sandbox) (k key, uid string, ok bool) {
	parts := strings.Split(sb.Spec.Annotations[naming.AnnotationClaim], "/")
	if len(parts) != 4 {
		return key{}, "", false
	}
	return key{parts[0], parts[1], parts[2]}, parts[3], true
}
