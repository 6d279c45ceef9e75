package hostroot

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// additions plans what the base adds to the host's trees, in folders of the same names that
// are layers above them: links to Cove's programs, and files with which package managers
// work as in a container.
func (p *basePlan) additions() error {
	if st, err := os.Lstat("/usr"); err != nil || !st.IsDir() {
		return nil //nolint:nilerr // there is no tree to add to
	}
	for _, tree := range []string{"/opt", "/usr/local"} {
		p.hidePrivate(tree)
	}
	for _, name := range []string{"local/bin/aio", "local/bin/sudo", "bin/sudo"} {
		p.addLink("usr/"+name, isolate.Programs+"/"+filepath.Base(name))
	}
	// As in containers, packages must not start daemons when they are installed.
	p.addProgram("usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n")
	for _, a := range agents {
		p.addProgram("usr/local/bin/"+a[0], fmt.Sprintf(agentLauncher, a[0], a[1]))
	}
	return p.addPython()
}

// hidePrivate hides files that not every user of the host may read, because root inside could
// read them. It checks only trees that the machine's administrator fills; the rest of /usr is
// the same on all machines.
func (p *basePlan) hidePrivate(tree string) {
	filepath.WalkDir(tree, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			if e != nil && e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if !e.IsDir() && !e.Type().IsRegular() {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil //nolint:nilerr // deleted meanwhile
		}
		need := fs.FileMode(0o004)
		if e.IsDir() {
			need = 0o005
		}
		if path == tree || info.Mode()&need == need {
			return nil
		}
		p.addParents(path[1:])
		p.add(baseEntry{path: path[1:], mode: fs.ModeCharDevice})
		if e.IsDir() {
			return fs.SkipDir
		}
		return nil
	})
}

// agents lists the commands of coding agents with their npm packages.
var agents = [][2]string{{"claude", "@anthropic-ai/claude-code"}, {"codex", "@openai/codex"}, {"opencode", "opencode-ai"}}

// agentLauncher installs an agent when its command is used for the first time. Once
// installed, the command comes first in the PATH.
const agentLauncher = `#!/bin/sh
own="$HOME/.local/bin/%[1]s"
if [ ! -x "$own" ]; then
  command -v npm >/dev/null || { echo "%[1]s: npm is not installed; install it: sudo apt-get install -y npm" >&2; exit 127; }
  echo "%[1]s: installing %[2]s from npm, once per sandbox" >&2
  NPM_CONFIG_PREFIX="$HOME/.local" npm install -g --no-fund --no-audit %[2]s >&2 || exit
fi
exec "$own" "$@"
`

// addPython lets pip install packages for the user and for the sandbox, and adds the hub's
// packages to those of the system's Python.
func (p *basePlan) addPython() error {
	managed, err := filepath.Glob("/usr/lib/python3*/EXTERNALLY-MANAGED")
	if err != nil {
		return err
	}
	for _, path := range managed {
		p.addParents(path[1:])
		p.add(baseEntry{path: path[1:], mode: fs.ModeCharDevice})
	}
	real, err := filepath.EvalSymlinks(isolate.Python)
	if err != nil {
		return nil //nolint:nilerr // there is no Python
	}
	version, ok := strings.CutPrefix(filepath.Base(real), "python")
	if !ok || !strings.HasPrefix(version, "3.") {
		return nil
	}
	packages := "site-packages"
	if exists("/usr/lib/python3/dist-packages") {
		packages = "dist-packages" // Debian's
	}
	lib := "lib/python" + version + "/"
	path := "usr/local/" + lib + packages + "/cove.pth"
	p.addParents(path)
	p.add(baseEntry{path: path, mode: 0o644, data: []byte(isolate.Venv + "/" + lib + "site-packages\n")})
	if !exists("/usr/bin/python") && !exists("/usr/local/bin/python") {
		p.addLink("usr/local/bin/python", isolate.Python)
	}
	for _, name := range []string{"pip", "pip3"} {
		if !exists("/usr/bin/"+name) && !exists("/usr/local/bin/"+name) {
			p.addProgram("usr/local/bin/"+name, "#!"+isolate.Python+"\nimport sys\nfrom pip._internal.cli.main import main\nsys.exit(main())\n")
		}
	}
	p.addLink("usr/local/bin/uv", isolate.Venv+"/bin/uv")
	p.addLink("usr/local/bin/uvx", isolate.Venv+"/bin/uvx")
	if !exists("/usr/bin/pipx") {
		p.addProgram("usr/local/bin/pipx", "#!/bin/sh\nexec "+isolate.Python+" -m pipx \"$@\"\n")
	}
	// Python searches the user's packages only if their folder exists when it starts.
	home := strings.TrimPrefix(isolate.Home, "/")
	for _, dir := range []string{".local", ".local/bin", ".local/lib", ".local/lib/python" + version,
		".local/lib/python" + version + "/site-packages"} {
		p.dir(home+"/"+dir, 0o755, isolate.UID)
	}
	return nil
}

// addParents adds the folders above a path.
func (p *basePlan) addParents(path string) {
	if up := filepath.Dir(path); up != "." {
		p.addParents(up)
		p.dir(up, 0o755, 0)
	}
}

func (p *basePlan) addLink(path, to string) {
	p.addParents(path)
	p.add(baseEntry{path: path, mode: os.ModeSymlink, link: to})
}

func (p *basePlan) addProgram(path, text string) {
	p.addParents(path)
	p.add(baseEntry{path: path, mode: 0o755, data: []byte(text)})
}
