package cluster_test

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/cluster"
)

// TestKubernetesEndsWithItsOwner: a cluster whose test is killed leaves only its logs behind.
func TestKubernetesEndsWithItsOwner(t *testing.T) {
	checkEndsWithOwner(t, func() string { return cluster.StartKubernetes(t).Dir },
		func(dir string) bool { return len(leftOfKubernetes(dir)) >= 5 }, leftOfKubernetes)
}

// leftOfKubernetes lists what a cluster has left behind, except its logs.
func leftOfKubernetes(dir string) (left []string) {
	left = testenv.ProcessesOf(dir)
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		if f.Name() != "log" && f.Name() != "lock" {
			left = append(left, "file "+f.Name())
		}
	}
	name := strings.Replace(filepath.Base(dir), "kube-", "covek", 1)
	if _, err := net.InterfaceByName(name); err == nil {
		left = append(left, "a network link")
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		groups, _ := filepath.Glob(pattern + name)
		left = append(left, groups...)
	}
	if mounts, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(mounts, []byte(dir+"/")) {
		left = append(left, "a mount")
	}
	return left
}
