package hub

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// NetworkOut is what a sandbox may reach, and what it did.
type NetworkOut struct {
	Policy
	Connections []Connection `json:"connections" doc:"The latest ones, oldest first; empty where the provider shows no connections"`
}

// Connection is one that a sandbox made or tried to make.
type Connection struct {
	Time     time.Time `json:"time"`
	Protocol string    `json:"protocol" enum:"http,connect,socks5"`
	Host     string    `json:"host"`
	Port     int       `json:"port"`
	Address  string    `json:"address" doc:"Where it led"`
	Verdict  string    `json:"verdict" enum:"allowed,denied,failed"`
	Reason   string    `json:"reason" doc:"Why it was denied or failed"`
	Ended    bool      `json:"ended" doc:"Whether it is over; what follows is known then"`
	Up       int64     `json:"up_bytes"`
	Down     int64     `json:"down_bytes"`
	Took     float64   `json:"took_ms" doc:"Milliseconds"`
}

// Network shows the policy and the latest connections.
func (h *Hub) Network(ctx context.Context, in NameIn) (NetworkOut, error) {
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return NetworkOut{}, err
	}
	out := NetworkOut{Policy: Policy{Mode: string(sb.Spec.Network.Mode), Allow: sb.Spec.Network.Allow}}
	if p := h.box(sb).exit(); p != nil {
		for _, r := range p.Records() {
			out.Connections = append(out.Connections, Connection{r.Time.UTC(), r.Protocol, r.Host, r.Port, r.Address, r.Verdict, r.Reason, r.Ended, r.Up, r.Down, float64(r.Took.Microseconds()) / 1000})
		}
	}
	return out, nil
}

// SetNetworkIn is a new policy.
type SetNetworkIn struct {
	Name  string   `path:"name" doc:"Name of the sandbox"`
	Mode  string   `json:"mode" default:"" doc:"none; allow: only what the list says; open: everything but the host and private addresses"`
	Allow []string `json:"allow" nullable:"true" doc:"Names, *.names, addresses and ranges, each with :port behind it if only that is meant"`
}

// SetNetwork changes the policy at once.
func (h *Hub) SetNetwork(ctx context.Context, in SetNetworkIn) (Object, error) {
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return Object{}, err
	}
	if able := h.cfg.Provider.Abilities(); !able.Egress {
		return Object{}, op.Errorf(op.Invalid, "provider %s cannot limit what sandboxes reach", able.Provider)
	}
	p := &Policy{Mode: in.Mode, Allow: in.Allow}
	sb, err = h.cfg.Provider.Update(ctx, sb.ID, func(s *sandbox.Spec) error {
		if err := p.apply(&s.Network); err != nil {
			return op.Errorf(op.Invalid, "%w", err)
		}
		return nil
	})
	if err != nil {
		return Object{}, h.wire(in.Name, err)
	}
	h.see(sb)
	return h.object(ctx, sb), nil
}

// LogsIn asks for a log.
type LogsIn struct {
	Name string `path:"name" doc:"Name of the sandbox"`
	Max  int64  `query:"max" default:"65536" minimum:"1" maximum:"16777216" doc:"Most bytes"`
}

// Logs reads the end of a sandbox's output.
func (h *Hub) Logs(ctx context.Context, in LogsIn) (*op.Blob, error) {
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	able := h.cfg.Provider.Abilities()
	l, ok := h.cfg.Provider.(sandbox.Logger)
	if !ok || !able.Logs {
		return nil, op.Errorf(op.Invalid, "provider %s keeps no logs", able.Provider)
	}
	text, err := l.Logs(ctx, sb.ID, in.Max)
	if err != nil {
		return nil, h.wire(in.Name, err)
	}
	return &op.Blob{Type: "text/plain; charset=utf-8", Size: int64(len(text)), Body: io.NopCloser(bytes.NewReader(text))}, nil
}

// StatsOut is what a sandbox uses; -1 where that cannot be measured.
type StatsOut struct {
	CPU      float64   `json:"cpu_seconds" doc:"Processor time since it was started"`
	Memory   int64     `json:"memory_bytes"`
	Pids     int64     `json:"pids" doc:"Processes and threads"`
	Disk     int64     `json:"disk_bytes"`
	OOMKills int64     `json:"oom_kills" doc:"Processes killed because memory ran out"`
	Open     int       `json:"open_requests" doc:"Requests and streams that are under way to it"`
	Time     time.Time `json:"time"`
}

// Stats measures a sandbox.
func (h *Hub) Stats(ctx context.Context, in NameIn) (StatsOut, error) {
	sb, err := h.find(ctx, in.Name)
	if err != nil {
		return StatsOut{}, err
	}
	able := h.cfg.Provider.Abilities()
	s, ok := h.cfg.Provider.(sandbox.Stater)
	if !ok || !able.Stats {
		return StatsOut{}, op.Errorf(op.Invalid, "provider %s measures nothing", able.Provider)
	}
	st, err := s.Stats(ctx, sb.ID)
	if err != nil {
		return StatsOut{}, h.wire(in.Name, err)
	}
	cpu := st.CPU.Seconds()
	if st.CPU < 0 {
		cpu = -1
	}
	return StatsOut{CPU: cpu, Memory: st.Memory, Pids: st.Pids, Disk: st.Disk, OOMKills: st.OOMKills, Open: h.box(sb).busy(), Time: st.Time.UTC()}, nil
}
