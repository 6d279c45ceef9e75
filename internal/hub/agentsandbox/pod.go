package agentsandbox

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
)

// Hints for unsupported fields of a Pod.
const (
	oneContainer = "a sandbox has one container; put its other programs into the image"
	noPlacement  = "the hub configures where sandboxes run; use the scheduling of a RuntimeClass"
	noHost       = "a sandbox cannot share namespaces of the node; remove it"
	noAPI        = "a sandbox has no access to the API server; remove it"
	noVolumes    = "the disk of a sandbox is writable; for persistent data use volumes of the hub (cove volume); remove it"
	noRestart    = "a sandbox whose program ends is failed; remove it"
	ownRules     = "sandboxes run as uid 1000 with no capabilities and the default seccomp profile; remove it"
)

// podHints are hints for unsupported fields of a Pod.
var podHints = map[string]string{
	"initContainers": oneContainer, "ephemeralContainers": oneContainer, "volumes": noVolumes,
	"nodeSelector": noPlacement, "nodeName": noPlacement, "affinity": noPlacement, "tolerations": noPlacement,
	"topologySpreadConstraints": noPlacement,
	"priorityClassName":         noPlacement, "priority": noPlacement, "schedulerName": noPlacement, "schedulingGates": noPlacement,
	"hostNetwork": noHost, "hostPID": noHost, "hostIPC": noHost, "shareProcessNamespace": noHost,
	"serviceAccountName": noAPI, "serviceAccount": noAPI, "automountServiceAccountToken": noAPI,
	"imagePullSecrets": "set kubernetes_pull_secrets of the hub and remove it",
	"hostUsers":        "set kubernetes_user_namespaces of the hub and remove it",
	"securityContext":  ownRules,
}

var containerHints = map[string]string{
	"volumeMounts": noVolumes, "volumeDevices": noVolumes, "livenessProbe": noRestart, "lifecycle": noRestart, "restartPolicy": noRestart,
	"envFrom": "use plain values, or secrets of the hub (cove secret)", "securityContext": ownRules,
}

// Fields without effect: every sandbox satisfies them, or the hub implements them.
var (
	podHarmless = []string{"containers", "runtimeClassName", "restartPolicy", "terminationGracePeriodSeconds",
		"enableServiceLinks", "dnsPolicy", "hostname"}
	containerHarmless = []string{"name", "image", "command", "args", "workingDir", "env", "ports", "resources",
		"readinessProbe", "startupProbe", "imagePullPolicy",
		"terminationMessagePath", "terminationMessagePolicy", "stdin", "stdinOnce", "tty"}
)

type podSpec struct {
	Containers       []json.RawMessage `json:"containers"`
	RuntimeClassName string            `json:"runtimeClassName"`
}

type container struct {
	Name       string   `json:"name"`
	Image      string   `json:"image"`
	Command    []string `json:"command"`
	Args       []string `json:"args"`
	WorkingDir string   `json:"workingDir"`
	Env        []envVar `json:"env"`
	Ports      []struct {
		Port     int    `json:"containerPort"`
		HostPort int    `json:"hostPort"`
		Protocol string `json:"protocol"`
	} `json:"ports"`
	Resources struct {
		Requests map[string]environment.Quantity `json:"requests"`
		Limits   map[string]environment.Quantity `json:"limits"`
		Claims   []json.RawMessage               `json:"claims"`
	} `json:"resources"`
	ReadinessProbe struct {
		HTTPGet struct {
			Path string `json:"path"`
		} `json:"httpGet"`
	} `json:"readinessProbe"`
}

type egressRule struct {
	To []struct {
		IPBlock *struct {
			CIDR   string   `json:"cidr"`
			Except []string `json:"except"`
		} `json:"ipBlock"`
	} `json:"to"`
	Ports []struct {
		Protocol string          `json:"protocol"`
		Port     json.RawMessage `json:"port"`
		End      *int            `json:"endPort"`
	} `json:"ports"`
}

// mapping collects the unsupported fields of a template.
type mapping struct {
	env     environment.Environment
	refused []string
}

func (m *mapping) refuse(field, format string, args ...any) {
	m.refused = append(m.refused, field+": "+fmt.Sprintf(format, args...))
}

// toEnvironment converts a template, or a Sandbox that contains one, into an environment of an owner. It
// returns all unsupported fields.
func (o *object) toEnvironment(owner, name string) (environment.Environment, []string) {
	never := -1.0
	m := &mapping{env: environment.Environment{Name: name, Timeout: &never, IdleTimeout: &never,
		Labels: maps.Clone(o.Spec.PodTemplate.Metadata.Labels)}}
	const at = "podTemplate.spec."
	if len(o.Spec.PodTemplate.Metadata.Annotations) > 0 {
		m.refuse("podTemplate.metadata.annotations", "annotations of Pods are reserved for the hub; use labels")
	}
	if len(o.Spec.VolumeClaimTemplates) > 0 {
		m.refuse("volumeClaimTemplates", noVolumes)
	}
	if o.Spec.Service {
		m.refuse("service", "use the hub to reach sandboxes; remove it")
	}
	m.network(o)
	var pod podSpec
	if err := json.Unmarshal(o.Spec.PodTemplate.Spec, &pod); err != nil {
		m.refuse("podTemplate.spec", "%v", err)
		return m.env, m.refused
	}
	m.env.Isolation = pod.RuntimeClassName
	m.rest(at, o.Spec.PodTemplate.Spec, podHarmless, podHints)
	if len(pod.Containers) != 1 {
		m.refuse(at+"containers", "got %d; %s", len(pod.Containers), oneContainer)
		return m.env, m.refused
	}
	m.container(at+"containers[0].", pod.Containers[0])
	image, err := naming.ResolveImage(owner, m.env.Image)
	if err != nil {
		m.refuse(at+"containers[0].image", "%v", err)
	}
	m.env.Image = image
	return m.env, m.refused
}

// container converts the container.
func (m *mapping) container(at string, raw json.RawMessage) {
	var c container
	if err := json.Unmarshal(raw, &c); err != nil {
		m.refuse(at, "%v", err)
		return
	}
	m.rest(at, raw, containerHarmless, containerHints)
	m.env.Image, m.env.Command, m.env.Args, m.env.Workdir = c.Image, c.Command, c.Args, c.WorkingDir
	for _, v := range c.Env {
		if len(v.From) > 0 && string(v.From) != "null" {
			m.refuse(at+"env", "%s has valueFrom; use a plain value, or a secret of the hub (cove secret)", v.Name)
			continue
		}
		if m.env.Env == nil {
			m.env.Env = map[string]string{}
		}
		m.env.Env[v.Name] = v.Value
	}
	for _, p := range c.Ports {
		if p.HostPort != 0 || p.Protocol == "UDP" || p.Protocol == "SCTP" {
			m.refuse(at+"ports", "port %d: only TCP ports without hostPort are supported", p.Port)
			continue
		}
		m.env.Ports = append(m.env.Ports, p.Port)
	}
	switch {
	case len(c.Command) == 0 && len(c.Args) > 0:
		m.refuse(at+"args", "args require a command; add one")
	case len(c.Command) > 0 && len(m.env.Ports) == 0:
		m.refuse(at+"command", "add the port of its server as containerPort, or remove the command to run the hub's own server")
	case len(c.Command) > 0:
		m.env.Port, m.env.Ports = m.env.Ports[0], m.env.Ports[1:]
		m.env.ReadyPath = "/"
		if path := c.ReadinessProbe.HTTPGet.Path; path != "" {
			m.env.ReadyPath = path
		}
	}
	m.resources(at+"resources.", c)
}

func (m *mapping) resources(at string, c container) {
	for _, set := range []struct {
		name   string
		amount map[string]environment.Quantity
		to     map[string]*environment.Quantity
	}{
		{"requests", c.Resources.Requests, map[string]*environment.Quantity{"cpu": &m.env.CPU,
			"memory": &m.env.Memory, "ephemeral-storage": new(environment.Quantity)}},
		{"limits", c.Resources.Limits, map[string]*environment.Quantity{"cpu": &m.env.CPULimit,
			"memory": &m.env.MemoryLimit, "ephemeral-storage": &m.env.DiskLimit}},
	} {
		for _, name := range slices.Sorted(maps.Keys(set.amount)) {
			if to := set.to[name]; to != nil {
				*to = set.amount[name]
			} else {
				m.refuse(at+set.name, "%s: only cpu, memory and ephemeral-storage are supported; remove it", name)
			}
		}
	}
	if len(c.Resources.Claims) > 0 {
		m.refuse(at+"claims", "devices are not supported; remove it")
	}
}

// unenforced lists the limits of a template that the provider cannot enforce.
func (s *Service) unenforced(env environment.Environment) (problems []string) {
	for _, l := range []struct {
		field, kind string
		given       environment.Quantity
	}{{"cpu", "cpu", env.CPULimit}, {"memory", "memory", env.MemoryLimit}, {"ephemeral-storage", "disk", env.DiskLimit}} {
		if l.given == "" {
			continue
		}
		if able := s.Provider.Abilities(); !slices.Contains(able.Limits, l.kind) {
			problems = append(problems, fmt.Sprintf("podTemplate.spec.containers[0].resources.limits: %s: provider %s cannot limit it here; "+
				"remove it", l.field, able.Provider))
		}
	}
	return problems
}

// network converts the network policy of a template. Sandboxes accept connections only from the hub, and
// have its default egress policy if the template has none.
func (m *mapping) network(o *object) {
	p := o.Spec.NetworkPolicy
	if p == nil || o.Spec.Management == "Unmanaged" {
		return
	}
	if len(p.Ingress) > 0 {
		m.refuse("networkPolicy.ingress", "only the hub connects to sandboxes; remove it")
	}
	m.env.Network = &environment.Policy{Mode: "none"}
	for _, rule := range p.Egress {
		var ports []string
		for _, port := range rule.Ports {
			if n, err := strconv.Atoi(string(port.Port)); err != nil || port.End != nil || port.Protocol != "" && port.Protocol != "TCP" {
				m.refuse("networkPolicy.egress", "use single TCP ports by number")
			} else {
				ports = append(ports, ":"+strconv.Itoa(n))
			}
		}
		if len(rule.To) == 0 {
			m.refuse("networkPolicy.egress", "use ipBlock for destinations, or remove networkPolicy for the hub's default")
		}
		for _, to := range rule.To {
			if to.IPBlock == nil || len(to.IPBlock.Except) > 0 {
				m.refuse("networkPolicy.egress", "use an ipBlock without except; selectors of Pods are not supported")
				continue
			}
			m.env.Network.Mode = "allow"
			if len(ports) == 0 {
				m.env.Network.Allow = append(m.env.Network.Allow, to.IPBlock.CIDR)
			}
			for _, port := range ports {
				m.env.Network.Allow = append(m.env.Network.Allow, to.IPBlock.CIDR+port)
			}
		}
	}
}

// rest rejects the remaining fields, unless every sandbox satisfies them.
func (m *mapping) rest(at string, raw json.RawMessage, harmless []string, hints map[string]string) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		m.refuse(at, "%v", err)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if slices.Contains(harmless, name) || isSatisfied(name, fields[name]) {
			continue
		}
		hint := hints[name]
		if hint == "" {
			hint = "not supported; remove it"
		}
		m.refuse(at+name, "%s", hint)
	}
}

// isSatisfied reports whether a field has a value that every sandbox satisfies.
func isSatisfied(name string, raw json.RawMessage) bool {
	switch value := string(raw); value {
	case "null", "{}", "[]", `""`, "false", "0":
		return name != "hostUsers" && name != "enableServiceLinks"
	case "true":
		return name == "hostUsers"
	case `"default"`:
		return strings.HasPrefix(name, "serviceAccount")
	}
	if name != "securityContext" {
		return false
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		return false
	}
	for field, raw := range fields {
		if !slices.Contains(secured[field], string(raw)) && !isDropOnly(field, raw) {
			return false
		}
	}
	return true
}

// secured are the values of the security context of all sandboxes.
var secured = map[string][]string{
	"runAsNonRoot": {"true", "false"}, "runAsUser": {"1000"}, "runAsGroup": {"1000"}, "fsGroup": {"1000"}, "privileged": {"false"},
	"allowPrivilegeEscalation": {"false"}, "readOnlyRootFilesystem": {"false"}, "seccompProfile": {`{"type":"RuntimeDefault"}`},
}

// isDropOnly reports whether a field drops capabilities and adds none.
func isDropOnly(field string, raw json.RawMessage) bool {
	var c struct {
		Add []string `json:"add"`
	}
	return field == "capabilities" && json.Unmarshal(raw, &c) == nil && len(c.Add) == 0
}
