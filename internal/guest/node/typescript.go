package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// typesPackage removes types. Node.js has contained it since version 22.13.
	typesPackage  = "amaro@1.2.1"
	packageFolder = "node_modules/amaro"
	// stripTime limits the conversion of a cell, and installTime the installation of the package.
	stripTime   = time.Minute
	installTime = 5 * time.Minute
	// maxCode limits the converted code.
	maxCode = 64 << 20
	// exitMissing is the exit code of stripScript if the package is required and missing.
	exitMissing = 3
)

// stripScript removes the types from a program on standard input. Its argument is the folder of the package.
const stripScript = `let strip = require("module").stripTypeScriptTypes
if (!strip) {
  try {
    const { transformSync } = require(process.argv[1])
    strip = (code, options) => transformSync(code, options).code
  } catch {
    process.exit(3)
  }
}
process.removeAllListeners("warning")
let code = ""
process.stdin.setEncoding("utf8").on("data", d => code += d).on("end", () => {
  try { process.stdout.write(strip(code, { mode: "transform" })) } catch (e) { console.error(String(e.message ?? e)); process.exit(4) }
})`

// StripTypes converts TypeScript to JavaScript. An older Node.js gets the package for it on first use: installing is called then.
func (s *Service) StripTypes(ctx context.Context, code string, installing func()) (string, error) {
	path, err := s.installed.findDefault(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(s.Config.State, "typescript")
	res, err := s.strip(ctx, path, dir, code)
	if err == nil && res.Exit.Code == exitMissing {
		installing()
		if err := s.installTypes(ctx, dir); err != nil {
			return "", err
		}
		res, err = s.strip(ctx, path, dir, code)
	}
	switch {
	case err != nil:
		return "", fmt.Errorf("convert TypeScript: %w", err)
	case res.Exit.Code != 0:
		return "", op.Errorf(op.Invalid, "%s", strings.TrimSpace(strings.ToValidUTF8(string(res.Stderr), "\uFFFD")))
	}
	return string(res.Stdout), nil
}

func (s *Service) strip(ctx context.Context, node, dir, code string) (proc.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, stripTime)
	defer cancel()
	return s.Runner.Run(ctx, proc.Command{Path: node, Args: []string{"-e", stripScript, filepath.Join(dir, packageFolder)},
		Dir: "/", Stdin: strings.NewReader(code), Limit: maxCode})
}

// installTypes installs the package that removes types. One call does so at a time.
func (s *Service) installTypes(ctx context.Context, dir string) error {
	select {
	case s.installingTypes <- struct{}{}:
		defer func() { <-s.installingTypes }()
	case <-ctx.Done():
		return op.Errorf(op.Canceled, "the request was canceled")
	}
	if _, err := os.Stat(filepath.Join(dir, packageFolder, "package.json")); err == nil {
		return nil // another call installed it
	}
	ctx, cancel := context.WithTimeout(ctx, installTime)
	defer cancel()
	args := []string{"install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress",
		"--loglevel=error", s.typesPackage}
	res, err := s.Runner.Run(ctx, proc.Command{Path: "npm", Args: args, Dir: "/", Limit: maxManifest})
	if err == nil && res.Exit.Code != 0 {
		err = fmt.Errorf("npm %v: %s", res.Exit, findReason(res.Stderr))
	}
	if err != nil {
		_ = os.RemoveAll(dir) // incomplete
		return op.Errorf(op.Unavailable, "TypeScript requires Node.js 22.13 or later, or a package that cannot be installed: %w; "+
			"run: npm install --prefix %s %s", err, dir, s.typesPackage)
	}
	return nil
}

// findReason returns the lines of npm's error output that say why it failed.
func findReason(text []byte) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(string(text)), "\uFFFD"), "\n")
	reason := strings.ReplaceAll(strings.Join(lines[:min(len(lines), 2)], "; "), "npm error ", "")
	return reason[:min(len(reason), 500)]
}
