package sandbox

import (
	"context"
	"net"
	"time"
)

// Abilities is what a provider can do on this machine or cluster. Callers ask, and never
// guess: a method whose ability is false returns ErrUnsupported.
type Abilities struct {
	Provider string `json:"provider"`

	Pause bool `json:"pause"`
	// PauseToDisk: Saver can, at least for some kinds of isolation.
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

	// Isolation lists the supported kinds, the default first.
	Isolation []string `json:"isolation"`
	// Tiers says in sentences what each kind of isolation protects from.
	Tiers []string `json:"tiers,omitempty"`
	// Limits lists the enforced Resources: cpu, memory, pids, disk, files, disk_rate.
	Limits []string `json:"limits"`
	// MaxMemory is the most memory, in bytes, that a sandbox can have; 0 if unknown.
	MaxMemory int64 `json:"max_memory,omitempty"`
	// MaxCPU is the most CPU time, in thousandths of a CPU, that a sandbox can use; 0 if unknown.
	MaxCPU int64 `json:"max_cpu,omitempty"`
	// Missing says in sentences what does not work here, and how to fix that.
	Missing []string `json:"missing,omitempty"`
}

// Saver pauses sandboxes without keeping them in memory.
type Saver interface {
	// PauseToDisk writes the processes and the memory of a sandbox to disk and ends them: it
	// is Paused, and Resume brings them back as they were, also after the hub or the machine
	// was restarted. Connections do not survive; sockets that listen do. It returns
	// ErrUnsupported for a sandbox that cannot be saved, ever, and ErrState for one that
	// cannot be saved now; both go on as before.
	PauseToDisk(ctx context.Context, id string) error
}

// Placer is a provider that keeps the sandboxes of some owners apart, so that none can pass from one
// of them to another.
type Placer interface {
	// SamePlace reports whether a sandbox can pass from owner a to owner b.
	SamePlace(a, b string) bool
}

// Logger returns the output of the program inside.
type Logger interface {
	// Logs returns the end of the output, at most max bytes. It is kept while the
	// sandbox is stopped or failed.
	Logs(ctx context.Context, id string, max int64) ([]byte, error)
}

// Stater measures a sandbox.
type Stater interface {
	Stats(ctx context.Context, id string) (Stats, error)
}

// Stats is what a sandbox uses. A number that cannot be measured here is -1.
type Stats struct {
	CPU      time.Duration `json:"cpu"`
	Memory   int64         `json:"memory"`
	Pids     int64         `json:"pids"`
	Disk     int64         `json:"disk"`
	OOMKills int64         `json:"oom_kills"`
	Time     time.Time     `json:"time"`
}

// The variables by which a provider tells the program inside its addresses. The values
// are "unix:/path" or "tcp:host:port".
const (
	EnvListen = "COVE_LISTEN" // where its server must listen
	EnvEgress = "COVE_EGRESS" // the egress proxy, if there is one
)

// Egresser accepts the outgoing connections of a sandbox that has no network.
type Egresser interface {
	// Egress returns a listener for the sandbox's outgoing connections. The caller
	// serves and closes it. It may be called again after the listener was closed or the
	// hub restarted; a later listener replaces the earlier one. Programs inside find it
	// by EnvEgress.
	Egress(ctx context.Context, id string) (net.Listener, error)
}
