//go:build linux

package kubernetes_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

const chartPath = "../../../deploy/kubernetes/chart"

// helm runs Helm with its files in a folder of the test.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	testenv.Engine(t)
	program := testenv.NeedFile(t, "../../../.tools/bin/helm")
	cmd := exec.Command(program, args...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), errors.New(errs.String())
	}
	return out.String(), nil
}

// render returns the objects of the chart, by kind and name.
func render(t *testing.T, values ...string) (map[string]map[string]any, error) {
	t.Helper()
	// Helm built by go install assumes an old version of Kubernetes.
	args := []string{"template", "cove", chartPath, "--namespace", "cove", "--kube-version", "1.34"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	text, err := helm(t, args...)
	if err != nil {
		return nil, err
	}
	return decodeObjects(t, text), nil
}

func decodeObjects(t *testing.T, text string) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for d := yaml.NewDecoder(strings.NewReader(text)); ; {
		var o map[string]any
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if o == nil {
			continue
		}
		m := o["metadata"].(map[string]any)
		all[o["kind"].(string)+" "+m["name"].(string)] = o
	}
}

// everyValue sets every value of the chart.
var everyValue = []string{
	"replicas=2", "pullSecrets={registry}", "env.COVE_LOG_LEVEL=debug", "nodeSelector.disk=fast",
	"persistence.storageClass=shared", "domain=cove.example.com", "trustedProxies={10.0.0.0/8}",
	"sandboxes.disk=persistent", "sandboxes.storageClass=fast", "sandboxes.sharedVolumes=true",
	"sandboxes.runtimeClass=gvisor", "sandboxes.runtimeClasses={gvisor,kata}", "sandboxes.userNamespaces=true",
	"sandboxes.root=true", "sandboxes.seccomp=cove.json", "sandboxes.quota.pods=100",
	"sandboxes.limits.max.memory=16Gi", "ingress.enabled=true", "ingress.className=nginx", "ingress.tlsSecret=cert",
	"gateway.enabled=true", "gateway.name=front", "serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus",
	"sandboxes.snapshots.endpoint=https://s3.example.com", "sandboxes.snapshots.bucket=cove", "sandboxes.snapshots.prefix=one",
	"autoscaling.enabled=true", "autoscaling.maxReplicas=3", "claims[0].namespace=agents", "claims[1].namespace=team-a", "claims[1].user=ann",
	"sandboxes.tenants[0].tenant=acme", "sandboxes.tenants[0].namespace=cove-acme",
	"sandboxes.tenants[0].quota.pods=20", "sandboxes.tenants[0].limits.max.memory=4Gi",
	"sandboxes.tenants[1].tenant=bob@example.com", "sandboxes.tenants[1].namespace=cove-bob",
}

// TestChartDefaults: the chart is valid, and its defaults are install.yaml.
func TestChartDefaults(t *testing.T) {
	t.Parallel()
	if out, err := helm(t, "lint", "--strict", chartPath); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	plain, err := render(t)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(manifestPath)
	if err != nil {
		t.Fatal(err)
	}
	installed := decodeObjects(t, string(data))
	delete(installed, "Namespace cove") // helm install creates it
	for name, o := range installed {
		if !reflect.DeepEqual(o, plain[name]) {
			t.Errorf("%s: install.yaml has\n%v\nand the chart has\n%v", name, o, plain[name])
		}
	}
	for name := range plain {
		if installed[name] == nil {
			t.Errorf("%s is in the chart, but not in install.yaml", name)
		}
	}
}

// renderAll renders the chart with every value.
func renderAll(t *testing.T) map[string]map[string]any {
	t.Helper()
	full, err := render(t, everyValue...)
	if err != nil {
		t.Fatal(err)
	}
	return full
}

// TestChartSettings: every value becomes a setting of the hub, and all settings exist.
func TestChartSettings(t *testing.T) {
	t.Parallel()
	full := renderAll(t)
	settings, err := os.ReadFile("../../../docs/settings-hub.md")
	if err != nil {
		t.Fatal(err)
	}
	hub := dig(full["Deployment cove"], "spec", "template", "spec", "containers", 0)
	got := map[string]any{}
	for _, e := range dig(hub, "env").([]any) {
		name := dig(e, "name").(string)
		if got[name] = e.(map[string]any)["value"]; got[name] == nil && name != "POD_IP" {
			got[name] = dig(e, "valueFrom", "secretKeyRef", "name").(string) + " " + dig(e, "valueFrom", "secretKeyRef", "key").(string)
		}
		if name != "POD_IP" && !strings.Contains(string(settings), "`"+name+"`") {
			t.Errorf("setting %s does not exist", name)
		}
	}
	for name, want := range map[string]any{
		"COVE_REPLICA_ADDRESS": "$(POD_IP):10001", "COVE_LOG_LEVEL": "debug",
		"COVE_DOMAINS": "localhost,cove.example.com", "COVE_TRUSTED_PROXIES": "10.0.0.0/8", "COVE_KUBERNETES_DISK": "persistent",
		"COVE_KUBERNETES_RUNTIME_CLASSES": "gvisor,kata", "COVE_KUBERNETES_ROOT": "true",
		"COVE_KUBERNETES_USER_NAMESPACES": "true", "COVE_KUBERNETES_PULL_SECRETS": "registry", "COVE_KUBERNETES_SECCOMP": "cove.json",
		"COVE_KUBERNETES_CLAIMS":            "agents=agents,team-a=ann",
		"COVE_KUBERNETES_SNAPSHOT_ENDPOINT": "https://s3.example.com", "COVE_KUBERNETES_SNAPSHOT_BUCKET": "cove",
		"COVE_KUBERNETES_SNAPSHOT_PREFIX": "one", "COVE_KUBERNETES_SNAPSHOT_REGION": "us-east-1",
		"COVE_KUBERNETES_SNAPSHOT_ACCESS_KEY": "cove-snapshots access-key", "COVE_KUBERNETES_SNAPSHOT_SECRET_KEY": "cove-snapshots secret-key",
		"COVE_KUBERNETES_TENANT_NAMESPACES": "acme=cove-acme,bob@example.com=cove-bob",
	} {
		if got[name] != want {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
}

// TestChartObjects: optional objects have the values.
func TestChartObjects(t *testing.T) {
	t.Parallel()
	full := renderAll(t)
	for _, c := range []struct {
		object string
		path   []any
		want   any
	}{
		{"PersistentVolumeClaim cove", []any{"spec", "accessModes", 0}, "ReadWriteMany"},
		{"PodDisruptionBudget cove", []any{"spec", "maxUnavailable"}, 1},
		{"Namespace cove-sandboxes", []any{"metadata", "labels", "pod-security.kubernetes.io/enforce"}, "baseline"},
		{"ResourceQuota cove", []any{"spec", "hard", "pods"}, 100},
		{"LimitRange cove", []any{"spec", "limits", 0}, map[string]any{"type": "Container", "max": map[string]any{"memory": "16Gi"}}},
		{"Namespace cove-acme", []any{"metadata", "labels", "pod-security.kubernetes.io/enforce"}, "baseline"},
		{"ResourceQuota cove-acme", []any{"metadata", "namespace"}, "cove-acme"},
		{"ResourceQuota cove-acme", []any{"spec", "hard", "pods"}, 20},
		{"LimitRange cove-acme", []any{"spec", "limits", 0, "max", "memory"}, "4Gi"},
		{"ResourceQuota cove-bob", nil, map[string]any(nil)},
		{"RoleBinding cove-bob", []any{"subjects", 0, "name"}, "cove"},
		{"Ingress cove", []any{"spec", "rules", 1, "host"}, "*.cove.example.com"},
		{"Ingress cove", []any{"spec", "tls", 0, "hosts"}, []any{"cove.example.com", "*.cove.example.com"}},
		{"HTTPRoute cove", []any{"spec", "hostnames"}, []any{"cove.example.com", "*.cove.example.com"}},
		{"HorizontalPodAutoscaler cove", []any{"spec", "maxReplicas"}, 3},
		{"Deployment cove", []any{"spec", "replicas"}, nil},
		{"RoleBinding cove-claims", []any{"subjects", 0, "namespace"}, "cove"},
		{"ServiceMonitor cove", []any{"spec", "endpoints", 0, "authorization", "credentials", "name"}, "cove-metrics"},
	} {
		if got := dig(full[c.object], c.path...); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s %v: got %v, want %v", c.object, c.path, got, c.want)
		}
	}
}

// TestChartRights: no value changes the rights of the hub, and those of optional features match their manifests.
func TestChartRights(t *testing.T) {
	t.Parallel()
	full := renderAll(t)
	plain, err := render(t)
	if err != nil {
		t.Fatal(err)
	}
	claims, err := os.ReadFile(claimsPath)
	if err != nil {
		t.Fatal(err)
	}
	if want := decodeObjects(t, string(claims))["Role cove-claims"]; !reflect.DeepEqual(dig(full["Role cove-claims"],
		"rules"), want["rules"]) {
		t.Errorf("rights to claims: got %v, want those of claims.yaml: %v", full["Role cove-claims"], want)
	}
	if !reflect.DeepEqual(full["Role cove"], plain["Role cove"]) {
		t.Error("a value changes the rights of the hub")
	}
	// The rights in the namespace of a tenant are equal, except for the lease.
	rules := plain["Role cove"]["rules"].([]any)
	if got := dig(full["Role cove-acme"], "rules"); !reflect.DeepEqual(got, rules[:len(rules)-1]) ||
		dig(rules[len(rules)-1], "resources", 0) != "leases" {
		t.Errorf("in the namespace of a tenant: got rules %v, want those of the hub without the lease", got)
	}
}

// TestChartVolumeSnapshots: with a VolumeSnapshotClass, the hub has the setting and, in every namespace of
// sandboxes, the rights of volumesnapshots.yaml.
func TestChartVolumeSnapshots(t *testing.T) {
	t.Parallel()
	all, err := render(t, "sandboxes.snapshots.class=homes", "sandboxes.disk=persistent",
		"sandboxes.tenants[0].tenant=acme", "sandboxes.tenants[0].namespace=cove-acme")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(cutsPath)
	if err != nil {
		t.Fatal(err)
	}
	want := dig(decodeObjects(t, string(data))["Role cove-volumesnapshots"], "rules", 0)
	for _, name := range []string{"Role cove", "Role cove-acme"} {
		if rules, _ := dig(all[name], "rules").([]any); !slices.ContainsFunc(rules, func(r any) bool { return reflect.DeepEqual(r, want) }) {
			t.Errorf("%s has %v, want %v", name, rules, want)
		}
	}
	env, _ := dig(all["Deployment cove"], "spec", "template", "spec", "containers", 0, "env").([]any)
	if !slices.ContainsFunc(env, func(e any) bool {
		return dig(e, "name") == "COVE_KUBERNETES_SNAPSHOT_CLASS" && dig(e, "value") == "homes"
	}) {
		t.Errorf("got variables %v, want the class", env)
	}
}

// dig returns the value at a path of keys and indexes, or nil.
func dig(o any, path ...any) any {
	for _, step := range path {
		switch at := o.(type) {
		case map[string]any:
			key, _ := step.(string)
			o = at[key]
		case []any:
			i, ok := step.(int)
			if !ok || i >= len(at) {
				return nil
			}
			o = at[i]
		default:
			return nil
		}
	}
	return o
}

// TestChartRejectsValues: invalid values are rejected with advice.
func TestChartRejectsValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ values, want string }{
		{"replicas=2,persistence.accessMode=ReadWriteOnce", "set persistence.accessMode to ReadWriteMany"},
		{"replicas=0", "replicas"},
		{"autoscaling.enabled=true,persistence.accessMode=ReadWriteOnce", "set persistence.accessMode to ReadWriteMany"},
		{"claims[0].namespace=cove-sandboxes", "claims need another namespace"},
		{"claims[0].user=ann", "namespace"},
		{"ingress.enabled=true", "set domain"},
		{"gateway.enabled=true,domain=x.example.com", "set gateway.name"},
		{"sandboxes.namespace=cove", "separate namespace"},
		{"sandboxes.disk=huge", "disk"},
		{"sandboxes.snapshots.endpoint=https://s3.example.com", "set sandboxes.snapshots.bucket"},
		{"sandboxes.snapshots.endpoint=s3.example.com", "endpoint"},
		{"sandboxes.snapshots.class=homes", "set sandboxes.disk to persistent"},
		{"sandboxes.snapshots.class=homes,sandboxes.disk=persistent,sandboxes.snapshots.endpoint=https://s3.example.com," +
			"sandboxes.snapshots.bucket=cove", "not both"},
		{"replica=2", "replica"},
		{"sandboxes.tenants[0].tenant=acme", "namespace"},
		{"sandboxes.tenants[0].tenant=a=b,sandboxes.tenants[0].namespace=x", "tenant"},
		{"sandboxes.runtime=gvisor", "runtime"},
	} {
		if _, err := render(t, strings.Split(c.values, ",")...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.values, err, c.want)
		}
	}
}

// TestChartValuesHaveComments: every value has a comment.
func TestChartValuesHaveComments(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile(chartPath + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(data), "\n")
	for i, line := range lines {
		if line == "" || strings.HasPrefix(line, " ") || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(line, ":")
		if i > 0 && strings.HasPrefix(lines[i-1], "#") || slices.Contains([]string{"service", "sandboxes", "tolerations"}, name) {
			continue // they share the comment above, or their fields have comments
		}
		t.Errorf("%s has no comment", name)
	}
}
