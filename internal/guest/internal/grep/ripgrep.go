package grep

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Ripgrep searches with the program rg.
type Ripgrep struct {
	Runner  *proc.Runner
	Program string // its path
}

// Grep first searches with all cores, which report files in any order. If that yields far more
// than the page, an ordered search follows, which stops as soon as the page is full.
func (r Ripgrep) Grep(ctx context.Context, q Query) (Result, error) {
	if err := q.check(); err != nil {
		return Result{}, err
	}
	dir, target, err := splitRoot(q.Root)
	if err != nil {
		return Result{}, err
	}
	limit, cancel := withTimeout(ctx, q.Timeout)
	defer cancel()
	if q.Offset <= 10_000 && target == "." {
		c := newCollector(q)
		out, err := r.run(ctx, limit, dir, r.args(q, target, false), q, c)
		if err != nil || !c.gaveUp {
			return out, err
		}
	}
	return r.run(ctx, limit, dir, r.args(q, target, true), q, &page{offset: q.Offset, max: q.Max})
}

// splitRoot splits a root into the folder to which globs are relative, and the target to search
// there.
func splitRoot(root string) (dir, target string, err error) {
	f, err := os.OpenFile(root, os.O_RDONLY|unix.O_NONBLOCK, 0) // rg does not report a root that it may not read
	if err != nil {
		return "", "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", "", err
	}
	if info.IsDir() {
		return root, ".", nil
	}
	return filepath.Dir(root), "./" + filepath.Base(root), nil
}

func (r Ripgrep) args(q Query, target string, ordered bool) []string {
	args := []string{"--no-config", "--no-messages", "--json", "--max-count", strconv.Itoa(q.need())}
	add := func(when bool, more ...string) {
		if when {
			args = append(args, more...)
		}
	}
	add(ordered, "--sort", "path")
	add(q.IgnoreCase, "--ignore-case")
	add(q.Fixed, "--fixed-strings")
	add(q.Multiline, "--multiline")
	add(q.Hidden, "--hidden")
	add(!q.Ignore, "--no-ignore")
	// Only ignore files of the tree apply: results must not depend on the user's Git settings.
	add(q.Ignore, "--no-require-git", "--no-ignore-global", "--no-ignore-exclude", "--no-ignore-parent")
	add(q.Shallow, "--max-depth", "1")
	add(q.Before > 0, "--before-context", strconv.Itoa(q.Before))
	add(q.After > 0, "--after-context", strconv.Itoa(q.After))
	add(q.MaxFileSize > 0, "--max-filesize", strconv.FormatInt(q.MaxFileSize, 10))
	for _, t := range q.types() {
		args = append(args, "--type="+t)
	}
	for _, g := range q.Include {
		args = append(args, "--glob="+g)
	}
	for _, g := range q.Exclude {
		args = append(args, "--glob=!"+strings.TrimPrefix(g, "!"))
	}
	return append(args, "--regexp="+q.Pattern, "--", target)
}

// run passes rg's report to the sink and returns its result. limit ends the search, ctx the call.
func (r Ripgrep) run(ctx, limit context.Context, dir string, args []string, q Query, to sink) (Result, error) {
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	// The report is not read by the runner, since the runner would not wait for a slow line.
	report, out, err := os.Pipe()
	if err != nil {
		return Result{}, fmt.Errorf("run ripgrep: %w", err)
	}
	defer report.Close()
	stderr := proc.NewCapture(4<<10, 0)
	p, err := r.Runner.Start(proc.Command{Path: r.Program, Args: args, Dir: dir, Stdout: out, Stderr: stderr, Grace: -1})
	out.Close()
	if err != nil {
		return Result{}, fmt.Errorf("run ripgrep: %w", err)
	}
	defer p.Kill()
	defer context.AfterFunc(limit, func() { p.Kill() })()
	events := &reportReader{q: q, dir: dir, to: to}
	if err := events.readAll(report); err != nil {
		return Result{}, fmt.Errorf("read ripgrep's report: %w", err)
	}
	if !events.done {
		<-p.Done()
	}
	switch {
	case ctx.Err() != nil:
		return Result{}, ctx.Err()
	case !events.done && limit.Err() != nil:
		out := to.result()
		out.TimedOut, out.Truncated = true, true
		return out, nil
	case !events.done && p.Exit().Code > 1 && !events.summary:
		return Result{}, &PatternError{oneLine(stderr.String())}
	}
	return to.result(), nil
}

// oneLine joins the lines of rg's error message.
func oneLine(stderr string) string {
	text := strings.Join(strings.Fields(stderr), " ")
	if text == "" {
		text = "ripgrep refused the search; check pattern, type and globs"
	}
	return text
}

// types returns ripgrep's names of the types.
func (q Query) types() []string {
	types := make([]string, len(q.Types))
	for i, t := range q.Types {
		types[i] = t
		if known, ok := typeAliases[strings.ToLower(t)]; ok {
			types[i] = known
		}
	}
	return types
}

// typeAliases maps common names of file types that the installed ripgrep may not know.
var typeAliases = map[string]string{
	"python": "py", "python3": "py", "javascript": "js", "jsx": "js", "typescript": "ts", "tsx": "ts",
	"golang": "go", "c++": "cpp", "rs": "rust", "rb": "ruby", "yml": "yaml", "text": "txt", "makefile": "make",
	"dockerfile": "docker", "terraform": "tf", "kt": "kotlin", "c#": "cs", "htm": "html", "bash": "sh", "shell": "sh",
}
