package jupyter

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/guest/internal/session"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

var (
	//go:embed recipe/apt.sh
	aptScript string
	//go:embed recipe/r.sh
	rScript string
	//go:embed recipe/java.sh
	javaScript string
	//go:embed recipe/Cells.java
	javaProgram string
	//go:embed recipe/java_kernel.py
	javaKernel string
)

const (
	// aptCommand installs a Debian package.
	aptCommand = "sudo apt-get update && sudo apt-get install -y --no-install-recommends "
	// maxLine limits a line of a recipe's output.
	maxLine = 4 << 10
	// failureLines is how many lines of a failed recipe's errors are reported.
	failureLines = 2
)

// recipe installs the kernel of another language on first use and in the background. Calls wait for it.
type recipe struct {
	language string
	script   string
	fix      string   // command that installs what the script cannot
	files    []string // arguments of the script; nil: it needs no Python

	mu     sync.Mutex
	step   string // of the current run
	failed time.Time
	last   error         // of the last run
	done   chan struct{} // closed at the end of the current run; nil: none
}

// newRecipes returns the recipes by the name of the kernel.
func newRecipes() map[string]*recipe {
	return map[string]*recipe{
		"ir":   {language: "R", script: rScript, fix: aptCommand + "r-cran-irkernel"},
		"java": {language: "Java", script: javaScript, fix: aptCommand + "default-jdk-headless", files: []string{javaProgram, javaKernel}},
	}
}

// provideKernel installs a kernel if the machine has none of this name and a recipe for it. See ensurePython for emit.
func (s *Service) provideKernel(ctx context.Context, name string, emit func(kernel.Output) error) error {
	r := s.recipes[strings.ToLower(name)]
	if r == nil {
		return s.ensurePython(ctx, name, emit)
	}
	if _, err := s.kernelSpec(ctx, name); !hasCode(err, op.NotFound) {
		return err
	}
	args := []string{}
	if r.files != nil {
		if err := s.ensurePython(ctx, "", emit); err != nil {
			return err
		}
		python, err := s.kernelSpec(ctx, "")
		if err != nil {
			return err
		}
		args = append([]string{python.Argv[0]}, r.files...)
	}
	done, err := s.beginRecipe(r, args)
	if err == nil {
		err = s.await(ctx, installation{r.language, done, r.progress, r.failure}, emit)
	}
	if err != nil {
		if _, ok := op.AsError(err); ok {
			return err
		}
		return op.Errorf(op.Unavailable, "no kernel for %s: %w; run: %s", r.language, err, r.fix)
	}
	_, _ = s.specs.get(ctx, 0) // kernelSpec reports the error
	return nil
}

func hasCode(err error, code op.Code) bool {
	e, ok := op.AsError(err)
	return ok && e.Code == code
}

// beginRecipe runs a recipe, unless it runs or has just failed.
func (s *Service) beginRecipe(r *recipe, args []string) (<-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.done != nil:
		return r.done, nil
	case r.last != nil && time.Since(r.failed) < installRetry:
		return nil, r.last
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions.Closed() {
		return nil, session.ErrStopping()
	}
	done := make(chan struct{})
	r.done, r.step = done, "starting"
	s.tasks.Go(func() {
		err := s.runRecipe(r, args)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.last, r.failed, r.done = err, time.Now(), nil
		close(done)
	})
	return done, nil
}

func (s *Service) runRecipe(r *recipe, args []string) error {
	ctx, cancel := context.WithTimeoutCause(s.life, installTime, fmt.Errorf("timed out after %v", installTime))
	defer cancel()
	system := "no"
	if s.Packaged {
		system = "yes"
	}
	res, err := s.Runner.Run(ctx, proc.Command{Path: "bash", Args: append([]string{"-c", aptScript + r.script, "recipe", system}, args...),
		Dir: "/", Stdout: r, Limit: maxLine, Session: true})
	switch {
	case err != nil:
		return err
	case res.Exit.Code != 0:
		return errors.New(findReason(res.Stderr))
	}
	return nil
}

// findReason returns the lines of a text that say why a recipe failed: the first errors of apt, otherwise the last lines.
func findReason(text []byte) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"), "\n")
	var reasons []string
	for _, line := range lines {
		if reason, ok := strings.CutPrefix(line, "E: "); ok {
			reasons = append(reasons, reason)
		}
	}
	if len(reasons) == 0 {
		reasons = lines[max(0, len(lines)-failureLines):]
	}
	return strings.Join(reasons[:min(len(reasons), failureLines)], "; ")
}

// Write reads the progress of a recipe: lines of "@STEP". A line is written at once.
func (r *recipe) Write(b []byte) (int, error) {
	for line := range bytes.Lines(b) {
		if step, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte("@")); ok {
			r.mu.Lock()
			r.step = strings.ToValidUTF8(string(step[:min(len(step), maxLine)]), "\uFFFD")
			r.mu.Unlock()
		}
	}
	return len(b), nil
}

// progress implements installation.
func (r *recipe) progress() (step string, over bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.step, false, nil
}

// failure implements installation.
func (r *recipe) failure() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last
}
