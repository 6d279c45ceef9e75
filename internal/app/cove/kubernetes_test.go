//go:build linux

package cove

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/provider/mem"
)

// hubEnv is the environment of the hub in the manifests.
func hubEnv(t *testing.T) (env []string) {
	t.Helper()
	data, err := os.ReadFile("../../../deploy/kubernetes/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for d := yaml.NewDecoder(bytes.NewReader(data)); ; {
		var m struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Env []struct{ Name, Value string }
						}
					}
				}
			}
		}
		if err := d.Decode(&m); errors.Is(err, io.EOF) {
			return env
		} else if err != nil {
			continue // of another kind, with other types
		}
		for _, c := range m.Spec.Template.Spec.Containers {
			for _, v := range c.Env {
				env = append(env, v.Name+"="+v.Value)
			}
		}
	}
}

// TestKubernetesManifest: the hub accepts the settings in the manifests.
func TestKubernetesManifest(t *testing.T) {
	t.Parallel()
	env := hubEnv(t)
	var cfg config.Cove
	if _, err := config.Load(&cfg, config.Source{Environ: env}); err != nil {
		t.Fatal(err)
	}
	if cfg.Provider != "kubernetes" || cfg.KubeNamespace != "cove-sandboxes" || cfg.Listen != "0.0.0.0:10000" ||
		!cfg.Tenants || cfg.State != "/var/lib/cove" || cfg.KubePrograms == "" || cfg.DefaultImage == "" || len(env) != 8 {
		t.Errorf("got %+v from %q, want the provider, its name, namespace, images, folder, address and tenants", cfg, env)
	}
}

// TestKubernetesConfig: how the hub finds its cluster and connects to sandboxes.
func TestKubernetesConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config")
	text := "current-context: a\ncontexts:\n- {name: a, context: {cluster: a, user: a, namespace: " +
		"boxes}}\nclusters:\n- {name: a, cluster: {server: 'https://api'}}\nusers:\n- {name: a, user: {token: x}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	load := func(env ...string) (kubernetes.Config, error) {
		var cfg config.Cove
		if _, err := config.Load(&cfg, config.Source{Environ: append(env, "HOME=/nowhere", "COVE_PROVIDER=kubernetes")}); err != nil {
			t.Fatal(err)
		}
		return kubernetesConfig(cfg)
	}
	c, err := load("KUBECONFIG="+file, "COVE_KUBERNETES_DISK=persistent")
	if err != nil || c.Reach != kubernetes.ReachAPI || c.Namespace != "boxes" || !c.Persistent || c.Access.Token != "x" {
		t.Errorf("with a kubeconfig: got %+v, %v", c, err)
	}
	if c, err = load("KUBECONFIG="+file, "COVE_KUBERNETES_REACH=pod",
		"COVE_KUBERNETES_NAMESPACE=other"); err != nil || c.Reach != kubernetes.ReachPod || c.Namespace != "other" {
		t.Errorf("with settings: got %+v, %v", c, err)
	}
	if _, err := load(); err == nil || !strings.Contains(err.Error(), "kubernetes_config") {
		t.Errorf("without a cluster: got %v, want an error that names the setting", err)
	}
	if _, err := load("KUBECONFIG=" + file + "x"); err == nil {
		t.Error("a missing file: accepted")
	}
}

// TestClaimOwners: a namespace has one user, and only a provider on a cluster has claims.
func TestClaimOwners(t *testing.T) {
	t.Parallel()
	got, err := claimOwners([]string{"agents", " team-a=ann", "dev="})
	if err != nil || len(got) != 3 || got["agents"] != "agents" || got["team-a"] != "ann" || got["dev"] != "" {
		t.Errorf("got %q, %v", got, err)
	}
	for _, bad := range [][]string{{""}, {"=ann"}, {"a", "a=b"}, {"../x"}, {"A"}} {
		if got, err := claimOwners(bad); err == nil {
			t.Errorf("%q: got %q, want an error", bad, got)
		}
	}
	if _, err := claimsOf(config.Cove{KubeClaims: []string{"agents"}}, &mem.Provider{}); err == nil ||
		!strings.Contains(err.Error(), "set provider to kubernetes") {
		t.Errorf("got %v, want that the provider has no claims", err)
	}
}
