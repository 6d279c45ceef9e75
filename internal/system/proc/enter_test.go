package proc

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestReadIDs(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "uid_map")
	for text, want := range map[string][]syscall.SysProcIDMap{
		"         0          0 4294967295\n": {{ContainerID: 0, HostID: 0, Size: 4294967295}},
		"0 1000 1\n1 100000 65536\n":         {{ContainerID: 0, HostID: 0, Size: 1}, {ContainerID: 1, HostID: 1, Size: 65536}},
		"":                                   {},
		"0 0\n":                              nil,
		"0 0 many\n":                         nil,
		"first 0 1\n":                        nil,
		"0 0 " + strings.Repeat("9", 30) + "\n0 0 1": nil,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := readIDs(path)
		if (err != nil) != (want == nil) {
			t.Errorf("%q: got error %v, want an error: %v", text, err, want == nil)
		}
		for i, m := range want {
			if len(got) != len(want) || got[i] != m {
				t.Errorf("%q: got %v, want %v", text, got, want)
				break
			}
		}
	}
}
