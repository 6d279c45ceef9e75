package sandbox

import (
	"context"
	"net"
	"slices"
	"time"
)

// Abilities describes what a provider supports on this machine or cluster. A method whose ability is false
// returns ErrUnsupported.
type Abilities struct {
	Provider string `json:"provider"`

	Pause bool `json:"pause"`
	// PauseToDisk: Saver, at least for some kinds of isolation.
	PauseToDisk bool `json:"pause_to_disk"`
	Stop        bool `json:"stop"`
	AnyPort     bool `json:"any_port"` // Endpoint reaches ports other than the server's
	Image       bool `json:"image"`
	Volume      bool `json:"volume"`   // Volumer, Spec.Volumes
	Egress      bool `json:"egress"`   // Egresser
	Logs        bool `json:"logs"`     // Logger
	Stats       bool `json:"stats"`    // Stater
	Snapshot    bool `json:"snapshot"` // Snapshotter, Spec.Snapshot
	Fork        bool `json:"fork"`     // Forker
	Diff        bool `json:"diff"`     // Differ
	Export      bool `json:"export"`   // Exporter
	Build       bool `json:"build"`    // Layerer and Spec.Root, to build templates

	// Isolation lists the supported kinds, the default first.
	Isolation []string `json:"isolation"`
	// Tiers explains what each kind of isolation protects from.
	Tiers []string `json:"tiers,omitempty"`
	// Limits lists the enforced Resources: cpu, memory, pids, disk, files, disk_rate.
	Limits []string `json:"limits"`
	// MaxMemory is the maximum memory of a sandbox in bytes; 0 if unknown.
	MaxMemory int64 `json:"max_memory,omitempty"`
	// MaxCPU is the maximum CPU of a sandbox in thousandths; 0 if unknown.
	MaxCPU int64 `json:"max_cpu,omitempty"`
	// Missing explains what does not work here, and how to fix it.
	Missing []string `json:"missing,omitempty"`
}

// Saver pauses sandboxes without keeping them in memory.
type Saver interface {
	// PauseToDisk writes the processes and memory of a sandbox to disk and ends them. The sandbox is
	// Paused, and Resume restores them, also after a restart of the hub or the machine. Connections are
	// lost; listening sockets are kept. It returns ErrUnsupported if the sandbox can never be saved, and
	// ErrState if it cannot be saved now; in both cases the sandbox keeps running.
	PauseToDisk(ctx context.Context, id string) error
}

// Placer is a provider that separates the sandboxes of some owners, so that a sandbox cannot change its
// owner from one to another.
type Placer interface {
	// SamePlace reports whether the owner of a sandbox can change from a to b.
	SamePlace(a, b string) bool
}

// Logger returns the output of the program inside.
type Logger interface {
	// Logs returns the last output, at most max bytes. It is kept while the sandbox is stopped or
	// failed.
	Logs(ctx context.Context, id string, max int64) ([]byte, error)
}

// Stater measures a sandbox.
type Stater interface {
	Stats(ctx context.Context, id string) (Stats, error)
}

// Stats is the resource usage of a sandbox. A number that cannot be measured here is -1.
type Stats struct {
	CPU      time.Duration `json:"cpu"`
	Memory   int64         `json:"memory"`
	Pids     int64         `json:"pids"`
	Disk     int64         `json:"disk"`
	OOMKills int64         `json:"oom_kills"`
	Time     time.Time     `json:"time"`
}

// Variables with which a provider passes addresses to the program inside. The values are "unix:/path" or
// "tcp:host:port".
const (
	EnvListen = "COVE_LISTEN" // address on which its server must listen
	EnvEgress = "COVE_EGRESS" // the egress proxy, if there is one
)

// Egresser accepts the outgoing connections of a sandbox that has no network.
type Egresser interface {
	// Egress returns a listener for the sandbox's outgoing connections. The caller serves and closes
	// it. It can be called again after the listener was closed or the hub restarted; a later listener
	// replaces the earlier one. EnvEgress contains its address for programs inside.
	Egress(ctx context.Context, id string) (net.Listener, error)
}

// Enforced returns resources without the limits that the provider cannot enforce.
func (a Abilities) Enforced(r Resources) Resources {
	for kind, limit := range map[string]*int64{"cpu": &r.CPULimit, "memory": &r.MemoryLimit, "disk": &r.Disk} {
		if !slices.Contains(a.Limits, kind) {
			*limit = 0
		}
	}
	return r
}
