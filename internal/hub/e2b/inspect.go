package e2b

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// oldBuilds explains why builds of older clients are not supported.
const oldBuilds = "this form of builds is not supported; use version 2.30 or later of E2B's SDK or command line"

// inspectOps lists the operations that inspect sandboxes, and the unsupported operations.
func (s *Service) inspectOps() []op.Op {
	list := []op.Op{
		op.New(spec("metrics", "GET "+one+"/metrics",
			"List samples of a sandbox's resource usage for an E2B client, oldest first, and measure it now.", reads), s.Metrics),
		op.New(spec("metrics_all", "GET /sandboxes/metrics", "Measure several sandboxes for an E2B client.", reads), s.AllMetrics),
		op.New(spec("logs", "GET "+one+"/logs", "Read the last output of a sandbox's server for an E2B client.",
			reads, also("GET /v2"+one+"/logs")), s.Logs),
		op.New(spec("network", "PUT "+one+"/network",
			"Replace the egress policy of a sandbox for an E2B client. Missing fields are cleared.", status(204)), s.SetNetwork),
	}
	for _, what := range []struct{ name, route, text string }{
		{"build_v2", "POST /v2/templates", oldBuilds},
		{"build_old", "POST /templates", oldBuilds},
		{"tags", "POST /templates/tags", "tags of finished builds cannot be changed; build the template with another tag"},
		{"teams", "GET /teams", "this hub has no teams; a key belongs to a tenant"},
		{"volumes", "GET /volumes", "E2B's volumes are not supported; use GET /api/v1/volume of this hub"},
		{"create_volume", "POST /volumes", "E2B's volumes are not supported; use POST /api/v1/volume of this hub"},
		{"secrets", "GET /secrets", "E2B's secrets are not supported; use GET /api/v1/secret of this hub"},
		{"create_secret", "POST /secrets", "E2B's secrets are not supported; use PUT /api/v1/secret of this hub"},
	} {
		list = append(list, op.New(spec(what.name, what.route, "Not supported: "+what.text+".",
			missing), func(context.Context, op.None) (op.None, error) {
			return op.None{}, op.Errorf(op.Unsupported, "%s", what.text)
		}))
	}
	return append(list, op.New(spec("template_change", "PATCH /v2/templates/{id}", "Not supported: "+notPublic+".", missing,
		also("PATCH /templates/{id}")), func(context.Context, TemplateIn) (op.None, error) {
		return op.None{}, op.Errorf(op.Unsupported, "%s", notPublic)
	}))
}

// notPublic explains why templates cannot be changed.
const notPublic = "templates belong to one tenant and cannot be public"

func missing(s *op.Spec) { s.Status, s.ReadOnly = http.StatusNotImplemented, true }

// LogsIn selects lines of a log.
type LogsIn struct {
	ID    string `path:"id" doc:"ID of the sandbox"`
	Start int64  `query:"start" default:"0" doc:"Only lines after this time, in Unix milliseconds"`
	Limit int    `query:"limit" default:"1000" minimum:"0" maximum:"1000" doc:"Maximum number of lines"`

	Cursor    int64  `query:"cursor" default:"0" doc:"The same as start"`
	Direction string `query:"direction" default:"forward" doc:"Ignored: lines are in order"`
	Level     string `query:"level" default:"" doc:"Ignored"`
	Search    string `query:"search" default:"" doc:"Only lines that contain this text"`
}

// LogsOut is a log, in both formats that clients support.
type LogsOut struct {
	Logs    []LogLine  `json:"logs"`
	Entries []LogEntry `json:"logEntries"`
}

// LogLine is a line.
type LogLine struct {
	Timestamp time.Time `json:"timestamp"`
	Line      string    `json:"line" doc:"Object in JSON: level, logger and message"`
}

// logLine is the object in a LogLine. The command line of clients decodes it.
type logLine struct {
	Level   string `json:"level"`
	Logger  string `json:"logger"`
	Message string `json:"message"`
}

// logger is the name under which the server of a sandbox logs.
const logger = "aio"

// levels are the levels that clients know. The output of a program may contain any other.
var levels = []string{"debug", "info", "warn", "error"}

// LogEntry is a line with its parts.
type LogEntry struct {
	Timestamp time.Time         `json:"timestamp"`
	Message   string            `json:"message"`
	Level     string            `json:"level"`
	Fields    map[string]string `json:"fields"`
}

// Logs returns the last lines of a log.
func (s *Service) Logs(ctx context.Context, in LogsIn) (LogsOut, error) {
	out := LogsOut{Logs: []LogLine{}, Entries: []LogEntry{}}
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return out, err
	}
	blob, err := s.Sandboxes.Logs(ctx, lifecycle.LogsIn{Name: in.ID, Max: 1 << 20})
	if err != nil {
		return out, err
	}
	defer blob.Body.Close()
	lines := bufio.NewScanner(io.LimitReader(blob.Body, 1<<20))
	at := sb.Created.UTC()
	for lines.Scan() {
		line := lines.Text()
		level := "info"
		for field := range strings.FieldsSeq(line) {
			if text, ok := strings.CutPrefix(field, "time="); ok {
				if t, err := time.Parse(time.RFC3339Nano, text); err == nil {
					at = t.UTC()
				}
			}
			if text, ok := strings.CutPrefix(field, "level="); ok && slices.Contains(levels, strings.ToLower(text)) {
				level = strings.ToLower(text)
			}
		}
		if at.UnixMilli() < max(in.Start, in.Cursor) || !strings.Contains(line, in.Search) {
			continue
		}
		object, err := json.Marshal(logLine{level, logger, line})
		if err != nil {
			return out, err
		}
		out.Logs = append(out.Logs, LogLine{at, string(object)})
		out.Entries = append(out.Entries, LogEntry{at, line, level, map[string]string{}})
	}
	if over := len(out.Logs) - in.Limit; over > 0 {
		out.Logs, out.Entries = out.Logs[over:], out.Entries[over:]
	}
	return out, nil
}

// NetworkIn is a new egress policy.
type NetworkIn struct {
	ID       string `path:"id" doc:"ID of the sandbox"`
	Internet *bool  `json:"allow_internet_access" doc:"false: no egress"`
	Network
}

// SetNetwork changes the egress policy.
func (s *Service) SetNetwork(ctx context.Context, in NetworkIn) (op.None, error) {
	policy, err := in.policy(in.Internet)
	if err != nil {
		return op.None{}, err
	}
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return op.None{}, err
	}
	names, err := s.rules.hold(ctx, &in.Network)
	if err != nil {
		return op.None{}, err
	}
	defer s.rules.release(ctx, names)
	if err := checkRules(sb, names); err != nil {
		return op.None{}, err
	}
	mode := lifecycle.SetNetworkIn{Name: in.ID, Mode: string(sandbox.NetworkOpen)}
	if policy != nil {
		mode.Mode, mode.Allow = policy.Mode, policy.Allow
	}
	if _, err := s.Sandboxes.SetNetwork(ctx, mode); err != nil {
		return op.None{}, err
	}
	if err := s.rules.replace(ctx, sb, names); err != nil || in.Public == nil && in.Mask == "" {
		return op.None{}, err
	}
	_, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		if in.Public != nil {
			delete(spec.Annotations, naming.AnnotationClosed)
		}
		if in.Public != nil && !*in.Public {
			naming.Annotate(spec, naming.AnnotationClosed, "true")
		}
		if in.Mask != "" {
			naming.Annotate(spec, naming.AnnotationMask, in.Mask)
		}
		return nil
	})
	return op.None{}, fault.FromProvider(in.ID, err)
}
