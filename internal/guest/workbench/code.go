package workbench

import (
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

//go:embed recipe/code-server.sh
var codeRecipe string

// codeSettings are the initial settings of VS Code.
const codeSettings = `{
	"telemetry.telemetryLevel": "off",
	"update.mode": "none",
	"extensions.autoCheckUpdates": false,
	"chat.disableAIFeatures": true,
	"window.autoDetectColorScheme": true,
	"workbench.startupEditor": "none",
	"workbench.secondarySideBar.defaultVisibility": "hidden",
	"workbench.enableExperiments": false,
	"security.workspace.trust.enabled": false
}
`

// newCodeServer returns VS Code in the browser.
func newCodeServer(s *Service) *program {
	p := &program{
		name: "code-server", title: "VS Code", path: "/code-server", operation: "code_server", recipe: codeRecipe,
		doc:   "VS Code in the browser. It opens the workspace, and starts on the first visit.",
		keeps: "Saved files are kept.",
		// code-server responds before VS Code works. It remembers the folder of this request, which is the default one.
		probe: "/?folder=" + url.QueryEscape(s.cfg.Workspace), mark: "vscode-workbench-web-configuration",
		entry: func(path string) bool { return path == "/" },
	}
	p.find = p.findCodeServer
	p.prepare = p.prepareCodeServer
	return newProgram(s, p)
}

// findCodeServer returns the command of the component, or of code-server in the PATH.
func (p *program) findCodeServer() ([]string, error) {
	for _, dir := range p.s.cfg.Components {
		node, entry := filepath.Join(dir, p.name, "node"), filepath.Join(dir, p.name, "node_modules", "code-server", "out", "node", "entry.js")
		if isFile(node) && isFile(entry) {
			return []string{node, entry}, nil
		}
	}
	if path, ok := p.s.cfg.Runner.Look(p.name); ok {
		return []string{path}, nil
	}
	return nil, errors.New("install it with: aio component install " + p.name)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// prepareCodeServer writes the initial settings, and returns the command. Settings and extensions have the default paths of
// code-server, so that its command line uses the same ones.
func (p *program) prepareCodeServer(argv []string, dir, socket string) (proc.Command, error) {
	data := filepath.Join(p.s.cfg.Home, ".local", "share", "code-server")
	user := filepath.Join(data, "User")
	if err := os.MkdirAll(user, 0o700); err != nil {
		return proc.Command{}, fmt.Errorf("create the folder of VS Code's settings: %w", err)
	}
	if err := writeNew(filepath.Join(user, "settings.json"), codeSettings); err != nil {
		return proc.Command{}, fmt.Errorf("write VS Code's settings: %w", err)
	}
	config := filepath.Join(dir, "config.yaml")
	if err := writeNew(config, "auth: none\n"); err != nil {
		return proc.Command{}, fmt.Errorf("write the configuration of code-server: %w", err)
	}
	args := []string{
		"--config", config, "--auth", "none", "--socket", socket, "--socket-mode", "600",
		"--user-data-dir", data, "--extensions-dir", filepath.Join(data, "extensions"),
		"--disable-telemetry", "--disable-update-check", "--disable-workspace-trust",
		"--disable-getting-started-override", "--ignore-last-opened",
		// The server has already checked the origin, and pages under a path of a hub have none.
		"--trusted-origins", "*",
		p.s.cfg.Workspace,
	}
	// Its view of ports links to the previews. The path is relative, so that it works under any prefix.
	env := append(p.s.cfg.Runner.Environ(), "VSCODE_PROXY_URI=../proxy/{{port}}/")
	return proc.Command{Path: argv[0], Args: append(argv[1:len(argv):len(argv)], args...), Dir: p.s.cfg.Workspace, Env: env}, nil
}

// writeNew writes a file unless it exists.
func writeNew(path, content string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = f.WriteString(content)
	return errors.Join(err, f.Close())
}
