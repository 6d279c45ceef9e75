package skill

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

// maxOutput limits the reported output of a command.
const maxOutput = 32 << 10

// installAll installs the dependencies of skills and returns the skills with the commands. The
// commands continue if the request ends, so that no installation stays incomplete.
func (s *Service) installAll(list []Metadata) []Metadata {
	s.install.Lock()
	defer s.install.Unlock()
	out := make([]Metadata, 0, len(list))
	for _, m := range list {
		for _, c := range s.installers(m.Path) {
			m.Commands = append(m.Commands, s.run(m.Path, c))
		}
		out = append(out, m)
		s.mu.Lock()
		if current, ok := s.skills[m.Name]; ok && current.Path == m.Path {
			s.skills[m.Name] = m
		}
		s.mu.Unlock()
	}
	return out
}

// installers lists the commands that install the dependencies of a skill.
func (s *Service) installers(dir string) (list [][]string) {
	if isFile(filepath.Join(dir, "requirements.txt")) {
		python := filepath.Join(s.cfg.Venv, "bin", "python")
		pip := []string{python, "-m", "pip", "install", "--disable-pip-version-check", "-r", "requirements.txt"}
		if s.cfg.Venv == "" || !isFile(python) {
			// Distributions protect the system's Python. Packages of the user are separate from it.
			pip = []string{"python3", "-m", "pip", "install", "--disable-pip-version-check", "--user",
				"--break-system-packages", "-r", "requirements.txt"}
		}
		list = append(list, pip)
	}
	if isFile(filepath.Join(dir, "package.json")) {
		list = append(list, []string{"npm", "install", "--no-audit", "--no-fund"})
	}
	return list
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func (s *Service) run(dir string, argv []string) Command {
	ctx, cancel := context.WithTimeout(s.life, s.cfg.InstallTime)
	defer cancel()
	res, err := s.cfg.Runner.Run(ctx, proc.Command{Path: argv[0], Args: argv[1:], Dir: dir, Limit: maxOutput})
	stdout, stderr := text(res.Stdout), text(res.Stderr)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		stderr += fmt.Sprintf("\ntimed out after %v", s.cfg.InstallTime)
	case err != nil:
		stderr += "\n" + err.Error()
	}
	ok := err == nil && res.Exit.Code == 0
	if !ok {
		s.cfg.Log.Warn("cannot install dependencies of skill", "path", dir, "command", argv[0], "exit", res.Exit.Code, "error", err)
	}
	return Command{Command: argv, Success: ok, Stdout: &stdout, Stderr: new(strings.TrimPrefix(stderr, "\n"))}
}

func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }
