// Package testenv declares what a test needs from the machine, and checks what a
// test run leaves behind. It is for tests only.
//
// A test whose needs are not met is skipped on a laptop and fails in CI, so that a
// suite cannot pass there without testing anything.
package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// packages maps programs to their Debian package, where the names differ.
var packages = map[string]string{
	"Xtigervnc": "tigervnc-standalone-server",
	"bwrap":     "bubblewrap",
	"dig":       "dnsutils",
	"docker":    "docker.io",
	"dockerd":   "docker.io",
	"fc-list":   "fontconfig",
	"ip":        "iproute2",
	"jupyter":   "jupyter-core",
	"mariadb":   "mariadb-client",
	"nc":        "netcat-openbsd",
	"newuidmap": "uidmap",
	"nft":       "nftables",
	"node":      "nodejs",
	"pdftotext": "poppler-utils",
	"php":       "php-cli",
	"ps":        "procps",
	"psql":      "postgresql",
	"redis-cli": "redis-tools",
	"rg":        "ripgrep",
	"setsid":    "util-linux",
	"soffice":   "libreoffice-writer-nogui",
	"pdfinfo":   "poppler-utils",
	"unshare":   "util-linux",
	"vncpasswd": "tigervnc-tools",
	"xdpyinfo":  "x11-utils",
	"xprop":     "x11-utils",
}

// Need skips the test unless every program is in PATH. In CI the test fails instead.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if !basic[program] {
			notInUnit(t)
		}
		if _, err := exec.LookPath(program); err == nil {
			continue
		}
		why := "needs the program " + program
		if pkg, ok := packages[program]; ok {
			why += " (Debian package " + pkg + ")"
		}
		Lack(t, why)
	}
}

// NeedRoot skips the test unless it runs as root. In CI the test fails instead.
func NeedRoot(t testing.TB) {
	t.Helper()
	notInUnit(t)
	if os.Geteuid() != 0 {
		Lack(t, "needs root")
	}
}

// Lack skips the test for lack of something other than a program. In CI the test fails
// instead.
func Lack(t testing.TB, why string) {
	t.Helper()
	notInUnit(t)
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// NeedFile skips the test unless a file that make deps installs is there, and returns its
// absolute path. In CI the test fails instead.
func NeedFile(t testing.TB, path string) string {
	t.Helper()
	notInUnit(t)
	full, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(full)
	}
	if err != nil {
		Lack(t, path+" is missing; run make deps")
	}
	return full
}
