package app

import (
	"cmp"
	"context"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/activity"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/e2b/envd"
	"github.com/cove-sandbox/cove/internal/guest/glance"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/mirror"
	"github.com/cove-sandbox/cove/internal/guest/node"
	"github.com/cove-sandbox/cove/internal/guest/shell"
)

// activitySources returns functions that count the running commands of each service, including
// background commands.
func activitySources(sh *shell.Service, ba *bash.Service, py *jupyter.Service, js *node.Service, daemon *envd.Service) []activity.Source {
	ctx := context.Background()
	return []activity.Source{
		{Name: "e2b", Running: daemon.Running},
		{Name: "shell", Running: func() (n int) {
			list, _ := sh.List(ctx, op.None{})
			for _, s := range list.Sessions {
				n += count(s.CurrentCommand != nil || s.Status == "active")
			}
			return n
		}},
		{Name: "bash", Running: func() (n int) {
			list, _ := ba.Sessions(ctx, op.None{})
			for _, s := range list {
				n += count(s.CurrentCommand != nil)
			}
			return n
		}},
		{Name: "jupyter", Running: func() (n int) {
			list, _ := py.ListSessions(ctx, op.None{})
			for _, s := range list.Sessions {
				n += count(s.State == "busy")
			}
			return n
		}},
		{Name: "nodejs", Running: func() (n int) {
			list, _ := js.ListSessions(ctx, node.ListSessionsIn{})
			for _, s := range list.Sessions {
				n += count(s.State == node.Executing)
			}
			return n
		}},
	}
}

// newActivity returns the service that reports and records activity.
func (a *Aio) newActivity(sources []activity.Source, desktop *display.Service, env []string) *activity.Service {
	c := a.cfg
	cfg := activity.Config{Started: time.Now(), Sources: sources, Screen: desktop.Glance,
		Secrets: []string{c.AuthToken, c.APIKey, c.SandboxAPIKey}, Env: env, Home: c.Home, Workspace: c.Workspace, Log: a.log}
	if c.Activity {
		cfg.State = cmp.Or(c.SessionLogs, c.State)
	}
	return activity.New(cfg)
}

// recordTyped records a command that a person typed in a terminal.
func (a *Aio) recordTyped(call *op.Call, r shell.Ran) {
	if call != nil {
		a.activity.Typed(call, activity.Typed{Session: r.Session, Command: r.Command, Output: r.Output, ExitCode: r.ExitCode, Began: r.Began})
	}
}

// terminalText returns a function that returns the screen of the most recently used session.
func terminalText(sh *shell.Service) func() string {
	return func() string {
		ctx := context.Background()
		list, _ := sh.List(ctx, op.None{})
		latest, at := "", time.Time{}
		for id, s := range list.Sessions {
			if !s.LastUsedAt.Before(at) {
				latest, at = id, s.LastUsedAt
			}
		}
		if latest == "" {
			return ""
		}
		view, err := sh.View(ctx, shell.ViewIn{ID: latest})
		if err != nil {
			return "" // it has just been closed
		}
		if command := op.Value(view.Command); command != "" {
			return "$ " + command + "\n" + view.Output
		}
		return view.Output
	}
}

func count(running bool) int {
	if running {
		return 1
	}
	return 0
}

// followSteps sends the calls of the activity record without their output.
func (a *Aio) followSteps(ctx context.Context, send func(mirror.Step) error) error {
	return a.activity.Follow(ctx, activity.GetIn{Limit: 30}, func(event op.Event) error {
		e, ok := event.Data.(activity.Entry)
		if !ok {
			return nil
		}
		return send(mirror.Step{ID: e.ID, Time: e.Time, Op: e.Op, Kind: e.Kind, Text: e.Summary(), Failed: e.Failed, Took: e.Took})
	})
}

// latestStep returns the latest call of the activity record.
func (a *Aio) latestStep() glance.Step {
	e := a.activity.Latest()
	step := glance.Step{Time: e.Time, Op: e.Op, Text: e.Summary(), Failed: e.Failed}
	switch e.Kind {
	case "browser", "display":
		step.Shows = "screen"
	case "shell":
		step.Shows = "terminal"
	}
	return step
}
