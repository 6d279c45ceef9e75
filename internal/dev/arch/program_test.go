package arch

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

type program struct{ name, system string }

// programs are what make dist builds.
var programs = []program{
	{"aio", "linux"}, {"aio-markdown", "linux"}, {"cove", "linux"}, {"cove", "darwin"}, {"cove", "windows"},
	{"cove-container", "linux"}, {"cove-init", "linux"},
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

// TestGoldenSizes compares the sizes of the programs that test/lane builds with api/sizes.txt, so that growth
// shows in a diff. Programs are larger at night, when they detect data races. With -update, it builds the programs.
func TestGoldenSizes(t *testing.T) {
	dir, updates := os.Getenv("TEST_PROGRAMS"), flag.Lookup("update").Value.String() == "true"
	switch {
	case updates:
		dir = t.TempDir()
		cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", dir+"/", "./cmd/...")
		cmd.Dir = "../../.."
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the programs: %v\n%s", err, out)
		}
	case dir == "" || testenv.AtNight() || runtime.GOARCH != "amd64":
		t.Skip("runs in make test, on amd64")
	}
	golden, err := os.ReadFile("../../../api/sizes.txt")
	if err != nil {
		t.Fatal(err)
	}
	sizes := sizesOf(t, dir)
	text, grown := compareSizes(string(golden), sizes)
	if updates {
		testenv.Golden(t, "../../..", "sizes.txt", []byte(text))
		return
	}
	for _, g := range grown {
		t.Error(g)
	}
}

// TestSizesMayVaryALittle: links and paths of the machine change the size of a program. Small changes do not add up unnoticed.
func TestSizesMayVaryALittle(t *testing.T) {
	t.Parallel()
	const golden = "aio 20000 kB\ncove 1000 kB\n"
	for _, c := range []struct {
		name  string
		sizes map[string]int64
		want  string
		grown int
	}{
		{"equal", map[string]int64{"aio": 20000, "cove": 1000}, golden, 0},
		{"a little larger", map[string]int64{"aio": 20200, "cove": 1010}, golden, 0},
		{"a little smaller", map[string]int64{"aio": 19800, "cove": 990}, golden, 0},
		{"larger", map[string]int64{"aio": 20201, "cove": 1000}, "aio 20201 kB\ncove 1000 kB\n", 1},
		{"smaller", map[string]int64{"aio": 20000, "cove": 900}, "aio 20000 kB\ncove 900 kB\n", 0},
		{"new", map[string]int64{"aio": 20000, "cove": 1000, "new": 1}, golden + "new 1 kB\n", 1},
	} {
		if text, grown := compareSizes(golden, c.sizes); text != c.want || len(grown) != c.grown {
			t.Errorf("%s: got %q and faults %q, want %q and %d", c.name, text, grown, c.want, c.grown)
		}
	}
}

// sizesOf returns the sizes of the programs in a folder, in kB.
func sizesOf(t *testing.T, dir string) map[string]int64 {
	t.Helper()
	sizes := map[string]int64{}
	for _, p := range programs {
		if p.system != "linux" {
			continue
		}
		info, err := os.Stat(filepath.Join(dir, p.name))
		if err != nil {
			t.Fatal(err)
		}
		sizes[p.name] = info.Size() / 1000
	}
	return sizes
}

// compareSizes returns the golden file for sizes, and the programs that have grown. A size within 1 % of that of the golden
// file is no change.
func compareSizes(golden string, sizes map[string]int64) (text string, grown []string) {
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		size, was := sizes[name], int64(0)
		for line := range strings.Lines(golden) {
			if rest, ok := strings.CutPrefix(line, name+" "); ok {
				fmt.Sscan(rest, &was)
			}
		}
		if size > was+was/100 {
			text := "%s has %d kB, %d kB in api/sizes.txt: if the change is worth its bytes, run make gen"
			grown = append(grown, fmt.Sprintf(text, name, size, was))
		} else if size >= was-was/100 {
			size = was
		}
		text += fmt.Sprintf("%s %d kB\n", name, size)
	}
	return text, grown
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
