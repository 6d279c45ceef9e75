package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/access"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// How the hub reaches Pods.
const (
	ReachPod = "pod" // by their addresses, from within the cluster
	ReachAPI = "api" // by port forwarding of the API server
)

// Config configures the provider. Dir, Access, Namespace and Programs are required; other fields have defaults.
type Config struct {
	Dir       string // holds the identity of this hub
	Access    access.Access
	Namespace string
	// TenantNamespaces maps owners to their namespaces. Other owners use Namespace.
	TenantNamespaces map[string]string
	// Name distinguishes the hubs of one namespace.
	Name string
	// Reach is ReachPod (default) or ReachAPI.
	Reach string
	// Programs is an image that contains cove-container and the other programs of the hub in the same folder.
	Programs string
	// Installer is the path of cove-container in that image.
	Installer string
	// Command is the default command.
	Command []string
	// Env is added to the environment of every sandbox; the spec takes precedence.
	Env map[string]string
	// Image is the default image.
	Image       string
	PullSecrets []string
	// Defaults are the default resources.
	Defaults sandbox.Resources
	// RuntimeClass is the default RuntimeClass; RuntimeClasses are those that specs may name as isolation.
	RuntimeClass   string
	RuntimeClasses []string
	// UserNamespaces maps the users of a Pod to other users of the node.
	UserNamespaces bool
	// Root lets programs inside become root, which the Pod Security level "restricted" forbids.
	Root bool
	// Seccomp is a profile in the kubelet's folder; empty means the profile of the container runtime.
	Seccomp string
	// Persistent keeps the home of every sandbox in a PersistentVolumeClaim.
	Persistent bool
	// StorageClass is the class of claims; empty means the cluster's default.
	StorageClass string
	// SharedVolumes lets several sandboxes on different nodes use a volume.
	SharedVolumes bool
	VolumeSize    int64
	// Snapshots is the store of snapshots, as archives of disks. It is unused without an endpoint.
	Snapshots bucket.Config
	// SnapshotClass is a VolumeSnapshotClass for snapshots of persistent homes. It excludes Snapshots.
	SnapshotClass string

	ReadyTimeout    time.Duration // default of specs
	ScheduleTimeout time.Duration // maximum time without a suitable node
	StopGrace       time.Duration // from SIGTERM to SIGKILL
	LeaseTime       time.Duration // time after the last renewal until another hub may take over
	Log             *slog.Logger  `json:"-"`
}

// Complete checks the configuration and sets defaults.
func (c *Config) Complete() error {
	if err := c.check(); err != nil {
		return err
	}
	c.Name, c.Reach = cmp.Or(c.Name, "cove"), cmp.Or(c.Reach, ReachPod)
	c.Installer = cmp.Or(c.Installer, "/usr/local/lib/cove/cove-container")
	names := map[string]string{"name": c.Name, "namespace": c.Namespace}
	for owner, namespace := range c.TenantNamespaces {
		names[fmt.Sprintf("namespace of tenant %q", owner)] = namespace
	}
	for what, value := range names {
		if err := sandbox.CheckName(value); err != nil {
			return fmt.Errorf("kubernetes provider: %s: %w", what, err)
		}
	}
	c.Snapshots.Prefix = strings.Trim(cmp.Or(c.Snapshots.Prefix, c.Namespace+"/"+c.Name), "/") + "/"
	def := func(v *int64, d int64) { *v = cmp.Or(*v, d) }
	def(&c.Defaults.MemoryLimit, 1<<30)
	def(&c.Defaults.Disk, 10<<30)
	def(&c.Defaults.CPU, 20) // millicores: a node then has room for as many Pods as the kubelet allows
	def(&c.VolumeSize, 10<<30)
	def((*int64)(&c.ReadyTimeout), int64(2*time.Minute))
	def((*int64)(&c.ScheduleTimeout), int64(30*time.Second))
	def((*int64)(&c.StopGrace), int64(10*time.Second))
	def((*int64)(&c.LeaseTime), int64(15*time.Second))
	if c.Log == nil {
		c.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return nil
}

func (c *Config) check() error {
	switch {
	case !filepath.IsAbs(c.Dir):
		return errors.New("kubernetes provider: an absolute Dir is required")
	case c.Programs == "":
		return errors.New("kubernetes provider: an image with the hub's programs is required")
	case c.Snapshots.Endpoint == "" && c.Snapshots.Bucket != "":
		return errors.New("kubernetes provider: a snapshot bucket requires kubernetes_snapshot_endpoint")
	case c.SnapshotClass != "" && c.Snapshots.Endpoint != "":
		return errors.New("kubernetes provider: kubernetes_snapshot_class and kubernetes_snapshot_endpoint are mutually " +
			"exclusive: snapshots are VolumeSnapshots or archives in an S3-compatible store; remove one setting")
	case c.SnapshotClass != "" && !c.Persistent:
		return errors.New("kubernetes provider: kubernetes_snapshot_class requires persistent homes; set " +
			"kubernetes_disk to persistent, or use an S3-compatible store (kubernetes_snapshot_endpoint)")
	case c.Reach != "" && c.Reach != ReachPod && c.Reach != ReachAPI:
		return fmt.Errorf("kubernetes provider: invalid reach %q; use %s or %s", c.Reach, ReachPod, ReachAPI)
	}
	return nil
}
