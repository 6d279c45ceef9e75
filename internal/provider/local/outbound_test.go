package local_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/provider/providertest/outbound"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// TestOutbound: programs that do not use a proxy reach what the policy allows, and nothing else.
func TestOutbound(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	k := newKit(t)
	outbound.Run(t, func(t *testing.T) *outbound.Box { return k.box(t, "") })
}

func TestOutboundWithoutRoot(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	const uid = 54323
	runElsewhere(t, "TestOutboundWithoutRoot", uid, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, 7,
		func(k kit) { outbound.Run(t, func(t *testing.T) *outbound.Box { return k.box(t, "") }) })
}

// box creates a sandbox for the suite of connections.
func (k kit) box(t *testing.T, isolation string) *outbound.Box {
	t.Helper()
	const probe, sudo = "/run/probe", "/run/bin/sudo"
	cfg := k.config(t)
	cfg.Binds = append(cfg.Binds, local.Bind{Source: k.probe, Target: probe})
	b := &outbound.Box{Probe: probe, Outside: outside(k.probe), Kernel: isolation != ""}
	if k.sudo != "" {
		cfg.Sudo, b.Sudo = k.sudo, sudo
	}
	h := &hub{t: t, k: k, cfg: cfg}
	if isolation != "" {
		h.cfg.Runsc = testenv.GVisor(t)
	}
	h.Provider = k.open(t, h.cfg)
	t.Cleanup(h.clean)
	spec := sandbox.Spec{Isolation: isolation}
	id := h.create(spec).ID
	run := func(id *string) func(string) (string, error) {
		return func(command string) (string, error) {
			if *id == "" {
				*id = h.create(spec).ID
			}
			return h.try(*id, http.MethodPost, "/run", command)
		}
	}
	var neighbour string
	b.Shell, b.Neighbour = run(&id), run(&neighbour)
	b.Listen = func(ctx context.Context) (net.Listener, error) { return h.Egress(ctx, id) }
	b.Reopen = func() error {
		err := h.Close()
		h.Provider = k.open(t, h.cfg)
		return err
	}
	return b
}

// TestResolverOfImages: sandboxes from an image find the resolver, also with a C library that sends queries without
// connecting. The image's own resolver does not matter.
func TestResolverOfImages(t *testing.T) {
	testenv.NeedRoot(t)
	t.Parallel()
	k := newKit(t)
	cfg := k.config(t)
	cfg.Images.Dir = filepath.Join(cfg.Dir, "images")
	h := &hub{t: t, k: k, cfg: cfg, Provider: k.open(t, cfg)}
	t.Cleanup(h.clean)
	root := t.TempDir()
	for name, from := range map[string]string{"server": k.payload, "bin/sh": k.probe} {
		data, err := os.ReadFile(from)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755), os.WriteFile(filepath.Join(root, name), data, 0o755))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "etc"), 0o755),
		os.WriteFile(filepath.Join(root, "etc/resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := h.ImportImage(t.Context(), saveImage(t, root), "resolver"); err != nil {
		t.Fatal(err)
	}
	id := h.create(sandbox.Spec{Image: "resolver"}).ID
	outbound.Serve(t, &outbound.Box{Listen: func(ctx context.Context) (net.Listener, error) { return h.Egress(ctx, id) }}, "*.ok.test")
	for command, want := range map[string]string{"lookup web.ok.test": "198.18.0.1\n",
		"lookup bad.test": "code RCodeNameError\n[exit status 1]", "get http://web.ok.test": "web web.ok.test"} {
		if out := h.sh(id, command); out != want {
			t.Errorf("%s: got %q, want %q", command, out, want)
		}
	}
	diff, err := h.Diff(t.Context(), id, 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range diff.Changes {
		if strings.HasPrefix(c.Path, "/etc/resolv") {
			t.Errorf("got the change %+v of a new sandbox", c)
		}
	}
}

// TestOutboundGVisor: the same on gVisor's kernel, whose sockets are those of the sandbox's network.
func TestOutboundGVisor(t *testing.T) {
	testenv.NeedRoot(t)
	testenv.GVisor(t)
	t.Parallel()
	k := newKit(t)
	outbound.Run(t, func(t *testing.T) *outbound.Box { return k.box(t, "gvisor") })
}

// outside runs a program on this machine.
func outside(program string) func(args ...string) (string, error) {
	return func(args ...string) (string, error) {
		out, err := exec.Command(program, args...).CombinedOutput()
		return string(out), err
	}
}
