package verb

import (
	"bytes"
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Limits of following a log.
const (
	logEvery  = 500 * time.Millisecond
	logWindow = 1 << 20
)

// extendLogs adds --follow and --tail, and shows the command of run -d.
func (v *Verbs) extendLogs(cmd *cobra.Command) {
	var follow bool
	var tail int
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "Stream new lines until interrupted")
	cmd.Flags().IntVarP(&tail, "tail", "n", -1, "Number of lines to show from the end; -1: all that are kept")
	cmd.Long = "Read the last output of a sandbox's main program, or of the command that cove run -d started in it."
	plain := cmd.RunE
	run := v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
		name := cmd.Flags().Lookup("name").Value.String()
		if len(args) > 0 {
			name = args[0]
		}
		if name == "" {
			return &cli.Error{Code: cli.ExitUsage, Msg: "name a sandbox: cove logs [-f] NAME"}
		}
		sb, err := c.Get(cmd.Context(), name)
		if err != nil {
			return err
		}
		if sb.Labels[detachedLabel] == detachedValue && (sb.Status == "running" || sb.Status == "paused") {
			err := v.detachedLog(cmd.Context(), c.Guest(name), follow, tail)
			if !client.NotFound(err) {
				return err
			}
			// The sandbox was restarted: the command is not running.
		}
		return v.followLog(cmd.Context(), c, name, follow, tail)
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, name := range []string{"max", "output"} {
			if cmd.Flags().Changed(name) {
				return plain(cmd, args)
			}
		}
		return run(cmd, args)
	}
}

// lastLines returns the last n lines of a text; all of them if n is negative.
func lastLines(text []byte, n int) []byte {
	if n < 0 {
		return text
	}
	end := len(bytes.TrimSuffix(text, []byte("\n")))
	for ; n > 0; n-- {
		end = bytes.LastIndexByte(text[:max(end, 0)], '\n')
		if end < 0 {
			return text
		}
	}
	return text[min(end+1, len(text)):]
}

// followLog prints a log. With follow, it prints what is added until the sandbox is deleted.
func (v *Verbs) followLog(ctx context.Context, c *client.Client, name string, follow bool, tail int) error {
	var shown []byte
	for first := true; ; first = false {
		now, err := c.Logs(ctx, name, logWindow)
		switch {
		case ctx.Err() != nil, client.NotFound(err) && !first: // interrupted, deleted
			return nil //nolint:nilerr // the log has ended
		case err != nil:
			return err
		}
		part := newPart(shown, now)
		if first {
			part = lastLines(now, tail)
		}
		if _, err := v.Std.Out.Write(part); err != nil || !follow {
			return err
		}
		shown = append([]byte{}, now...)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(logEvery):
		}
	}
}

// detachedLog prints the output of the command that run -d started. With follow, it prints what is added until the command ends.
func (v *Verbs) detachedLog(ctx context.Context, g *client.Guest, follow bool, tail int) error {
	var offset, errOffset int64
	var before []byte
	for first := true; ; {
		var out struct {
			Stdout       string `json:"stdout"`
			Stderr       string `json:"stderr"`
			Offset       int64  `json:"offset"`
			StderrOffset int64  `json:"stderr_offset"`
			More         bool   `json:"more"`
			Command      struct {
				ExitCode *int `json:"exit_code"`
			} `json:"command"`
		}
		err := g.Call(ctx, http.MethodPost, "/v1/bash/output", map[string]any{"session_id": detachedSession, "offset": offset,
			"stderr_offset": errOffset, "wait": follow && !first}, &out)
		if err != nil {
			return err
		}
		offset, errOffset = out.Offset, out.StderrOffset
		text := append(before, out.Stdout...)
		text = append(text, out.Stderr...)
		before = nil
		if first && out.More {
			before = text // until all of it is known, from whose end the lines count
			continue
		}
		if first {
			text, first = lastLines(text, tail), false
		}
		if _, err := v.Std.Out.Write(text); err != nil {
			return err
		}
		if !follow || out.Command.ExitCode != nil && !out.More {
			return nil
		}
	}
}

// newPart returns what the end of a log has that its end some time before had not.
func newPart(before, now []byte) []byte {
	if bytes.HasPrefix(now, before) {
		return now[len(before):]
	}
	// The window has moved: the longest end of before that now begins with is known.
	for n := min(len(before), len(now)); n > 0; n-- {
		if bytes.HasPrefix(now, before[len(before)-n:]) {
			return now[n:]
		}
	}
	return now
}
