package workbench

import (
	_ "embed"
	"errors"
	"fmt"
	"net/http/httputil"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

//go:embed recipe/jupyterlab.sh
var labRecipe string

// labConfig makes JupyterLab use the kernels of the sandbox's sessions.
//
//go:embed lab.py
var labConfig string

// labSettings are the initial settings of JupyterLab, by name.
var labSettings = map[string]string{
	"themes":       `{"adaptive-theme": true}`,
	"notification": `{"fetchNews": "false", "checkForUpdates": false}`,
}

// newLab returns JupyterLab.
func newLab(s *Service) *program {
	p := &program{
		name: "jupyterlab", title: "JupyterLab", path: "/jupyter", operation: "jupyter_lab", recipe: labRecipe,
		doc: "JupyterLab with the kernels of the code operations: it shows the sessions of agents with their " +
			"variables. It starts on the first visit.",
		keeps: "Saved files, and kernels with their variables, are kept.",
		probe: "/api/sessions", mark: "[", // it responds after it has found the kernels, to which open pages reconnect
		entry: func(path string) bool { return path == "/" || path == "/lab" || strings.HasPrefix(path, "/lab/") },
	}
	p.find = p.findLab
	p.prepare = p.prepareLab
	p.request = func(r *httputil.ProxyRequest) {
		r.Out.Header.Set("X-Cove-Base", baseOf(r.In).Path+p.path+"/")
	}
	return newProgram(s, p)
}

// findLab returns the command of the component, or of JupyterLab in the Python environment of the sandbox.
func (p *program) findLab() ([]string, error) {
	var dirs []string
	for _, dir := range p.s.cfg.Components {
		dirs = append(dirs, filepath.Join(dir, p.name))
	}
	for _, dir := range append(dirs, p.s.cfg.Venv) {
		found, err := filepath.Glob(filepath.Join(dir, "lib", "python3*", "site-packages", "jupyterlab", "labapp.py"))
		if python := filepath.Join(dir, "bin", "python"); dir != "" && err == nil && len(found) > 0 && isFile(python) {
			return []string{python, "-m", "jupyterlab"}, nil
		}
	}
	return nil, errors.New("install it with: aio component install " + p.name)
}

// prepareLab writes the configuration and the initial settings, and returns the command.
func (p *program) prepareLab(argv []string, dir, socket string) (proc.Command, error) {
	config := filepath.Join(dir, "config.py")
	if err := writeNew(config, labConfig); err != nil {
		return proc.Command{}, fmt.Errorf("write the configuration of JupyterLab: %w", err)
	}
	settings := filepath.Join(p.s.cfg.Home, ".jupyter", "lab", "user-settings", "@jupyterlab", "apputils-extension")
	if err := os.MkdirAll(settings, 0o700); err != nil {
		return proc.Command{}, fmt.Errorf("create the folder of JupyterLab's settings: %w", err)
	}
	for name, content := range labSettings {
		if err := writeNew(filepath.Join(settings, name+".jupyterlab-settings"), content); err != nil {
			return proc.Command{}, fmt.Errorf("write JupyterLab's settings: %w", err)
		}
	}
	// The assignment of notebooks to sessions persists.
	state := filepath.Join(p.s.cfg.State, "workbench")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return proc.Command{}, fmt.Errorf("create the folder of JupyterLab's state: %w", err)
	}
	args := []string{
		"--config=" + config, "--ServerApp.sock=" + socket, "--ServerApp.sock_mode=0600", "--ServerApp.root_dir=" + p.s.cfg.Workspace,
		"--SessionManager.database_filepath=" + filepath.Join(state, "jupyterlab.db"), "--IdentityProvider.token=",
		"--PasswordIdentityProvider.password_required=False",
	}
	env := append(p.s.cfg.Runner.Environ(), "JUPYTER_RUNTIME_DIR="+dir)
	return proc.Command{Path: argv[0], Args: append(argv[1:len(argv):len(argv)], args...), Dir: p.s.cfg.Workspace, Env: env}, nil
}
