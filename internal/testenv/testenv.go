// Package testenv says what a test needs from the machine and checks what a
// test run leaves behind. It is for tests only and owns nothing.
//
// A missing need skips the test on a laptop and fails it in CI, so that a
// suite can never turn green there by testing nothing.
package testenv

import (
	"os"
	"os/exec"
	"testing"
)

// packages tells which Debian package brings a program. A program whose package
// has its own name needs no entry.
var packages = map[string]string{
	"Xtigervnc": "tigervnc-standalone-server",
	"bwrap":     "bubblewrap",
	"docker":    "docker.io",
	"dockerd":   "docker.io",
	"fc-list":   "fontconfig",
	"ip":        "iproute2",
	"jupyter":   "jupyter-core",
	"newuidmap": "uidmap",
	"nft":       "nftables",
	"node":      "nodejs",
	"pdftotext": "poppler-utils",
	"ps":        "procps",
	"rg":        "ripgrep",
	"setsid":    "util-linux",
	"soffice":   "libreoffice-writer-nogui",
	"pdfinfo":   "poppler-utils",
	"unshare":   "util-linux",
	"vncpasswd": "tigervnc-tools",
	"xdpyinfo":  "x11-utils",
	"xprop":     "x11-utils",
}

// Need skips the test unless every program is found in PATH. In CI it fails it.
func Need(t testing.TB, programs ...string) {
	t.Helper()
	for _, program := range programs {
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

// NeedRoot skips the test unless it runs as root. In CI it fails it.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		Lack(t, "needs root")
	}
}

// Lack skips the test for want of something that is no program. In CI it fails it.
func Lack(t testing.TB, why string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
