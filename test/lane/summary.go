package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// An event is a line that go test -json prints.
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64
}

// A summary counts the results of tests.
type summary struct {
	mu                      sync.Mutex
	passed, failed, skipped int
	broken                  int // packages that failed without a failing test
	reasons                 map[string]int
	took                    map[string]time.Duration // by test
	failures                map[string]int           // by test
	output                  map[string][]string      // of tests that have not ended
}

func newSummary() *summary {
	return &summary{reasons: map[string]int{}, took: map[string]time.Duration{}, failures: map[string]int{}, output: map[string][]string{}}
}

// follow runs go test and prints a line for each package, and the output of tests that fail.
func (s *summary) follow(cmd *exec.Cmd, verbose bool) error {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Println(lines.Text())
			continue
		}
		s.mu.Lock()
		s.add(e, verbose)
		s.mu.Unlock()
	}
	if err := lines.Err(); err != nil {
		return err
	}
	err = cmd.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.failed+s.broken == 0 {
		s.broken++
	}
	return nil
}

func (s *summary) add(e event, verbose bool) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Print(e.Output)
	case "output":
		s.output[key] = append(s.output[key], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			s.endPackage(e, s.output[key])
		} else {
			s.endTest(e, s.output[key], verbose)
		}
		delete(s.output, key)
	}
}

func (s *summary) endTest(e event, output []string, verbose bool) {
	name := short(e.Package) + " " + e.Test
	s.took[name] = max(s.took[name], time.Duration(e.Elapsed*float64(time.Second)))
	switch e.Action {
	case "pass":
		s.passed++
	case "skip":
		s.skipped++
		s.reasons[reason(output)]++
	case "fail":
		s.failed++
		s.failures[name]++
	}
	if verbose || e.Action == "fail" {
		for _, line := range output {
			if !strings.HasPrefix(line, "=== ") {
				fmt.Print(line)
			}
		}
	}
}

func (s *summary) endPackage(e event, output []string) {
	cached := ""
	if text := strings.Join(output, ""); strings.Contains(text, "(cached)") {
		cached = " (cached)"
	} else if e.Action == "fail" {
		fmt.Print(text)
		s.broken++
	}
	if e.Action != "skip" { // the package has no tests
		fmt.Printf("%-4s %7.1fs  %s%s\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], e.Elapsed, short(e.Package), cached)
	}
	for key, text := range s.output { // a test that ended with its program
		if strings.HasPrefix(key, e.Package+" Test") && e.Action == "fail" {
			fmt.Print(strings.Join(text, ""))
			s.failed++
			s.failures[short(key)]++
			delete(s.output, key)
		}
	}
}

// reason returns why a test was skipped: the last line of its log.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			if _, text, ok := strings.Cut(line, ".go:"); ok {
				_, line, _ = strings.Cut(text, ": ")
			}
			return line
		}
	}
	return "no reason given"
}

func short(pkg string) string {
	_, tail, ok := strings.Cut(pkg, "/cove/")
	if !ok {
		return pkg
	}
	return tail
}

func (s *summary) print(w io.Writer, name string, took time.Duration, slowest int) {
	if s.failed == 0 && s.broken > 0 {
		fmt.Fprintf(w, "\n%d packages failed outside a test.\n", s.broken)
	}
	fmt.Fprintf(w, "\nThe slowest tests:\n")
	tops := slices.DeleteFunc(slices.Collect(maps.Keys(s.took)), func(t string) bool {
		return strings.Contains(t, "/Test") || strings.Count(t, "/") > strings.Count(strings.Fields(t)[0], "/")
	})
	slices.SortFunc(tops, func(a, b string) int { return cmp.Or(cmp.Compare(s.took[b], s.took[a]), cmp.Compare(a, b)) })
	for _, t := range tops[:min(slowest, len(tops))] {
		fmt.Fprintf(w, "%8.1fs  %s\n", s.took[t].Seconds(), t)
	}
	if len(s.reasons) > 0 {
		fmt.Fprintf(w, "\nSkipped:\n")
		for _, why := range byCount(s.reasons) {
			fmt.Fprintf(w, "%9d  %s\n", s.reasons[why], why)
		}
	}
	if len(s.failures) > 0 {
		fmt.Fprintf(w, "\nFailed:\n")
		for _, test := range byCount(s.failures) {
			fmt.Fprintf(w, "%9d  %s\n", s.failures[test], test)
		}
	}
	fmt.Fprintf(w, "\nmake %s took %s: %d passed, %d failed, %d skipped\n", target(name), took, s.passed, s.failed, s.skipped)
}

func byCount(counts map[string]int) []string {
	return slices.SortedFunc(maps.Keys(counts), func(a, b string) int { return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b)) })
}

func target(lane string) string {
	if lane == "engines" {
		return "test-engines"
	}
	return lane
}
