package kubernetes

import (
	"slices"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Abilities implements sandbox.Provider.
func (p *Provider) Abilities() sandbox.Abilities {
	cfg := p.session.Config
	a := sandbox.Abilities{Provider: "kubernetes", Stop: cfg.Persistent, AnyPort: true, Image: true, Volume: true,
		Egress: true, Logs: true, Stats: true,
		Isolation: p.session.Isolation(), Limits: []string{"cpu", "disk", "files", "memory"}}
	a.Tiers = []string{"container: programs cannot reach the node or other Pods. Their only network is the hub's proxy, if " +
		"the cluster enforces NetworkPolicies. They share the node's kernel: a reachable kernel bug allows escape"}
	for _, class := range cfg.RuntimeClasses {
		a.Tiers = append(a.Tiers, class+": like container, with the isolation of the RuntimeClass of this name")
	}
	a.Missing = []string{
		"pause: not supported for Pods; use stop",
		"process limit: only the kubelet (podPidsLimit) limits the number of processes",
		"export: the cluster does not provide the image of a Pod",
		"volume size: reported as the reserved size",
	}
	if a.Snapshot = p.copies != nil; a.Snapshot {
		a.Fork = true
		a.Missing = append(a.Missing, p.copies.Limits())
	} else {
		a.Missing = append(a.Missing, "snapshots and forks: set kubernetes_snapshot_class to a VolumeSnapshotClass for "+
			"snapshots of persistent homes, or kubernetes_snapshot_endpoint and kubernetes_snapshot_bucket to store "+
			"disks of sandboxes in an S3-compatible store")
	}
	if cfg.Persistent {
		a.Missing = append(a.Missing, "stop: a stopped sandbox keeps its home and volumes; the rest of its disk is lost")
	} else {
		a.Missing = append(a.Missing, "stop: set kubernetes_disk to persistent to keep homes in PersistentVolumeClaims")
	}
	if !cfg.Root {
		a.Missing = append(a.Missing, "root inside sandboxes (sudo): set kubernetes_root, which requires "+
			"the Pod Security level baseline")
	} else if !cfg.UserNamespaces {
		a.Missing = append(a.Missing, "user namespaces: root inside a sandbox is root of the node without most of its "+
			"capabilities; set kubernetes_user_namespaces to map it to another user")
	}
	slices.Sort(a.Missing)
	return a
}
