package sandbox

import (
	"context"
	"net"
	"time"
)

// Abilities is what a provider can do on this machine or cluster. It is asked,
// never guessed: an ability that is false here answers ErrUnsupported, also if
// the provider has the method.
type Abilities struct {
	Provider string `json:"provider"`

	Pause    bool `json:"pause"`
	Stop     bool `json:"stop"`
	AnyPort  bool `json:"any_port"` // Endpoint reaches ports other than the server's
	Image    bool `json:"image"`
	Volume   bool `json:"volume"`   // Volumer, Spec.Volumes
	Egress   bool `json:"egress"`   // Egresser
	Logs     bool `json:"logs"`     // Logger
	Stats    bool `json:"stats"`    // Stater
	Snapshot bool `json:"snapshot"` // Snapshotter, Spec.Snapshot
	Fork     bool `json:"fork"`     // Forker
	Diff     bool `json:"diff"`     // Differ
	Export   bool `json:"export"`   // Exporter

	// Isolation lists the accepted kinds, the default first.
	Isolation []string `json:"isolation"`
	// Limits lists what of Resources is enforced: cpu, memory, pids, disk, files.
	Limits []string `json:"limits"`
	// Missing says in sentences what does not work here, and how to get it.
	Missing []string `json:"missing,omitempty"`
}

// Logger shows what the program inside wrote to its output.
type Logger interface {
	// Logs returns the end of it, at most max bytes. It is kept while the
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

// The environment by which a provider tells the program inside where to be. The
// values are "unix:/path" or "tcp:host:port".
const (
	EnvListen = "COVE_LISTEN" // where the hub expects its server
	EnvEgress = "COVE_EGRESS" // where the way out begins, if there is one
)

// Egresser hands over the way out of a sandbox that has no network of its own.
type Egresser interface {
	// Egress returns a listener at which the sandbox's outgoing connections
	// arrive. The caller serves and closes it. It may be asked for again after
	// the listener was closed or the hub restarted; a later listener replaces
	// the earlier. What is inside finds the way by its environment.
	Egress(ctx context.Context, id string) (net.Listener, error)
}
