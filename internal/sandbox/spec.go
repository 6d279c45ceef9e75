package sandbox

import (
	"maps"
	"slices"
	"time"
)

// Spec describes the desired sandbox. The zero value of a field means the provider's
// default. A provider stores the Spec with the sandbox and returns it unchanged, even
// after a restart.
type Spec struct {
	// Name is unique among the sandboxes of an owner. Default: the ID.
	Name  string `json:"name,omitempty"`
	Owner string `json:"owner,omitempty"`

	Environment string `json:"environment,omitempty"`
	// Image is an OCI image reference; empty means the provider's own root filesystem
	// (local: the host's programs).
	Image string `json:"image,omitempty"`
	// Command replaces the program of the image or environment; Args follow it.
	Command []string          `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`

	Server    Server    `json:"server,omitzero"`
	Ports     []int     `json:"ports,omitempty"` // additional ports served inside
	Resources Resources `json:"resources,omitzero"`
	Network   Network   `json:"network,omitzero"`
	Isolation string    `json:"isolation,omitempty"`
	// NoRoot disables sudo inside.
	NoRoot bool `json:"no_root,omitempty"`
	// Root runs the server as root inside. Only builds of templates set it; it excludes NoRoot.
	Root     bool     `json:"root,omitempty"`
	Volumes  []Volume `json:"volumes,omitempty"`
	Lifetime Lifetime `json:"lifetime,omitzero"`
	// Snapshot is the owner's snapshot that the disk starts from. Image is then empty,
	// or the image of the snapshot.
	Snapshot string `json:"snapshot,omitempty"`

	// Users select sandboxes by Labels. Annotations are data of the hub, which the provider stores and
	// never interprets.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Server describes how to reach the server inside, and its readiness check.
type Server struct {
	// Port is its TCP port inside; 0 lets the provider decide (local: a unix socket,
	// whose path is in the environment).
	Port int `json:"port,omitempty"`
	// ReadyPath must return 200 before the sandbox is Running. Default: /readyz, or a form of it.
	ReadyPath string `json:"ready_path,omitempty"`
	// ReadyTimeout is the maximum wait for readiness.
	ReadyTimeout time.Duration `json:"ready_timeout,omitempty"`
}

// Resources are the limits of a sandbox. CPU is in thousandths of a CPU, Memory and Disk are in bytes,
// rates in bytes per second for each direction.
type Resources struct {
	CPU         int64 `json:"cpu,omitempty"`    // its share under contention
	Memory      int64 `json:"memory,omitempty"` // reserved by a scheduler
	CPULimit    int64 `json:"cpu_limit,omitempty"`
	MemoryLimit int64 `json:"memory_limit,omitempty"`
	Pids        int64 `json:"pids,omitempty"`
	Disk        int64 `json:"disk,omitempty"`
	Files       int64 `json:"files,omitempty"` // open files of one process
	DiskRate    int64 `json:"disk_rate,omitempty"`
	Bandwidth   int64 `json:"bandwidth,omitempty"` // of egress; the server of the egress listener enforces it
}

// NetworkMode selects the addresses that a sandbox can connect to.
type NetworkMode string

// The network modes.
const (
	NetworkNone  NetworkMode = "none"
	NetworkAllow NetworkMode = "allow" // only Network.Allow
	NetworkAsk   NetworkMode = "ask"   // Network.Allow, and what the owner approves when it is first used
	NetworkOpen  NetworkMode = "open"  // all except the host and private addresses
)

// Network is the egress policy. Providers store it; the server of the egress listener (see Egresser)
// enforces it.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// Allow lists "name", "name:port", "*.name".
	Allow []string `json:"allow,omitempty"`
}

// Volume mounts a named folder that outlives the sandbox. It never contains a path of the host: the
// provider decides where volumes are stored.
type Volume struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Never disables a timeout.
const Never time.Duration = -1

// IdlePolicy is the action for an idle sandbox.
type IdlePolicy string

// The idle policies.
const (
	IdleDelete IdlePolicy = "delete"
	IdleStop   IdlePolicy = "stop"
	IdlePause  IdlePolicy = "pause"
)

// Lifetime contains the timeouts of a sandbox. Providers store it; the hub enforces it.
type Lifetime struct {
	Timeout     time.Duration `json:"timeout,omitempty"`
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	IdlePolicy  IdlePolicy    `json:"idle_policy,omitempty"`
	// EndPolicy is the action at Timeout; empty means delete.
	EndPolicy IdlePolicy `json:"end_policy,omitempty"`
	// If Period is not 0, Timeout applies only while the sandbox runs: a sleeping sandbox does not
	// expire, and a sandbox that is woken after its timeout gets this time again.
	Period time.Duration `json:"period,omitempty"`
	// Keep is not 0 for a sandbox whose owner wants its disk: deleted on request, it can be restored for a while. One that
	// is not running is deleted after this time without use, unless it is Never.
	Keep time.Duration `json:"keep,omitempty"`
}

// Clone returns a copy that shares no memory with s, so that no field of one request leaks into another.
func (s Spec) Clone() Spec {
	s.Command = slices.Clone(s.Command)
	s.Args = slices.Clone(s.Args)
	s.Env = maps.Clone(s.Env)
	s.Ports = slices.Clone(s.Ports)
	s.Network.Allow = slices.Clone(s.Network.Allow)
	s.Volumes = slices.Clone(s.Volumes)
	s.Labels = maps.Clone(s.Labels)
	s.Annotations = maps.Clone(s.Annotations)
	return s
}
