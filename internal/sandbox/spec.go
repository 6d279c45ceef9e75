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
	// Name is unique among the sandboxes of an owner. If it is empty, the provider uses
	// the ID.
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
	// NoRoot forbids root inside: sudo does not work.
	NoRoot   bool     `json:"no_root,omitempty"`
	Volumes  []Volume `json:"volumes,omitempty"`
	Lifetime Lifetime `json:"lifetime,omitzero"`
	// Snapshot is the owner's snapshot that the disk starts from. Image is then empty,
	// or the image of the snapshot.
	Snapshot string `json:"snapshot,omitempty"`

	// Labels let users select sandboxes. Annotations are the hub's own data, which the
	// provider stores and never interprets.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Server says how to reach the server inside and when it is ready.
type Server struct {
	// Port is its TCP port inside; 0 lets the provider decide (local: a unix socket,
	// whose path is in the environment).
	Port int `json:"port,omitempty"`
	// ReadyPath must return 200 before the sandbox is Running; /readyz by default, or a form of it.
	ReadyPath string `json:"ready_path,omitempty"`
	// ReadyTimeout limits the wait for that.
	ReadyTimeout time.Duration `json:"ready_timeout,omitempty"`
}

// Resources limits what a sandbox may use. CPU is in thousandths of a processor, Memory
// and Disk are in bytes, rates in bytes per second, for each direction.
type Resources struct {
	CPU         int64 `json:"cpu,omitempty"`    // its share under contention
	Memory      int64 `json:"memory,omitempty"` // reserved by a scheduler
	CPULimit    int64 `json:"cpu_limit,omitempty"`
	MemoryLimit int64 `json:"memory_limit,omitempty"`
	Pids        int64 `json:"pids,omitempty"`
	Disk        int64 `json:"disk,omitempty"`
	Files       int64 `json:"files,omitempty"` // open files of one process
	DiskRate    int64 `json:"disk_rate,omitempty"`
	Bandwidth   int64 `json:"bandwidth,omitempty"` // of egress; whoever serves its listener enforces it
}

// NetworkMode says which addresses a sandbox may connect to.
type NetworkMode string

// The network modes.
const (
	NetworkNone  NetworkMode = "none"
	NetworkAllow NetworkMode = "allow" // only those in Network.Allow
	NetworkOpen  NetworkMode = "open"  // all except the host and private addresses
)

// Network is the egress policy. Providers store it; whoever serves the egress listener
// (see Egresser) enforces it.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// Allow lists "name", "name:port", "*.name".
	Allow []string `json:"allow,omitempty"`
}

// Volume mounts a named folder that outlives the sandbox. It never names a path
// outside: the provider decides where volumes are stored.
type Volume struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Never disables a timeout.
const Never time.Duration = -1

// IdlePolicy is what happens to an idle sandbox.
type IdlePolicy string

// The idle policies.
const (
	IdleDelete IdlePolicy = "delete"
	IdleStop   IdlePolicy = "stop"
	IdlePause  IdlePolicy = "pause"
)

// Lifetime is how long a sandbox may live and be idle. Providers store it; the hub
// enforces it.
type Lifetime struct {
	Timeout     time.Duration `json:"timeout,omitempty"`
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	IdlePolicy  IdlePolicy    `json:"idle_policy,omitempty"`
	// EndPolicy is what happens when Timeout is reached; empty means delete.
	EndPolicy IdlePolicy `json:"end_policy,omitempty"`
	// Period, unless it is 0, makes Timeout count only while the sandbox runs: asleep it
	// does not end, and if it is woken after its end, it gets that much more.
	Period time.Duration `json:"period,omitempty"`
}

// Clone returns a copy that shares nothing with s, so that the fields of one request
// never leak into another.
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
