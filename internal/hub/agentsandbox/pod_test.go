package agentsandbox

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

var quiet = slog.New(slog.DiscardHandler)

func TestMain(m *testing.M) { testenv.Main(m) }

// parseSpec reads the spec of an object, as YAML.
func parseSpec(t testing.TB, text string) *object {
	t.Helper()
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "t"}, "spec": tree})
	if err != nil {
		t.Fatal(err)
	}
	var o object
	if err := json.Unmarshal(raw, &o); err != nil {
		t.Fatal(err)
	}
	return &o
}

// TestTemplate: all supported fields of a template become part of the sandbox's environment.
func TestTemplate(t *testing.T) {
	t.Parallel()
	o := parseSpec(t, `
networkPolicy: {egress: [{to: [{ipBlock: {cidr: 192.0.2.0/24}}], ports: [{port: 443}]}, {to: [{ipBlock: {cidr: 198.51.100.7/32}}]}]}
podTemplate:
  metadata: {labels: {team: red}}
  spec:
    runtimeClassName: gvisor
    restartPolicy: Always
    serviceAccountName: default
    automountServiceAccountToken: false
    hostUsers: true
    securityContext: {runAsNonRoot: true, runAsUser: 1000, fsGroup: 1000, seccompProfile: {type: RuntimeDefault}}
    containers:
      - name: server
        image: registry.example.com/x:1
        command: [/bin/serve]
        args: [--port, "9000"]
        workingDir: /work
        env: [{name: A, value: b}]
        ports: [{containerPort: 9000}, {containerPort: 9001, protocol: TCP}]
        readinessProbe: {httpGet: {path: /ok, port: 9000}}
        resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 2, memory: 1Gi, ephemeral-storage: 5Gi}}
        securityContext: {privileged: false, allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`)
	env, refused := o.toEnvironment("ann", "name")
	never := -1.0
	want := environment.Environment{
		Name: "name", Image: "registry.example.com/x:1", Command: []string{"/bin/serve"},
		Args: []string{"--port", "9000"}, Env: map[string]string{"A": "b"}, Workdir: "/work",
		Port: 9000, ReadyPath: "/ok", Ports: []int{9001}, CPU: "100m", Memory: "64Mi", CPULimit: "2",
		MemoryLimit: "1Gi", DiskLimit: "5Gi", Isolation: "gvisor",
		Network: &environment.Policy{Mode: "allow", Allow: []string{"192.0.2.0/24:443", "198.51.100.7/32"}},
		Timeout: &never, IdleTimeout: &never, Labels: map[string]string{"team": "red"},
	}
	if len(refused) > 0 || !reflect.DeepEqual(env, want) {
		t.Errorf("got %+v, rejected %q, want %+v", env, refused, want)
	}
	if spec, err := env.Spec(environment.Defaults{}); err != nil || spec.Validate() != nil {
		t.Errorf("got %v, %v, want a valid sandbox", err, spec.Validate())
	}
	silent := parseSpec(t, "{networkPolicy: {}, podTemplate: {spec: {containers: [{name: a, image: b}]}}}")
	if env, refused := silent.toEnvironment("ann", "name"); len(refused) > 0 || env.Network == nil || env.Network.Mode != "none" {
		t.Errorf("got %+v, %q, want no egress unless a rule allows it", env.Network, refused)
	}
}

// TestTemplateRefused: an unsupported field is rejected with an error that names it.
func TestTemplateRefused(t *testing.T) {
	t.Parallel()
	pod := func(fields string) string {
		return "podTemplate: {spec: {containers: [{name: a, image: b}], " + fields + "}}"
	}
	container := func(fields string) string {
		return "podTemplate: {spec: {containers: [{name: a, image: b, " + fields + "}]}}"
	}
	for text, want := range map[string]string{
		"podTemplate: {spec: {containers: []}}":                                       "containers",
		"podTemplate: {spec: {containers: [{name: a}, {name: b}]}}":                   "got 2",
		"podTemplate: {spec: 7}":                                                      "podTemplate.spec",
		"{service: true, " + pod("hostNetwork: false") + "}":                          "service",
		"{volumeClaimTemplates: [{}], " + pod("hostNetwork: false") + "}":             "volumeClaimTemplates",
		"{networkPolicy: {ingress: [{}]}, " + pod("hostPID: false") + "}":             "networkPolicy.ingress",
		"{networkPolicy: {egress: [{}]}, " + pod("hostPID: false") + "}":              "networkPolicy.egress",
		"{networkPolicy: {egress: [{to: [{podSelector: {}}]}]}, " + pod("") + "}":     "networkPolicy.egress",
		"podTemplate: {metadata: {annotations: {a: b}}, spec: {containers: [{}]}}":    "podTemplate.metadata.annotations",
		pod("hostNetwork: true"):                                                      "podTemplate.spec.hostNetwork",
		pod("hostPID: true"):                                                          "podTemplate.spec.hostPID",
		pod("hostUsers: false"):                                                       "kubernetes_user_namespaces",
		pod("automountServiceAccountToken: true"):                                     "podTemplate.spec.automountServiceAccountToken",
		pod("serviceAccountName: admin"):                                              "podTemplate.spec.serviceAccountName",
		pod("volumes: [{name: h, hostPath: {path: /}}]"):                              "podTemplate.spec.volumes",
		pod("initContainers: [{name: x}]"):                                            "podTemplate.spec.initContainers",
		pod("nodeName: master"):                                                       "podTemplate.spec.nodeName",
		pod("tolerations: [{operator: Exists}]"):                                      "podTemplate.spec.tolerations",
		pod("somethingNew: 1"):                                                        "podTemplate.spec.somethingNew",
		pod("securityContext: {runAsUser: 0}"):                                        "podTemplate.spec.securityContext",
		pod("securityContext: {sysctls: [{name: x, value: y}]}"):                      "podTemplate.spec.securityContext",
		container("securityContext: {privileged: true}"):                              "containers[0].securityContext",
		container("securityContext: {capabilities: {add: [SYS_ADMIN]}}"):              "containers[0].securityContext",
		container("securityContext: {seccompProfile: {type: Unconfined}}"):            "containers[0].securityContext",
		container("volumeMounts: [{name: h, mountPath: /h}]"):                         "containers[0].volumeMounts",
		container("env: [{name: S, valueFrom: {secretKeyRef: {name: s, key: k}}}]"):   "S has valueFrom",
		container("envFrom: [{secretRef: {name: s}}]"):                                "containers[0].envFrom",
		container("resources: {limits: {nvidia.com/gpu: 1}}"):                         "nvidia.com/gpu",
		container("resources: {claims: [{name: gpu}]}"):                               "containers[0].resources.claims",
		container("ports: [{containerPort: 1, hostPort: 1}]"):                         "containers[0].ports",
		container("command: [/bin/serve]"):                                            "containers[0].command",
		container("args: [x]"):                                                        "containers[0].args",
		container("livenessProbe: {exec: {command: [x]}}"):                            "containers[0].livenessProbe",
		"podTemplate: {spec: {containers: [{name: a, image: imported.invalid/0/x}]}}": "containers[0].image",
	} {
		if _, refused := parseSpec(t, text).toEnvironment("ann", "name"); !strings.Contains(strings.Join(refused, "\n"), want) {
			t.Errorf("%s: got %q, want %s rejected", text, refused, want)
		}
	}
}

// FuzzTemplate: no template that an API server accepts causes harm.
func FuzzTemplate(f *testing.F) {
	f.Add(`{"podTemplate":{"spec":{"containers":[{"name":"a","image":"b"}],"hostPID":true}},` +
		`"networkPolicy":{"egress":[{"to":[{}],"ports":[{"port":"x"}]}]}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var o object
		if json.Unmarshal([]byte(text), &o.Spec) != nil {
			return
		}
		env, refused := o.toEnvironment("ann", "name")
		if strings.Contains(text, `"hostPID":true`) && strings.Contains(string(o.Spec.PodTemplate.Spec),
			`"hostPID":true`) && len(refused) == 0 && json.Valid(o.Spec.PodTemplate.Spec) {
			var pod map[string]any
			if json.Unmarshal(o.Spec.PodTemplate.Spec, &pod) == nil && pod["hostPID"] == true {
				t.Errorf("%s is not rejected", text)
			}
		}
		env.Spec(environment.Defaults{})
	})
}

// TestNames: a sandbox has the name of its object if that is a valid sandbox name, otherwise a derived name.
func TestNames(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("a", 60)
	for name, want := range map[string][]string{"a": {"a", "a-17b788a7"}, "a.b": {"a-b-17b788a7"}, long: {long[:41] + "-17b788a7"}} {
		if got := namesFor(name, "uid"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// limiting is a provider that limits only memory.
type limiting struct{ sandbox.Provider }

func (limiting) Abilities() sandbox.Abilities {
	return sandbox.Abilities{Provider: "limiting", Limits: []string{"memory"}}
}

// TestUnenforcedLimitsOfPods: a limit that the provider cannot enforce is rejected, as for other unsupported fields.
func TestUnenforcedLimitsOfPods(t *testing.T) {
	t.Parallel()
	s := New(Config{Provider: limiting{}, Record: func(o op.Op) op.Op { return o }, Log: quiet})
	for limit, want := range map[string]string{"cpu: 2": "limits: cpu: provider limiting cannot limit it here",
		"ephemeral-storage: 1Gi": "limits: ephemeral-storage: provider", "memory: 1Gi": ""} {
		o := parseSpec(t, "podTemplate: {spec: {containers: [{name: a, image: b, resources: {limits: {"+limit+"}}}]}}")
		_, reason, refused := s.plan(key{templates, "ns", "a"}, o)
		if want == "" && reason != "" || want != "" && (reason != "InvalidTemplate" || !strings.Contains(refused, want)) {
			t.Errorf("%s: got %q and %q, want %q", limit, reason, refused, want)
		}
	}
}
