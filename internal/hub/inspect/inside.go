package inspect

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
)

// insideOps lists the operations that query the server inside a sandbox for the dashboard. They
// neither wake the sandbox nor keep it awake.
func insideOps(s *Service) []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "sandbox_processes", Route: "GET " + one + "/processes", Tag: "sandbox", Verb: "processes",
			ReadOnly: true, NoTool: true, Columns: []string{"pid", "user", "cpu", "memory", "state", "command"},
			Doc: "List the processes of a running sandbox, the busiest first. Does not wake the sandbox or keep it awake."}, s.Processes),
		op.New(op.Spec{Name: "sandbox_signal", Route: "POST " + one + "/processes/{pid}/signal", Tag: "sandbox", Verb: "signal",
			Destructive: true, NoTool: true,
			Doc: "Send a signal to a process of a running sandbox."}, s.Signal),
		op.New(op.Spec{Name: "sandbox_ports", Route: "GET " + one + "/ports", Tag: "sandbox", Verb: "ports",
			ReadOnly: true, NoTool: true, Columns: []string{"port", "address", "process", "command"},
			Doc: "List the ports that programs in a running sandbox listen on. Does not wake the sandbox or keep it awake."}, s.OpenPorts),
		op.New(op.Spec{Name: "sandbox_activity_list", Route: "GET " + one + "/activity", Tag: "sandbox", Verb: "activity",
			ReadOnly: true, NoTool: true,
			Doc: "List the latest entries of the activity record of a running sandbox, oldest first. Does not wake the sandbox " +
				"or keep it awake."}, s.Activity),
	}
}

// Process is a process of a sandbox. Its texts are untrusted.
type Process struct {
	PID     int     `json:"pid"`
	Parent  int     `json:"parent" doc:"PID of its parent"`
	Started string  `json:"started" doc:"Identifies the process together with its PID"`
	User    string  `json:"user"`
	Name    string  `json:"name"`
	Command string  `json:"command" doc:"Command line, truncated"`
	State   string  `json:"state"`
	CPU     float64 `json:"cpu" doc:"Cores in use"`
	Memory  int64   `json:"memory" doc:"Resident memory in bytes"`
	Age     float64 `json:"age_seconds"`
	Server  bool    `json:"server" doc:"Whether it is part of the sandbox itself and cannot be ended"`
}

// Processes lists the processes of a sandbox.
func (s *Service) Processes(ctx context.Context, in lifecycle.NameIn) ([]Process, error) {
	out := []Process{}
	op.CallOf(ctx).Recorded = true // pages poll
	err := s.ask(ctx, in.Name, http.MethodGet, "/v1/sandbox/processes", nil, &out)
	return out, err
}

// SignalIn is a signal for a process.
type SignalIn struct {
	Name    string `path:"name" doc:"Name of the sandbox"`
	PID     int    `path:"pid" doc:"PID of the process inside the sandbox"`
	Signal  string `json:"signal" default:"TERM" enum:"TERM,KILL,INT,HUP,STOP,CONT" doc:"Signal to send"`
	Started string `json:"started" default:"" doc:"Only if the process with this PID has this value in the list"`
}

// Signal sends a signal.
func (s *Service) Signal(ctx context.Context, in SignalIn) (string, error) {
	body, err := json.Marshal(map[string]string{"signal": in.Signal, "started": in.Started})
	if err != nil {
		return "", err
	}
	var reply json.RawMessage
	if err := s.ask(ctx, in.Name, http.MethodPost, "/v1/sandbox/processes/"+strconv.Itoa(in.PID)+"/signal", body, &reply); err != nil {
		return "", err
	}
	return "Sent " + in.Signal + " to process " + strconv.Itoa(in.PID), nil
}

// OpenPort is a port that a program in a sandbox listens on. Its texts are untrusted.
type OpenPort struct {
	Port    int    `json:"port"`
	Address string `json:"address"`
	Process string `json:"process"`
	Command string `json:"command"`
}

// OpenPorts lists the ports of a sandbox.
func (s *Service) OpenPorts(ctx context.Context, in lifecycle.NameIn) ([]OpenPort, error) {
	out := []OpenPort{}
	op.CallOf(ctx).Recorded = true // pages poll
	err := s.ask(ctx, in.Name, http.MethodGet, "/v1/sandbox/ports", nil, &out)
	return out, err
}

// ActivityIn selects entries.
type ActivityIn struct {
	Name  string `path:"name" doc:"Name of the sandbox"`
	Limit int    `query:"limit" default:"200" minimum:"1" maximum:"1000" doc:"Maximum number of entries"`
	After int64  `query:"after" default:"0" minimum:"0" doc:"Only entries with a higher ID"`
}

// ActivityEntry is an entry of an activity record. Its texts are untrusted.
type ActivityEntry struct {
	ID      int64           `json:"id"`
	Time    time.Time       `json:"time"`
	Op      string          `json:"op"`
	Kind    string          `json:"kind"`
	Via     string          `json:"via"`
	Caller  string          `json:"caller"`
	Key     string          `json:"key"`
	Input   string          `json:"input"`
	Output  string          `json:"output"`
	Error   string          `json:"error"`
	Failed  bool            `json:"failed" doc:"Whether it failed, the command exited with a code other than 0, or the code raised"`
	Reads   bool            `json:"reads" doc:"Whether the operation itself changes nothing"`
	Took    float64         `json:"took_ms"`
	Picture bool            `json:"picture"`
	Missed  int             `json:"missed"`
	Change  json.RawMessage `json:"change,omitempty"`
	Changes json.RawMessage `json:"changes,omitempty"`
}

// Activity lists the latest entries of the record.
func (s *Service) Activity(ctx context.Context, in ActivityIn) ([]ActivityEntry, error) {
	op.CallOf(ctx).Recorded = true // pages poll
	query := url.Values{"limit": {strconv.Itoa(in.Limit)}, "after": {strconv.FormatInt(in.After, 10)}}
	var reply struct {
		Entries []ActivityEntry `json:"entries"`
	}
	if err := s.ask(ctx, in.Name, http.MethodGet, "/v1/sandbox/activity?"+query.Encode(), nil, &reply); err != nil {
		return nil, err
	}
	return append([]ActivityEntry{}, reply.Entries...), nil
}

// ask queries the server inside a sandbox.
func (s *Service) ask(ctx context.Context, name, method, path string, body []byte, reply any) error {
	sb, err := s.Fleet.Find(ctx, name)
	if err != nil {
		return err
	}
	text, err := fleet.Ask(ctx, s.Fleet, sb, method, path, body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, reply); err != nil {
		return op.Errorf(op.Unavailable, "sandbox %q sent an invalid reply", name)
	}
	return nil
}
