package arch

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

type program struct {
	name, system string
	mebibytes    int64
}

// programs are what make dist builds, with the largest size in MiB of those for Linux.
// Raise a limit only for a change that is worth its bytes.
var programs = []program{
	{"aio", "linux", 26},
	{"aio-markdown", "linux", 9},
	{"cove", "linux", 26},
	{"cove", "darwin", 0},
	{"cove", "windows", 0},
	{"cove-container", "linux", 7},
	{"cove-init", "linux", 4},
}

// TestGoldenModules compares the modules that each program links with api/modules.txt.
func TestGoldenModules(t *testing.T) {
	var got bytes.Buffer
	for _, p := range programs {
		cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "./cmd/"+p.name)
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH=amd64")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("list the modules of %s: %v", p.name, err)
		}
		modules := strings.Fields(string(out))
		slices.Sort(modules)
		fmt.Fprintf(&got, "%s for %s\n", p.name, p.system)
		for _, m := range slices.Compact(modules) {
			fmt.Fprintf(&got, "\t%s\n", m)
		}
	}
	testenv.Golden(t, "../../..", "modules.txt", got.Bytes())
}

// TestProgramSize checks the programs that test/lane builds. They are larger at night,
// when they detect data races.
func TestProgramSize(t *testing.T) {
	dir := os.Getenv("TEST_PROGRAMS")
	if dir == "" || testenv.AtNight() {
		t.Skip("runs in make test")
	}
	for _, p := range programs {
		if p.system != "linux" {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, p.name))
		if err != nil {
			t.Error(err)
		} else if info.Size() > p.mebibytes<<20 {
			t.Errorf("%s has %.1f MiB, at most %d", p.name, float64(info.Size())/(1<<20), p.mebibytes)
		}
	}
}

// TestProgramsAreListed finds programs whose modules and size are not checked.
func TestProgramsAreListed(t *testing.T) {
	entries, err := os.ReadDir("../../../cmd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.ContainsFunc(programs, func(p program) bool { return p.name == e.Name() && p.system == "linux" }) {
			t.Errorf("cmd/%s is not in the list of programs", e.Name())
		}
	}
}
