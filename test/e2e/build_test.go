package e2e

import (
	"bytes"
	"context"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// project is a folder with a Dockerfile.
type project struct {
	*testing.T
	h   *hub
	dir string
}

// newProject returns a folder with files, by name.
func newProject(t *testing.T, h *hub, files map[string]string) *project {
	t.Helper()
	p := &project{t, h, t.TempDir()}
	for name, text := range files {
		p.write(name, text)
	}
	return p
}

func (p *project) write(name, text string) {
	p.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		p.Fatal(err)
	}
}

// build runs cove build and returns its output.
func (p *project) build(args ...string) (out, log string, code int) {
	p.Helper()
	return p.h.cove(p.T, "", append(append([]string{"build"}, args...), p.dir)...)
}

// must runs a build that must succeed, and checks its result.
func (p *project) must(want string, args ...string) (log string) {
	p.Helper()
	out, log, code := p.build(args...)
	if code != 0 || !strings.Contains(out, want) {
		p.Fatalf("build %q: code %d, %q, want %q; log:\n%s", args, code, out, want, log)
	}
	return log
}

// fails runs a build that must fail with a text in its errors.
func (p *project) fails(code int, want string, args ...string) {
	p.Helper()
	_, log, got := p.build(args...)
	if got != code || !strings.Contains(log, want) {
		p.Errorf("build %q: code %d, want %d and %q in:\n%s", args, got, code, want, log)
	}
}

// nothingLeft checks that no sandbox of a build exists.
func (p *project) nothingLeft() {
	p.Helper()
	testenv.Poll(p.T, "no sandbox of a build is left", func() bool { return p.h.must(p.T, "list", "-q") == "" })
}

// TestBuild: a Dockerfile becomes a template. Unchanged steps are not run again, only missing files are sent, and secrets stay
// nowhere.
func TestBuild(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir()}
	h.beginOwn(t, "--tenants")
	p := newProject(t, h, map[string]string{"src/main.py": "print('main')\n", "junk.log": "junk", ".dockerignore": "*.log\n", "Dockerfile": `
# syntax=docker/dockerfile:1
ARG WHO=world
FROM environment:// AS build
WORKDIR /src
COPY src .
RUN --mount=type=cache,target=/var/cache/tool --mount=type=secret,id=token \
    echo run >> /var/cache/tool/runs; wc -l < /var/cache/tool/runs > runs; wc -c < /run/secrets/token > size; cat /run/secrets/token
RUN ln -s /usr/bin/env abs && chown 1000:1000 main.py && chmod 0444 main.py
FROM environment://
ARG WHO
ENV GREETING="hello ${WHO:-x}" PATH=/opt/bin:$PATH
COPY --from=build /src /opt/app
COPY . /opt/context/
COPY --chmod=755 <<"EOF" /opt/bin/greet
#!/bin/sh
echo $GREETING
EOF
RUN greet > /opt/greeting
WORKDIR /opt/work
`})
	const value = "a-very-secret-value"
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(value), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"-t", "demo", "-t", "demo:v1", "--build-arg", "WHO=you", "--secret", "id=token,src=" + token}
	log := p.must("demo", args...)
	if !strings.Contains(log, "sent ") || !strings.Contains(log, "***") {
		t.Errorf("the log is %s", log)
	}
	h.must(t, "create", "a", "--environment", "demo:v1")
	h.verify(t, "a", check{"pwd; cat /opt/greeting; greet", "/opt/work\nhello you\nhello you"},
		check{"cat /opt/app/size /opt/app/runs; stat -c '%a %u' /opt/app/main.py; readlink /opt/app/abs", "19\n1\n444 1000\n/usr/bin/env"},
		check{"cd /opt/context; find . | sort; ls -d /var/cache/tool /run/secrets/* 2>/dev/null; true",
			".\n./.dockerignore\n./Dockerfile\n./src\n./src/main.py"})
	h.must(t, "rm", "a", "--yes")

	if log := p.must("11 of 11 steps cached", args...); strings.Contains(log, "sent ") {
		t.Errorf("an unchanged rebuild: %s", log)
	}
	p.write("src/main.py", "print('changed')\n")
	p.must("of 11 steps cached", args...)
	h.must(t, "create", "a", "--environment", "demo")
	// The cache has what the first build has written.
	h.verify(t, "a", check{"cat /opt/app/main.py /opt/app/runs", "print('changed')\n2"})
	h.must(t, "rm", "a", "--yes")
	p.nothingLeft()
	p.noSecret(value)
	p.failures(token)

	// The program of an image with a port or health check runs in each sandbox, in its folder and with its variables.
	p.write("serve", "#!/bin/sh\npwd > /tmp/state; echo $GREETING >> /tmp/state; sleep 1000\n")
	p.write("Dockerfile", `FROM template://demo
COPY --chmod=755 serve /opt/bin/
HEALTHCHECK CMD ["test", "-s", "/tmp/state"]
CMD ["serve"]
`)
	p.must("service", "-t", "service")
	h.must(t, "create", "s", "--environment", "service")
	h.verify(t, "s", check{"cat /tmp/state", "/opt/work\nhello you"})
	if out := h.must(t, "template", "tag", "service", "stable"); !strings.Contains(out, "stable") {
		t.Errorf("template tag: got %s", out)
	}
	if _, _, code := h.cove(t, "", "template", "untag", "service", "default"); code == 0 {
		t.Error("the default tag was removed")
	}
	h.must(t, "template", "untag", "service", "stable")
	if out := h.must(t, "template", "history", "service"); !strings.Contains(out, "ready") || strings.Contains(out, "stable") {
		t.Errorf("template history: got %s", out)
	}
}

// noSecret checks that no file of the hub contains a value.
func (p *project) noSecret(value string) {
	p.Helper()
	err := filepath.WalkDir(p.h.State, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // files come and go
		}
		if info, err := d.Info(); err != nil || info.Size() > 64<<20 {
			return nil //nolint:nilerr // the image of all disks, whose files are walked, too
		}
		if b, err := os.ReadFile(path); err == nil && bytes.Contains(b, []byte(value)) {
			p.Errorf("%s contains a secret", path)
		}
		return nil
	})
	if err != nil {
		p.Error(err)
	}
	if bytes.Contains([]byte(p.h.log.String()), []byte(value)) {
		p.Error("the log of the hub contains a secret")
	}
}

// failures checks what users see of failed builds.
func (p *project) failures(token string) {
	p.Helper()
	const from = "FROM environment://\n"
	p.write("Dockerfile", from+"RUN --mount=type=secret,id=token cp /run/secrets/token /root/.npmrc\n")
	p.fails(1, "Dockerfile:2 (RUN --mount=type=secret,id=token cp /run/secrets/token /root/.npmrc): it wrote the secret token to "+
		"/root/.npmrc", "-t", "leak", "--secret", "id=token,src="+token)
	p.write("Dockerfile", from+"RUN echo early\nRUN echo the output >&2; exit 3\nRUN echo never\n")
	p.fails(1, "the output\n", "-q", "-t", "bad")
	p.fails(1, "Dockerfile:3 (RUN echo the output >&2; exit 3): it failed with exit code 3", "-t", "bad", "--keep")
	kept := strings.TrimSpace(p.h.must(p.T, "list", "-q"))
	if !strings.HasPrefix(kept, "build-") {
		p.Fatalf("got the sandboxes %q, want the kept one", kept)
	}
	p.h.must(p.T, "exec", kept, "true")
	p.h.must(p.T, "rm", kept, "--yes")
	for text, want := range map[string]string{
		"RUN --mount=type=bind,target=/x y":       "Dockerfile:2: RUN: --mount=type=bind",
		"COPY missing /":                          "Dockerfile:2: missing: no such file",
		"COPY junk.log /":                         ".dockerignore excludes it",
		"RUN --mount=type=secret,id=x,required y": "the secret x is required",
		"RUN --mount=type=cache,target=/usr/x y":  "mount elsewhere",
		"USER nobody-here\nRUN true":              "invalid username",
	} {
		p.write("Dockerfile", from+text+"\n")
		_, log, code := p.build("-t", "bad")
		if code == 0 || !strings.Contains(log, want) {
			p.Errorf("%s: code %d, want %q in %s", text, code, want, log)
		}
	}
	p.write("Dockerfile", "FROM template://none\n")
	p.fails(1, `no template "none"`, "-t", "bad")
	p.nothingLeft()
}

// TestBuildIsCanceled: Ctrl-C ends a build and its sandbox.
func TestBuildIsCanceled(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir()}
	h.beginOwn(t, "--tenants")
	p := newProject(t, h, map[string]string{"Dockerfile": "FROM environment://\nRUN echo started; sleep 1000\n"})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, cove, "build", "-t", "slow", p.dir)
	cmd.Env = environment(t.TempDir(), h.env)
	log := &output{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the step runs", func() bool { return strings.Contains(log.String(), "started") })
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 130 {
		t.Errorf("got %v, want exit code 130: %s", err, log.String())
	}
	c := h.client(t)
	builds := lastBuild(t, c, "slow")
	if builds.Status != "error" || !strings.Contains(builds.Error, "canceled") {
		t.Errorf("got %+v, want a canceled build", builds)
	}
	p.nothingLeft()
}

func lastBuild(t *testing.T, c *client.Client, name string) client.Build {
	t.Helper()
	template, err := c.Templates().Get(t.Context(), name)
	if err != nil || len(template.Builds) == 0 {
		t.Fatalf("got %+v, %v, want a build", template, err)
	}
	return template.Builds[0]
}
