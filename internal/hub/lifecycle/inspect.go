package lifecycle

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/secret"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// NetworkOut is the egress policy of a sandbox, and its connections.
type NetworkOut struct {
	environment.Policy
	Connections []Connection `json:"connections" doc:"Latest connections, oldest first; empty if the provider does not report them"`
}

// Connection is a connection that a sandbox opened or tried to open.
type Connection struct {
	Time     time.Time `json:"time"`
	Protocol string    `json:"protocol" enum:"http,connect,socks5,tcp,dns" doc:"tcp: a program without a proxy; dns: a name that was refused"`
	Host     string    `json:"host"`
	Port     int       `json:"port"`
	Address  string    `json:"address" doc:"Resolved destination address"`
	Program  string    `json:"program" doc:"Program, by the name that it sent; it can be false"`
	Verdict  string    `json:"verdict" enum:"allowed,denied,failed"`
	Rule     string    `json:"rule" doc:"Rule that allowed or denied it; empty if none matched"`
	Reason   string    `json:"reason" doc:"Why it was denied or failed"`
	Ended    bool      `json:"ended" doc:"Whether the connection is closed; only then the following fields are set"`
	Up       int64     `json:"up_bytes"`
	Down     int64     `json:"down_bytes"`
	Took     float64   `json:"took_ms" doc:"Milliseconds"`
}

// Network shows the policy and the latest connections.
func (s *Service) Network(ctx context.Context, in NameIn) (NetworkOut, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return NetworkOut{}, err
	}
	out := NetworkOut{Policy: environment.Policy{Mode: string(sb.Spec.Network.Mode), Allow: sb.Spec.Network.Allow}}
	p := s.Fleet.Egress(sb)
	if p == nil {
		return out, nil
	}
	for _, r := range p.Records() {
		out.Connections = append(out.Connections, Connection{r.Time.UTC(), r.Protocol, r.Host, r.Port, r.Address,
			r.Program, r.Verdict, r.Rule, r.Reason, r.Ended, r.Up, r.Down, float64(r.Took.Microseconds()) / 1000})
	}
	return out, nil
}

// SetNetworkIn is a new egress policy.
type SetNetworkIn struct {
	Name  string   `path:"name" doc:"Name of the sandbox"`
	Mode  string   `json:"mode" default:"" doc:"none, allow (only the list), ask (others wait for approval), or open (all public addresses)"`
	Allow []string `json:"allow" nullable:"true" doc:"Names, *.names, addresses, ranges; :port; GET name/path/*. ! denies; first match wins"`
}

// SetNetwork changes the policy immediately.
func (s *Service) SetNetwork(ctx context.Context, in SetNetworkIn) (Object, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	if able := s.Provider.Abilities(); !able.Egress {
		return Object{}, op.Errorf(op.Invalid, "provider %s cannot restrict egress", able.Provider)
	}
	p := &environment.Policy{Mode: in.Mode, Allow: in.Allow}
	sb, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		if err := p.Apply(&spec.Network); err != nil {
			return op.Errorf(op.Invalid, "%w", err)
		}
		return secret.CheckReadable(*spec)
	})
	if err != nil {
		return Object{}, fault.FromProvider(in.Name, err)
	}
	s.Fleet.Observe(sb)
	return s.Show(ctx, sb), nil
}

// LogsIn selects a log.
type LogsIn struct {
	Name string `path:"name" doc:"Name of the sandbox"`
	Max  int64  `query:"max" default:"65536" minimum:"1" maximum:"16777216" doc:"Maximum number of bytes"`
}

// Logs returns the last output of a sandbox.
func (s *Service) Logs(ctx context.Context, in LogsIn) (*op.Blob, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	able := s.Provider.Abilities()
	l, ok := s.Provider.(sandbox.Logger)
	if !ok || !able.Logs {
		return nil, op.Errorf(op.Invalid, "provider %s keeps no logs", able.Provider)
	}
	text, err := l.Logs(ctx, sb.ID, in.Max)
	if err != nil {
		return nil, fault.FromProvider(in.Name, err)
	}
	return &op.Blob{Type: "text/plain; charset=utf-8", Size: int64(len(text)), Body: io.NopCloser(bytes.NewReader(text))}, nil
}

// StatsOut is the resource usage of a sandbox; -1 if unknown.
type StatsOut struct {
	CPU      float64   `json:"cpu_seconds" doc:"CPU time since its start"`
	Memory   int64     `json:"memory_bytes"`
	Pids     int64     `json:"pids" doc:"Processes and threads"`
	Disk     int64     `json:"disk_bytes"`
	OOMKills int64     `json:"oom_kills" doc:"Processes killed because the memory limit was reached"`
	Open     int       `json:"open_requests" doc:"In-flight requests and streams"`
	Time     time.Time `json:"time"`
}

// Stats shows the resource usage of a sandbox.
func (s *Service) Stats(ctx context.Context, in NameIn) (StatsOut, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return StatsOut{}, err
	}
	able := s.Provider.Abilities()
	p, ok := s.Provider.(sandbox.Stater)
	if !ok || !able.Stats {
		return StatsOut{}, op.Errorf(op.Invalid, "provider %s reports no stats", able.Provider)
	}
	st, err := p.Stats(ctx, sb.ID)
	if err != nil {
		return StatsOut{}, fault.FromProvider(in.Name, err)
	}
	cpu := st.CPU.Seconds()
	if st.CPU < 0 {
		cpu = -1
	}
	return StatsOut{CPU: cpu, Memory: st.Memory, Pids: st.Pids, Disk: st.Disk, OOMKills: st.OOMKills,
		Open: s.Fleet.OpenRequests(sb), Time: st.Time.UTC()}, nil
}
