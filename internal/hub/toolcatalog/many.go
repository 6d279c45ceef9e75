package toolcatalog

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
)

const (
	// maxMany is the maximum number of sandboxes of one call, maxAtOnce the maximum number of them that
	// are called concurrently.
	maxMany   = 100
	maxAtOnce = 16
)

type listToolsIn struct {
	Sandbox string `json:"sandbox_name" alias:"name" doc:"Name of the sandbox"`
	Tool    string `json:"tool_name" default:"" nullable:"true" doc:"Only this tool"`
}

// listTools shows the tools of a sandbox with their arguments.
func (t *Set) listTools(ctx context.Context, in listToolsIn) (string, error) {
	sb, err := t.Fleet.Find(ctx, in.Sandbox)
	if err != nil {
		return "", err
	}
	found := []info{}
	err = t.visit(ctx, sb, func(ctx context.Context, id string, via http.RoundTripper) error {
		return t.Remote.ListTools(ctx, id, via, func(name, description string, schema any) {
			if in.Tool == "" || in.Tool == name {
				found = append(found, newInfo(name, description, schema))
			}
		})
	})
	if err != nil {
		return "", err
	}
	if len(found) == 0 {
		return "", op.Errorf(op.NotFound, "sandbox %q has no tool %q; getSandbox lists its tools", in.Sandbox, in.Tool)
	}
	b, err := op.JSON(found)
	return string(b), err
}

type manyIn struct {
	Sandboxes []string        `json:"sandbox_names" minItems:"1" maxItems:"100" doc:"Names of the sandboxes"`
	Tool      string          `json:"tool_name" minLength:"1" doc:"Tool to call in each of them"`
	Arguments json.RawMessage `json:"arguments,omitempty" nullable:"true" doc:"Arguments of the tool, as an object"`
}

// oneResult is the result of one sandbox among many.
type oneResult struct {
	Sandbox string `json:"sandbox_name"`
	Failed  bool   `json:"failed"`
	Text    string `json:"text"`
}

// executeMany calls a tool in several sandboxes.
func (t *Set) executeMany(ctx context.Context, in manyIn) (toolset.Result, error) {
	results := make([]oneResult, len(in.Sandboxes))
	turn := make(chan struct{}, maxAtOnce)
	var wait sync.WaitGroup
	var done int
	var mu sync.Mutex
	call := op.CallOf(ctx)
	targets := make([]string, len(in.Sandboxes))
	for i, name := range in.Sandboxes {
		wait.Go(func() {
			turn <- struct{}{}
			defer func() { <-turn }()
			one := *call // each records its own sandbox
			out, err := t.execute(op.WithCall(ctx, &one), executeIn{Sandbox: name, Tool: in.Tool, Arguments: in.Arguments})
			results[i], targets[i] = summarize(name, out, err), one.TargetName
			mu.Lock()
			defer mu.Unlock()
			done++
			if report := call.Progress; report != nil {
				report(float64(done), float64(len(in.Sandboxes)), name+" is done")
			}
		})
	}
	wait.Wait()
	call.TargetName, call.Detail = strings.Join(targets, ","), in.Tool
	var text strings.Builder
	failed := 0
	room := max(toolset.Limit/len(results)-100, 200)
	for _, r := range results {
		if r.Failed {
			failed++
		}
		shown := []rune(r.Text)
		if len(shown) > room {
			shown = append(shown[:room:room], []rune("… [truncated; call sandboxExecutor for this sandbox]")...)
		}
		state := ""
		if r.Failed {
			state = " failed"
		}
		fmt.Fprintf(&text, "== %s%s\n%s\n", r.Sandbox, state, string(shown))
	}
	return toolset.Result{Text: fmt.Sprintf("%d of %d succeeded\n%s", len(results)-failed, len(results),
		text.String()), Failed: failed == len(results)}, nil
}

// summarize reduces the result of a sandbox's tool to its text.
func summarize(name string, out any, err error) oneResult {
	if err != nil {
		text := "internal error"
		if e, ok := op.AsError(err); ok {
			text = e.Msg
		}
		return oneResult{name, true, text}
	}
	var r struct {
		Content []struct{ Type, Text string }
		IsError bool
	}
	if b, err := op.JSON(out); err != nil || json.Unmarshal(b, &r) != nil {
		return oneResult{name, true, "cannot read the result"}
	}
	var parts []string
	for _, c := range r.Content {
		if c.Type == "text" {
			parts = append(parts, c.Text)
		} else {
			parts = append(parts, "["+c.Type+"]")
		}
	}
	return oneResult{name, r.IsError, strings.Join(parts, "\n")}
}

type onceIn struct {
	Command     string  `json:"command" default:"" nullable:"true" doc:"Command line to run"`
	Code        string  `json:"code" default:"" nullable:"true" doc:"Code to run instead"`
	Language    string  `json:"language" default:"python" nullable:"true" enum:"python,javascript" doc:"Language of the code"`
	Environment string  `json:"environment" alias:"template" default:"" nullable:"true" doc:"Environment of the sandbox"`
	Timeout     float64 `json:"timeout" default:"60" nullable:"true" minimum:"1" maximum:"300" doc:"Timeout in seconds"`
}

// runOnce runs a command or code in a temporary sandbox.
func (t *Set) runOnce(ctx context.Context, in onceIn) (result any, err error) {
	tool, args := "bash_exec", map[string]any{"command": in.Command, "hard_timeout": in.Timeout}
	switch {
	case (in.Command == "") == (in.Code == ""):
		return nil, op.Errorf(op.Invalid, "pass either command or code")
	case in.Code != "":
		tool, args = "code_execute", map[string]any{"code": in.Code, "language": in.Language, "timeout": int(in.Timeout)}
	}
	raw, err := op.JSON(args)
	if err != nil {
		return nil, err
	}
	minutes := in.Timeout/60 + 5 // if this hub is killed, the timeout deletes the sandbox
	sb, err := t.Sandboxes.Make(ctx, lifecycle.CreateIn{Environment: in.Environment, Timeout: &minutes})
	if err != nil {
		return nil, err
	}
	defer func() {
		if _, gone := t.Sandboxes.Delete(context.WithoutCancel(ctx), lifecycle.NameIn{Name: sb.Spec.Name}); gone != nil && err == nil {
			err = gone
		}
	}()
	err = t.visit(ctx, sb, func(ctx context.Context, id string, via http.RoundTripper) (err error) {
		result, err = t.Remote.CallTool(ctx, id, via, tool, raw)
		return err
	})
	return result, err
}
