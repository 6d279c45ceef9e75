package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The lanes of tests, as the program test/lane names them in TEST_LANE. Without a name, as in a
// plain go test, all tests run except those of the night.
const (
	unit     = "unit"
	standard = "test"
	nightly  = "nightly"
)

func lane() string { return os.Getenv("TEST_LANE") }

// Engine skips a test of a container engine, a cluster or gVisor in lanes without them.
func Engine(t testing.TB) {
	t.Helper()
	if lane() == unit || lane() == standard {
		t.Skip("runs in make test-engines")
	}
}

// Long skips a test that takes half a minute or more in the lanes that run before every commit.
func Long(t testing.TB) {
	t.Helper()
	if lane() == unit || lane() == standard {
		t.Skip("takes long: runs in make test-engines")
	}
}

// GVisor skips a test that needs gVisor in lanes without engines, and where it is not installed.
// It returns the path of runsc.
func GVisor(t testing.TB) string {
	t.Helper()
	Engine(t)
	Need(t, "runsc")
	path, err := exec.LookPath("runsc")
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Nightly skips a test that takes long, except at night.
func Nightly(t testing.TB) {
	t.Helper()
	if !AtNight() {
		t.Skip("runs in make nightly")
	}
}

// AtNight reports whether tests run as often, and with as many clients, as they can.
func AtNight() bool { return lane() == nightly }

// Times is how often to repeat what fails only sometimes: few times, or many at night.
func Times(few, many int) int {
	if AtNight() {
		return many
	}
	return few
}

// basic are programs that make unit expects: those of the smallest Debian.
var basic = map[string]bool{"bash": true, "sh": true, "cat": true, "grep": true, "sleep": true, "setsid": true, "true": true, "tar": true}

// notInUnit skips a test in the lane that needs only Go.
func notInUnit(t testing.TB) {
	t.Helper()
	if lane() == unit {
		t.Skip("runs in make test")
	}
}
