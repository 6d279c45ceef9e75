package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/deploy"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/docker"
	"github.com/cove-sandbox/cove/internal/provider/providertest/outbound"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const outboundImage = "cove-test/outbound:1"

// testOutbound: programs that do not use a proxy connect to what the rules allow.
func testOutbound(t *testing.T, r rig) {
	dir := t.TempDir()
	probe := filepath.Join(dir, "probe")
	outbound.Build(t, probe)
	r.Run(t, rootWithSudo(t, probe), "import", "-", outboundImage)
	outbound.RunMinimal(t, func(t *testing.T) *outbound.Box {
		cfg := r.config(t)
		cfg.Image, cfg.Programs, cfg.Seccomp = outboundImage, maps.Clone(r.programs), deploy.Seccomp
		cfg.Programs["probe"] = probe
		p, err := docker.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		var boxes []string
		t.Cleanup(func() {
			for _, id := range boxes {
				if err := p.Delete(context.Background(), id); err != nil {
					t.Error(err)
				}
			}
			p.Close()
		})
		create := func() string {
			sb, err := p.Create(t.Context(), sandbox.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			boxes = append(boxes, sb.ID)
			return sb.ID
		}
		id := create()
		t.Cleanup(func() {
			if t.Failed() {
				t.Log(r.Run(t, nil, "logs", strings.Fields(r.Run(t, nil, "ps", "-q"))[0]))
			}
		})
		run := func(id, command string) (string, error) {
			ep, err := p.Endpoint(t.Context(), id, 0)
			if err != nil {
				return "", err
			}
			return outbound.Request(t.Context(), ep.Dial, command)
		}
		return &outbound.Box{
			Probe: "/run/bin/probe", Outside: outside(probe), Sudo: "/bin/sudo root",
			Shell:     func(command string) (string, error) { return run(id, command) },
			Neighbour: func(command string) (string, error) { return run(create(), command) },
			Listen:    func(ctx context.Context) (net.Listener, error) { return p.Egress(ctx, id) },
			Reopen: func() (err error) {
				p.Close()
				p, err = docker.Open(t.Context(), cfg)
				return err
			},
		}
	})
}

// rootWithSudo is a root filesystem with a shell, and with a program that becomes root.
func rootWithSudo(t *testing.T, sudo string) io.Reader {
	t.Helper()
	testenv.Need(t, "busybox")
	shell, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	add := func(h *tar.Header, data []byte) {
		h.Size = int64(len(data))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		w.Write(data)
	}
	for name, f := range map[string]struct {
		from string
		mode int64
	}{"bin/sh": {shell, 0o755}, "bin/sudo": {sudo, 0o4755}} {
		data, err := os.ReadFile(f.from)
		if err != nil {
			t.Fatal(err)
		}
		add(&tar.Header{Name: name, Mode: f.mode, Typeflag: tar.TypeReg}, data)
	}
	for name, text := range map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\ngem:x:1000:1000::/home/gem:/bin/sh\n", "etc/group": "root:x:0:\ngem:x:1000:\n"} {
		add(&tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg}, []byte(text))
	}
	for name, mode := range map[string]int64{"home/gem/": 0o777, "tmp/": 0o1777, "run/": 0o755} {
		add(&tar.Header{Name: name, Mode: mode, Typeflag: tar.TypeDir}, nil)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &out
}

// outside runs a program on this machine.
func outside(program string) func(args ...string) (string, error) {
	return func(args ...string) (string, error) {
		out, err := exec.Command(program, args...).CombinedOutput()
		return string(out), err
	}
}
