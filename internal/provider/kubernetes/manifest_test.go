//go:build linux

package kubernetes_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const manifestPath = "../../../deploy/kubernetes/install.yaml"

// manifest is the checked part of an object of the installation.
type manifest struct {
	Kind     string `yaml:"kind"`
	Metadata struct {
		Name      string            `yaml:"name"`
		Namespace string            `yaml:"namespace"`
		Labels    map[string]string `yaml:"labels"`
	} `yaml:"metadata"`
	Rules []struct {
		Groups    []string `yaml:"apiGroups"`
		Resources []string `yaml:"resources"`
		Verbs     []string `yaml:"verbs"`
	} `yaml:"rules"`
	Spec yaml.Node `yaml:"spec"`
}

func readManifests(t *testing.T, path string) map[string]manifest {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]manifest{}
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var m manifest
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all[m.Kind+" "+m.Metadata.Namespace+"/"+m.Metadata.Name] = m
	}
}

// testRole: the role of the installation allows exactly the rights that the provider uses.
func testRole(t *testing.T) {
	s := newCluster(t)
	h := newHub(t, s, func(c *kubernetes.Config) { c.Persistent = true })
	everything(h)
	// Existing objects are found, and unfinished ones removed.
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	h.open()
	s.mu.Lock()
	asked := []string{}
	for what := range s.asked {
		asked = append(asked, what)
	}
	s.mu.Unlock()
	slices.Sort(asked)

	allowed := roleRights(t)
	if !slices.Equal(asked, allowed) {
		t.Errorf("the provider uses\n%s\nand the role allows\n%s", strings.Join(asked, "\n"), strings.Join(allowed, "\n"))
	}
}

// roleRights returns the rights of the role of the installation, sorted.
func roleRights(t *testing.T) (allowed []string) {
	t.Helper()
	return rightsOf(t, manifestPath, "Role cove-sandboxes/cove")
}

func rightsOf(t *testing.T, path, name string) (allowed []string) {
	t.Helper()
	role, ok := readManifests(t, path)[name]
	if !ok {
		t.Fatal("no role")
	}
	for _, rule := range role.Rules {
		for _, group := range rule.Groups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					allowed = append(allowed, verb+" "+strings.TrimPrefix(group+"/"+resource, "/"))
				}
			}
		}
	}
	slices.Sort(allowed)
	return allowed
}

// everything uses all operations on a sandbox and a volume.
func everything(h *hub) {
	h.t.Helper()
	ctx := context.Background()
	sb := h.create(sandbox.Spec{Name: "all", Owner: "ann", Volumes: []sandbox.Volume{{Name: "data", Target: "/data"}}})
	_, err := h.Update(ctx, sb.ID, func(s *sandbox.Spec) error { s.Name, s.Resources.MemoryLimit = "renamed", 256<<20; return nil })
	testenv.Poll(h.t, "the Pod has its new name", func() bool {
		o, err := h.s.get("pods", sb.ID)
		return err == nil && metaOf(o)["annotations"].(doc)["io.cove.name"] == "renamed"
	})
	_, logs := h.Logs(ctx, sb.ID, 100)
	_, stats := h.Stats(ctx, sb.ID)
	if err := errors.Join(err, logs, stats, h.Stop(ctx, sb.ID)); err != nil {
		h.t.Fatal(err)
	}
	if _, err := h.Logs(ctx, sb.ID, 100); err != nil {
		h.t.Error(err)
	}
	if err := errors.Join(h.Start(ctx, sb.ID), h.Delete(ctx, sb.ID), h.DeleteVolume(ctx, "ann", "data")); err != nil {
		h.t.Fatal(err)
	}
	// Without a watch, the provider queries Pods.
	h.s.fail(func(r *http.Request) int {
		if r.URL.Query().Get("watch") != "" {
			return http.StatusServiceUnavailable
		}
		return 0
	}, nil)
	h.s.cutWatches()
	sb = h.create(sandbox.Spec{})
	if err := h.Delete(ctx, sb.ID); err != nil {
		h.t.Error(err)
	}
	h.s.fail(nil, nil)
}

// TestManifests: the objects of the installation are consistent.
func TestManifests(t *testing.T) {
	t.Parallel()
	all := readManifests(t, manifestPath)
	for _, want := range []string{"Namespace /cove", "Namespace /cove-sandboxes", "ServiceAccount cove/cove",
		"RoleBinding cove-sandboxes/cove", "Deployment cove/cove", "Service cove/cove",
		"PodDisruptionBudget cove/cove", "PersistentVolumeClaim cove/cove"} {
		if _, ok := all[want]; !ok {
			t.Errorf("no %s", want)
		}
	}
	for name, m := range all {
		if strings.HasPrefix(name, "Cluster") || strings.HasPrefix(name, "Namespace") &&
			m.Metadata.Labels["pod-security.kubernetes.io/enforce"] != "restricted" {
			t.Errorf("%s: got labels %v, want nothing for the whole cluster, and namespaces that are restricted", name, m.Metadata.Labels)
		}
	}
	var deployment struct {
		Template struct {
			Metadata struct {
				Labels map[string]string `yaml:"labels"`
			} `yaml:"metadata"`
			Spec struct {
				Account    string `yaml:"serviceAccountName"`
				Containers []struct {
					Env []struct{ Name, Value string } `yaml:"env"`
				} `yaml:"containers"`
			} `yaml:"spec"`
		} `yaml:"template"`
	}
	node := all["Deployment cove/cove"].Spec
	if err := node.Decode(&deployment); err != nil {
		t.Fatal(err)
	}
	if got := deployment.Template.Metadata.Labels["io.cove.role"]; got != "hub" {
		t.Errorf("the Pod of the hub has role %q, which the NetworkPolicy of sandboxes rejects", got)
	}
	if deployment.Template.Spec.Account != "cove" || len(deployment.Template.Spec.Containers) != 1 {
		t.Errorf("got %+v, want one container with the service account", deployment.Template.Spec)
	}
}
