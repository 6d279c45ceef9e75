// Lane runs the tests of one lane and prints their durations.
//
//	go run ./test/lane unit
//	go run ./test/lane -repeat 20 -busy 2 test ./internal/system/proc
//
// CONTRIBUTING.md describes the lanes. A test selects its lane with testenv.Need, NeedRoot, Engine or
// Nightly, which skip it in the other lanes.
package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var code int
	var err error
	switch args := os.Args[1:]; {
	case len(args) == 3 && args[0] == sweepArg:
		err = sweep(args[1], args[2])
	case len(args) > 1 && args[0] == initArg:
		code, err = runContained(args[1], args[2:])
	case os.Getenv(runEnv) == "":
		code, err = contain(args)
	default:
		err = runLane(args)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "lane:", err)
		code = 1
	}
	os.Exit(code)
}

// notifyEnd receives the signals that end a run.
func notifyEnd() chan os.Signal {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	return signals
}

func runLane(args []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return run(ctx, args)
}

var errFailed = errors.New("tests failed")

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("lane", flag.ContinueOnError)
	repeat := flags.Int("repeat", 1, "run the tests this `many` times")
	busy := flags.Int("busy", 0, "run next to this many busy `loops`")
	only := flags.String("run", "", "run only tests whose name matches this `pattern`")
	slowest := flags.Int("slowest", 10, "print this many of the slowest `tests`")
	verbose := flags.Bool("v", false, "print the output of tests that pass, too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	l, ok := lanes[flags.Arg(0)]
	if !ok {
		return fmt.Errorf("unknown lane %q; use unit, test, engines or nightly", flags.Arg(0))
	}
	steps := l.steps
	if packages := flags.Args()[1:]; len(packages) > 0 || *only != "" {
		steps = choose(steps, packages, *only)
	}
	start := time.Now()
	programs, err := buildPrograms(ctx, l.race)
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	defer spin(*busy)()
	total, content := newSummary(), tree(ctx)
	for i := range *repeat {
		if *repeat > 1 {
			fmt.Printf("run %d of %d\n", i+1, *repeat)
		}
		for _, s := range steps {
			if err := ctx.Err(); err != nil {
				return err
			}
			cmd := s.command(ctx, *repeat > 1)
			cmd.Env = append(os.Environ(), "TEST_LANE="+flags.Arg(0), "TEST_PROGRAMS="+programs, "TEST_TREE="+content)
			if s.race {
				cmd.Env = append(cmd.Env, "CGO_ENABLED=1")
			}
			if err := total.follow(cmd, *verbose); err != nil {
				return err
			}
		}
	}
	total.print(os.Stdout, flags.Arg(0), time.Since(start).Round(time.Second), *slowest)
	if total.failed > 0 || total.broken > 0 {
		return errFailed
	}
	return nil
}

// tree identifies the content of the repository. Go reuses results of tests that build programs only
// for the same content.
func tree(ctx context.Context) string {
	sum := sha256.New()
	for _, args := range [][]string{{"rev-parse", "HEAD"}, {"diff", "HEAD"}, {"ls-files", "--others", "--exclude-standard"}} {
		out, err := exec.CommandContext(ctx, "git", args...).Output()
		if err != nil {
			return rand.Text()
		}
		sum.Write(out)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// buildPrograms links the programs of cmd/ once for all packages, into a folder that other users
// can read, because some tests run the programs as other users.
func buildPrograms(ctx context.Context, race bool) (string, error) {
	dir, err := os.MkdirTemp("", "cove-programs-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	build := func(cgo string, args ...string) error {
		cmd := exec.CommandContext(ctx, "go", append([]string{"build", "-ldflags", "-s -w", "-o", dir + "/"}, args...)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo)
		cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
		return cmd.Run()
	}
	err = build("0", "./cmd/...")
	if err == nil && race { // not cove-init: it calls the kernel for all threads, which cgo rules out
		err = build("1", "-race", "./cmd/aio", "./cmd/cove")
	}
	return dir, err
}

// spin keeps processors busy until the returned function is called.
func spin(loops int) func() {
	done := make(chan struct{})
	for range loops {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		go func() {
			runtime.LockOSThread() // Pdeathsig applies to the thread
			if cmd.Start() == nil {
				<-done
				cmd.Process.Kill() //nolint:errcheck // it may have ended
				cmd.Wait()         //nolint:errcheck // it was killed
			}
		}()
	}
	return func() { close(done) }
}

// A lane is a set of tests that run together.
type lane struct {
	steps []step
	race  bool // build the programs under test with the race detector, too
}

// A step is one call of go test.
type step struct {
	packages []string
	skip     []string // packages that a pattern of packages includes
	run      string
	race     bool
	fresh    bool // Go does not know all inputs of the result, so it cannot reuse it
	parallel int  // tests of a package at a time; 0: as many as there are processors
	timeout  string
}

// choose narrows steps to packages and tests.
func choose(steps []step, packages []string, only string) []step {
	steps = slices.Clone(steps)
	if len(packages) > 0 {
		steps = steps[:1]
		steps[0].packages, steps[0].skip, steps[0].run = packages, nil, ""
	}
	for i := range steps {
		if only != "" {
			steps[i].run = only
		}
	}
	return steps
}

func (s step) command(ctx context.Context, again bool) *exec.Cmd {
	args := []string{"test", "-json", "-vet=off", "-ldflags=-s -w", "-timeout", s.timeout}
	if s.race {
		args = append(args, "-race")
	}
	if s.run != "" {
		args = append(args, "-run", s.run)
	}
	if s.parallel > 0 {
		args = append(args, fmt.Sprint("-parallel=", s.parallel))
	}
	if again || s.fresh {
		args = append(args, "-count=1")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, s.list()...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.Stderr = os.Stderr
	return cmd
}

// list returns the packages of a step, without skipped ones.
func (s step) list() []string {
	if len(s.skip) == 0 {
		return s.packages
	}
	out, err := exec.Command("go", append([]string{"list"}, s.packages...)...).Output()
	if err != nil {
		return s.packages // go test reports the error
	}
	return slices.DeleteFunc(strings.Fields(string(out)), func(pkg string) bool {
		return slices.ContainsFunc(s.skip, func(tail string) bool {
			return strings.HasSuffix(pkg, tail) || strings.Contains(pkg, tail+"/")
		})
	})
}
