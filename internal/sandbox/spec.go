package sandbox

import (
	"maps"
	"slices"
	"time"
)

// Spec is what a sandbox shall be. The zero value of a field means the
// provider's default. A provider keeps the Spec with the sandbox and gives it
// back unchanged, also after a restart.
type Spec struct {
	// Name is unique among one owner's sandboxes. Empty: the provider uses the ID.
	Name  string `json:"name,omitempty"`
	Owner string `json:"owner,omitempty"`

	Environment string `json:"environment,omitempty"`
	// Image is an OCI image reference; empty means the provider's own root
	// filesystem (local: the host's tools).
	Image string `json:"image,omitempty"`
	// Command replaces the program of the image or environment; Args follow it.
	Command []string          `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Workdir string            `json:"workdir,omitempty"`

	Server    Server    `json:"server,omitzero"`
	Ports     []int     `json:"ports,omitempty"` // further ports that are served inside
	Resources Resources `json:"resources,omitzero"`
	Network   Network   `json:"network,omitzero"`
	Isolation string    `json:"isolation,omitempty"`
	Volumes   []Volume  `json:"volumes,omitempty"`
	Lifetime  Lifetime  `json:"lifetime,omitzero"`
	// Snapshot names the owner's snapshot that the disk starts from. Image is then
	// empty or the one that the snapshot stands on.
	Snapshot string `json:"snapshot,omitempty"`

	// Labels are the user's, to find sandboxes by. Annotations are the hub's own
	// records, kept by the provider and never interpreted by it.
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Server says how the program inside is reached and when it counts as ready.
type Server struct {
	// Port is the TCP port it serves inside; 0 is the provider's own way
	// (local: a unix socket that is announced in the environment).
	Port int `json:"port,omitempty"`
	// ReadyPath must answer 200 before the sandbox is Running; default /readyz.
	ReadyPath string `json:"ready_path,omitempty"`
	// ReadyTimeout bounds the wait for that.
	ReadyTimeout time.Duration `json:"ready_timeout,omitempty"`
}

// Resources bounds what a sandbox may use. CPU is in thousandths of a
// processor, Memory and Disk in bytes.
type Resources struct {
	CPU         int64 `json:"cpu,omitempty"`    // its share when processors are short
	Memory      int64 `json:"memory,omitempty"` // what a scheduler reserves for it
	CPULimit    int64 `json:"cpu_limit,omitempty"`
	MemoryLimit int64 `json:"memory_limit,omitempty"`
	Pids        int64 `json:"pids,omitempty"`
	Disk        int64 `json:"disk,omitempty"`
	Files       int64 `json:"files,omitempty"` // open files of one process
}

// NetworkMode says what a sandbox may reach.
type NetworkMode string

// The network modes.
const (
	NetworkNone  NetworkMode = "none"
	NetworkAllow NetworkMode = "allow" // only what Network.Allow lists
	NetworkOpen  NetworkMode = "open"  // all but the host and private addresses
)

// Network is the policy for connections out of the sandbox. Providers carry it;
// whoever serves the way out (see Egresser) enforces it.
type Network struct {
	Mode NetworkMode `json:"mode,omitempty"`
	// Allow lists "name", "name:port", "*.name".
	Allow []string `json:"allow,omitempty"`
}

// Volume mounts a named folder that outlives the sandbox. It never names a path
// outside: the provider decides where volumes live.
type Volume struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Never is the timeout that does not come.
const Never time.Duration = -1

// IdlePolicy is what happens to a sandbox that nobody uses.
type IdlePolicy string

// The idle policies.
const (
	IdleDelete IdlePolicy = "delete"
	IdleStop   IdlePolicy = "stop"
	IdlePause  IdlePolicy = "pause"
)

// Lifetime is how long a sandbox may live and idle. Providers carry it; the hub acts on it.
type Lifetime struct {
	Timeout     time.Duration `json:"timeout,omitempty"`
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	IdlePolicy  IdlePolicy    `json:"idle_policy,omitempty"`
}

// Clone returns a copy that shares nothing with s, so that one request's fields
// can never leak into another's.
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
