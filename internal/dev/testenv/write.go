package testenv

import (
	"os"
	"syscall"
	"testing"
)

// WriteProgram writes a program that the test starts. No process starts in the meantime: until it
// executes its own program, a new process has the file open for writing too, and then the
// kernel refuses to start it ("text file busy").
func WriteProgram(t testing.TB, path string, content []byte) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// CopySelf writes the test's own program to path.
func CopySelf(t testing.TB, path string) {
	t.Helper()
	content, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	WriteProgram(t, path, content)
}
