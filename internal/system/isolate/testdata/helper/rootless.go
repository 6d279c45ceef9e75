package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/hostroot"
	"github.com/cove-sandbox/cove/internal/system/isolate/outputlog"
	"github.com/cove-sandbox/cove/internal/system/isolate/unixsocket"
)

// rootless is a hub without root: it runs args in a sandbox below dir.
func rootless(dir string, args []string) {
	root, err := hostroot.Build(filepath.Join(dir, "base"), -1)
	fail(err)
	cfg := isolate.Config{
		Argv: []string{"/proc/self/exe", "isolate-init"}, Hostname: "box",
		Tmpfs: []isolate.Tmpfs{{Target: "/run", Mode: 0o755, Size: 1 << 20}},
		Binds: []isolate.Bind{{Source: isolate.Dir{Path: os.Args[0]}, Target: "/run/helper", ReadOnly: true}},
		Process: isolate.Process{Args: args, Env: []string{"PATH=/usr/bin:/bin", "HOME=/home/gem"}, Dir: "/home/gem",
			UID: isolate.UID, GID: isolate.GID},
		LogSize: 1 << 20, Limits: isolate.Limits{Files: 256, Pids: 60, Memory: 256 << 20},
	}
	for i, target := range append([]string{"/"}, root.Trees...) {
		lower := isolate.Dir{Path: root.Base}
		if i > 0 {
			lower.Path = target
		}
		up := filepath.Join(dir, "upper"+strings.ReplaceAll(target, "/", "-"))
		fail(os.MkdirAll(filepath.Join(up, "data"), 0o755))
		fail(os.MkdirAll(filepath.Join(up, "work"), 0o755))
		cfg.Root = append(cfg.Root, isolate.Overlay{Target: target, Lower: []isolate.Dir{lower},
			Upper: isolate.Dir{Path: up}, Data: "data", Work: "work"})
	}
	file := func(name string) *os.File {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
		fail(err)
		return f
	}
	cfg.Log, cfg.Exit = [2]*os.File{file("log.0"), file("log.1")}, file("exit")
	d, err := os.Open(dir)
	fail(err)
	l, err := unixsocket.Listen(d, "control", 0o600)
	fail(err)
	cfg.Control, err = l.File()
	fail(err)
	h, _, err := isolate.Start(context.Background(), cfg)
	fail(err)
	<-h.Done()
	out, err := outputlog.Read([2]string{filepath.Join(dir, "log.0"), filepath.Join(dir, "log.1")}, 1<<20)
	fail(err)
	os.Stdout.Write(out)
	exit, _ := isolate.ReadExit(filepath.Join(dir, "exit"))
	fmt.Println("exit:", exit)
	os.Exit(0)
}
