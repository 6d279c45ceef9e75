package document

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Helper runs aio-markdown, which reads formats that are too dangerous, or require too much code,
// to be read in aio.
type Helper struct {
	Runner  *proc.Runner
	Program func() string // returns its path; empty: not installed
}

// Job is one run of the helper.
type Job struct {
	Args      []string
	Stdin     io.Reader
	MaxOutput int    // bytes; the rest is discarded
	TempDir   string // for its temporary files; empty: the default
}

// Run returns the output of the helper. The purpose, such as "convert page.html", is for error
// messages. The helper limits its own memory and is killed when ctx ends.
func (h Helper) Run(ctx context.Context, purpose string, j Job) ([]byte, error) {
	program := ""
	if h.Program != nil && h.Runner != nil {
		program = h.Program()
	}
	if program == "" {
		return nil, op.Errorf(op.Unavailable, "cannot %s: the program aio-markdown is missing; install it in the folder of aio", purpose)
	}
	var env []string
	if j.TempDir != "" {
		env = append(h.Runner.Environ(), "TMPDIR="+j.TempDir)
	}
	out := proc.NewCapture(j.MaxOutput, 0)
	res, err := h.Runner.Run(ctx, proc.Command{Path: program, Args: j.Args, Env: env, Stdin: j.Stdin, Stdout: out,
		Limit: 64 << 10, Grace: -1})
	switch {
	case err != nil:
		return nil, fmt.Errorf("run aio-markdown: %w", err)
	case res.Exit.Code == 1:
		reason, _, _ := strings.Cut(strings.TrimSpace(string(res.Stderr)), "\n")
		return nil, op.Errorf(op.Invalid, "cannot %s: %.300s", purpose, reason)
	case res.Exit.Code != 0:
		return nil, op.Errorf(op.Invalid, "cannot %s: the file requires too much memory or is damaged (aio-markdown: %s)", purpose, res.Exit)
	}
	return out.Head(), nil
}
