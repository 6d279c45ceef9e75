package gateway

import (
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// FuzzPath checks that a path addresses at most one sandbox, and that the rest of the path is unchanged.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/sandbox/a/x", "/sandbox/a", "/sandbox/a%2fb/x", "/sandbox/../a", "/sandbox/a/proxy/3000/x", "/sandbox//"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, path string) {
		to, ok := parsePath(path)
		if !ok {
			return
		}
		if sandbox.CheckName(to.name) != nil || !strings.HasPrefix(path, "/sandbox/") || !strings.HasSuffix(path, to.path) {
			t.Errorf("%q: got %+v, want a valid name and the rest of the path", path, to)
		}
		if port := to.toPort(); port.port != to.port && sandbox.CheckPort(port.port) != nil {
			t.Errorf("%q: got port %d, want a valid one", path, port.port)
		}
	})
}
