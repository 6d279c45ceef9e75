package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// maxManifest limits the size of a package.json.
	maxManifest = 1 << 20
	// maxPackages limits a list of packages.
	maxPackages = 2000
)

// Package is one installed package.
type Package struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Info describes Node.js on this machine.
type Info struct {
	NodeVersion        string    `json:"node_version" doc:"Default version; empty if there is none"`
	NpmVersion         string    `json:"npm_version" doc:"Version of npm; empty if there is none"`
	SupportedLanguages []string  `json:"supported_languages"`
	Description        string    `json:"description"`
	RuntimeDirectory   *string   `json:"runtime_directory" doc:"Directory in which code runs"`
	GlobalNpmDirectory *string   `json:"global_npm_directory" doc:"Directory of the global packages"`
	RuntimePackages    []Package `json:"runtime_packages" default:"[]" doc:"Packages in the runtime directory"`
	GlobalPackages     []Package `json:"global_packages" default:"[]" doc:"Global packages"`
	Error              *string   `json:"error" doc:"Why code cannot run"`
	AvailableVersions  []string  `json:"available_versions" default:"[]" doc:"Installed versions"`
	CurrentVersion     *string   `json:"current_version" doc:"Same as node_version"`
}

// Info describes the installed versions and packages.
func (s *Service) Info(ctx context.Context, _ op.None) (Info, error) {
	i := Info{
		SupportedLanguages: []string{"javascript"},
		Description: "JavaScript in Node.js: a process for each call, or sessions that keep variables, with " +
			"top-level await, require and import.",
		RuntimeDirectory: &s.Workspace,
		RuntimePackages:  packages(filepath.Join(s.Workspace, "node_modules")),
	}
	all := s.installed.programs(ctx)
	if len(all) == 0 {
		i.Error = new(notInstalled)
		return i, nil
	}
	first, dir := all[0], globalModules(all[0].path)
	i.NodeVersion, i.CurrentVersion, i.GlobalNpmDirectory = first.version, &first.version, &dir
	i.GlobalPackages = packages(dir)
	for _, p := range i.GlobalPackages {
		if p.Name == "npm" {
			i.NpmVersion = p.Version
		}
	}
	for _, p := range all {
		if !slices.Contains(i.AvailableVersions, p.version) {
			i.AvailableVersions = append(i.AvailableVersions, p.version)
		}
	}
	return i, nil
}

// About returns the default version and details.
func (s *Service) About(ctx context.Context) (version string, details map[string]any, err error) {
	all := s.installed.programs(ctx)
	if len(all) == 0 {
		return "", nil, op.Errorf(op.Unavailable, "%s", notInstalled)
	}
	var versions []string
	for _, p := range all {
		versions = append(versions, p.version)
	}
	return all[0].version, map[string]any{"available_versions": versions, "max_sessions": s.MaxSessions}, nil
}

// packages reads the manifests below a node_modules folder.
func packages(dir string) []Package {
	list := []Package{}
	for _, pattern := range []string{"*/package.json", "@*/*/package.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			continue
		}
		for _, file := range files {
			if p, err := manifest(file); err == nil && len(list) < maxPackages {
				list = append(list, p)
			}
		}
	}
	slices.SortFunc(list, func(a, b Package) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

func manifest(file string) (Package, error) {
	var p Package
	info, err := os.Stat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxManifest {
		return p, errors.Join(err, fs.ErrInvalid)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(b, &p); err != nil {
		return p, err
	}
	if p.Name == "" {
		return p, errors.New("the manifest has no name")
	}
	return p, nil
}
