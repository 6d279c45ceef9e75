//go:build linux

package cove

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/config"
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

// kubernetesConfig finds the cluster and says how sandboxes run there.
func kubernetesConfig(cfg config.Cove) (kubernetes.Config, error) {
	c := kubernetes.Config{
		Dir: filepath.Join(cfg.State, "kubernetes"), Name: cfg.KubeName, Reach: cfg.KubeReach, Programs: cfg.KubePrograms,
		Command: []string{aioInside, "serve"}, Env: map[string]string{"AIO_LOG_LEVEL": "warn", "AIO_CONTAINED": "true", "AIO_LOOPBACK": "127.0.0.1:8080"},
		Image: cmp.Or(cfg.DefaultImage, Image), PullSecrets: cfg.KubePullSecrets,
		Defaults:     sandbox.Resources{MemoryLimit: int64(cfg.MemoryLimit), Disk: int64(cfg.DiskLimit)},
		RuntimeClass: cfg.KubeRuntimeClass, RuntimeClasses: cfg.KubeRuntimeClasses, UserNamespaces: cfg.KubeUserNamespaces,
		Root: cfg.KubeRoot, Seccomp: cfg.KubeSeccomp, Persistent: cfg.KubeDisk == "persistent", StorageClass: cfg.KubeStorageClass,
		SharedVolumes: cfg.KubeSharedVolumes, VolumeSize: int64(cfg.VolumeLimit), ScheduleTimeout: cfg.KubeScheduleTimeout,
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
	return c, err
}
