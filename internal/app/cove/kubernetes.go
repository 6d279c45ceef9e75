//go:build linux

package cove

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// openKubernetes opens the provider of sandboxes on a cluster.
func openKubernetes(ctx context.Context, cfg config.Cove, log *slog.Logger) (sandbox.Provider, error) {
	c, err := kubernetesConfig(cfg)
	if err != nil {
		return nil, err
	}
	c.Log = log
	p, err := kubernetes.Open(ctx, c)
	if err != nil {
		return nil, err // not a nil pointer in an interface
	}
	return p, nil
}

// claimsOf returns the objects of the cluster that the hub serves.
func claimsOf(cfg config.Cove, provider sandbox.Provider) (hub.Claims, error) {
	owners, err := claimOwners(cfg.KubeClaims)
	p, ok := provider.(*kubernetes.Provider)
	if err != nil || len(owners) == 0 || provider == nil {
		return hub.Claims{}, err
	}
	if !ok {
		return hub.Claims{}, errors.New("kubernetes_claims: only the provider kubernetes serves claims; set provider to kubernetes, or remove it")
	}
	return hub.Claims{Cluster: p.Foreign(), Owners: owners}, nil
}

// claimOwners reads NAMESPACE=USER pairs.
func claimOwners(pairs []string) (map[string]string, error) {
	owners := map[string]string{}
	for _, pair := range pairs {
		namespace, user, given := strings.Cut(strings.TrimSpace(pair), "=")
		if !given {
			user = namespace
		}
		if _, twice := owners[namespace]; twice || namespace == "" || strings.Trim(namespace, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" {
			return nil, fmt.Errorf("kubernetes_claims: %q: name each namespace once, as NAMESPACE or NAMESPACE=USER", pair)
		}
		owners[namespace] = user
	}
	return owners, nil
}

// kubernetesConfig finds the cluster and says how sandboxes run there.
func kubernetesConfig(cfg config.Cove) (kubernetes.Config, error) {
	c := kubernetes.Config{
		Dir: filepath.Join(cfg.State, "kubernetes"), Name: cfg.KubeName, Reach: cfg.KubeReach, Programs: cfg.KubePrograms,
		Command: []string{aioInside, "serve"}, Env: map[string]string{"AIO_LOG_LEVEL": "warn",
			"AIO_CONTAINED": "true", "AIO_LOOPBACK": "127.0.0.1:8080"},
		Image: cmp.Or(cfg.DefaultImage, Image), PullSecrets: cfg.KubePullSecrets,
		Defaults:     sandbox.Resources{MemoryLimit: int64(cfg.MemoryLimit), Disk: int64(cfg.DiskLimit)},
		RuntimeClass: cfg.KubeRuntimeClass, RuntimeClasses: cfg.KubeRuntimeClasses, UserNamespaces: cfg.KubeUserNamespaces,
		Root: cfg.KubeRoot, Seccomp: cfg.KubeSeccomp, Persistent: cfg.KubeDisk == "persistent", StorageClass: cfg.KubeStorageClass,
		SharedVolumes: cfg.KubeSharedVolumes, VolumeSize: int64(cfg.VolumeLimit), ScheduleTimeout: cfg.KubeScheduleTimeout,
		SnapshotClass: cfg.KubeSnapClass, Snapshots: kubernetes.Store{Endpoint: cfg.KubeSnapEndpoint,
			Bucket: cfg.KubeSnapBucket, Prefix: cfg.KubeSnapPrefix, Region: cfg.KubeSnapRegion,
			AccessKey: cfg.KubeSnapAccessKey, SecretKey: cfg.KubeSnapSecretKey},
	}
	var err error
	switch {
	case cfg.Kubeconfig != "":
		c.Access, err = kubernetes.ReadKubeconfig(cfg.Kubeconfig, cfg.KubeContext)
	case cfg.KubeServiceHost != "":
		c.Access, err = kubernetes.InCluster(cfg.KubeServiceHost, cfg.KubeServicePort)
	default:
		err = errors.New("no cluster: set kubernetes_config (KUBECONFIG) to a kubeconfig file, or run the hub in a Pod")
	}
	if c.Reach == "auto" {
		c.Reach = kubernetes.ReachPod
		if cfg.Kubeconfig != "" {
			c.Reach = kubernetes.ReachAPI
		}
	}
	c.Namespace = cmp.Or(cfg.KubeNamespace, c.Access.Namespace, "default")
	c.TenantNamespaces = map[string]string{}
	for _, pair := range cfg.KubeTenants {
		tenant, namespace, ok := strings.Cut(pair, "=")
		if _, twice := c.TenantNamespaces[tenant]; !ok || tenant == "" || twice {
			err = errors.Join(err, fmt.Errorf("kubernetes_tenant_namespaces: %q: use tenant=namespace, each tenant once", pair))
		}
		c.TenantNamespaces[tenant] = namespace
	}
	return c, err
}

// examineKubernetes adds what matters for sandboxes on a cluster. It looks only: the hub may be running
// elsewhere.
func examineKubernetes(ctx context.Context, cfg config.Cove, add adder) bool {
	c, err := kubernetesConfig(cfg)
	if err != nil {
		add(false, err.Error(), "see docs/kubernetes.md")
		return false
	}
	usable, list := kubernetes.Examine(ctx, c)
	for _, f := range list {
		add(f.OK, f.What, f.Fix)
	}
	return usable
}
