package newcomer

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/guide"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/dist"
)

// patience limits one step. Some compile everything or download hundreds of megabytes, on a loaded machine. A step also ends
// before the time limit of all tests, so that its output is reported, and the system removed.
const (
	patience = 35 * time.Minute
	reserve  = 3 * time.Minute
)

// newcomer is a person at a terminal.
type newcomer struct {
	combination
	t      *testing.T
	system *dist.System
	user   string
	dir    string   // where they type
	env    []string // settings for the network of this machine
	path   string   // folder of the programs; empty: they are on the PATH

	distribution string // folder with archives and packages
}

// passed are variables about the network, which programs in the system need, too.
var passed = regexp.MustCompile(`^(?i)(https?_proxy|no_proxy|SSL_CERT_\w+|PIP_(CERT|INDEX_URL|DEFAULT_TIMEOUT)|UV_\w+|` +
	`GO(PROXY|SUMDB|NOSUMDB)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|NODE_EXTRA_CA_CERTS)=`)

// follow installs and starts Cove as the documentation says, and then types its commands.
func follow(t *testing.T, c combination, distribution string) {
	n := &newcomer{combination: c, t: t, distribution: distribution, system: dist.StartSystem(t, c.release), user: "ann", dir: "/home/ann"}
	if c.rights == "root" {
		n.user, n.dir = "root", "/root"
	}
	for _, pair := range os.Environ() {
		if passed.MatchString(pair) {
			n.env = append(n.env, pair)
		}
	}
	n.prepare()
	begun := time.Now()
	switch c.source {
	case "repository":
		n.makeRun(begun)
	default:
		n.install()
		n.measured(c.source, time.Since(begun), "until it is installed")
		n.startServer(begun)
	}
	n.startHub()
	n.readREADME()
	n.readGuide()
}

// as runs a script as a user and returns its output.
func (n *newcomer) as(user, script string) (string, error) {
	n.t.Helper()
	ctx, cancel := n.limit()
	defer cancel()
	dir := n.dir
	if user != n.user {
		dir = "/"
	}
	var out, errs bytes.Buffer
	cmd := n.system.Command(ctx, user, dir, n.env, script)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", cmp.Or(context.Cause(ctx), err), &errs)
	}
	return out.String(), nil
}

// limit returns the context of a step.
func (n *newcomer) limit() (context.Context, context.CancelFunc) {
	if n.t.Context().Err() != nil { // a cleanup runs scripts, too
		return context.WithTimeout(context.WithoutCancel(n.t.Context()), reserve/2)
	}
	end := time.Now().Add(patience)
	if all, ok := n.t.Deadline(); ok && all.Add(-reserve).Before(end) {
		end = all.Add(-reserve)
	}
	return context.WithDeadlineCause(n.t.Context(), end, fmt.Errorf("the step did not end within %v", time.Until(end).Round(time.Second)))
}

// must is as, for a step that all later ones require.
func (n *newcomer) must(user, script string) string {
	n.t.Helper()
	out, err := n.as(user, script)
	if err != nil {
		n.t.Fatalf("%s as %s: got error %v and %s, want success", script, user, err, out)
	}
	return out
}

// types runs what the newcomer types.
func (n *newcomer) types(script string) string { n.t.Helper(); return n.must(n.user, script) }

// starts runs in the background what the newcomer types.
func (n *newcomer) starts(script string) *transcript {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	cmd := n.system.Command(ctx, n.user, n.dir, n.env, script)
	s := &transcript{begun: time.Now(), done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = s, s
	cmd.WaitDelay = time.Second
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() { s.err = cmd.Wait(); close(s.done) }()
	n.t.Cleanup(func() { cancel(); <-s.done })
	return s
}

// transcript is the output of a program.
type transcript struct {
	begun time.Time
	done  chan struct{}
	err   error // after done

	mu   sync.Mutex
	text bytes.Buffer
	last time.Time
	gap  time.Duration // longest time without output
}

func (s *transcript) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if s.last.IsZero() {
		s.last = s.begun
	}
	s.gap, s.last = max(s.gap, now.Sub(s.last)), now
	return s.text.Write(p)
}

func (s *transcript) String() string { s.mu.Lock(); defer s.mu.Unlock(); return s.text.String() }

func (s *transcript) longestGap() time.Duration { s.mu.Lock(); defer s.mu.Unlock(); return s.gap }

// over reports whether the program has ended.
func (s *transcript) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// prepare makes the empty system the computer of a newcomer: with curl, and make for those who build.
func (n *newcomer) prepare() {
	packages := "curl"
	if n.source == "repository" {
		packages += " make"
	}
	if n.rights == "sudo" {
		packages += " sudo"
	}
	n.must("root", "export DEBIAN_FRONTEND=noninteractive; apt-get update -qq; apt-get install -qq -y --no-install-recommends "+
		packages+" > /dev/null")
	if n.user != "root" {
		n.must("root", "useradd --create-home --shell /bin/bash "+n.user)
	}
	if n.rights == "sudo" {
		var names []string
		for _, pair := range n.env {
			name, _, _ := strings.Cut(pair, "=")
			names = append(names, name)
		}
		n.must("root", fmt.Sprintf("printf '%s ALL=(ALL) NOPASSWD: ALL\\nDefaults env_keep += \"%s\"\\n' > /etc/sudoers.d/newcomer",
			n.user, strings.Join(names, " ")))
	}
}

// administers runs a command that requires root. For newcomers without rights, an administrator types it.
func (n *newcomer) administers(command string) string {
	n.t.Helper()
	switch n.rights {
	case "root":
		return n.types(command)
	case "sudo":
		return n.types("sudo " + command)
	}
	return n.must("root", "cd "+n.dir+"; "+command)
}

// makeRun types make run in a copy of the repository, and the commands that it asks an administrator to run.
func (n *newcomer) makeRun(begun time.Time) {
	n.copyRepository()
	run := n.starts("exec make run")
	n.await(run, "curl -sf localhost:8080/v1/sandbox > /dev/null")
	if run.over() {
		if n.rights != "neither" {
			n.t.Fatalf("make run: got %v and %s, want a server", run.err, run)
		}
		command := regexp.MustCompile(`(?m)^ +(apt-get install .*)$`).FindStringSubmatch(run.String())
		if command == nil {
			n.t.Fatalf("make run without rights: got %v and %s, want the command for an administrator", run.err, run)
		}
		n.must("root", strings.Replace(command[1], "install", "install -qq -y", 1)+" > /dev/null")
		begun = time.Now()
		run = n.starts("exec make run")
		n.await(run, "curl -sf localhost:8080/v1/sandbox > /dev/null")
	}
	if run.over() {
		n.t.Fatalf("make run: got %v and %s, want a server", run.err, run)
	}
	first := time.Since(begun)
	n.wantProgress(run, "before the first response")
	shown := len(run.String())
	n.await(run, "test ! -e .tools/installing")
	all := run.String()
	if !strings.Contains(all, "Everything is installed, after ") {
		n.t.Errorf("make run: got %s, want it to say that everything is installed", all)
	}
	if !progressLine.MatchString(all[shown:]) {
		n.t.Errorf("make run while it serves: got %s, want lines that show which steps run", all[shown:])
	}
	n.measured("make run", first, "to the first response", time.Since(begun), "until everything is installed",
		run.longestGap(), "at most without output")
	n.path = n.dir + "/bin"
}

// progressLine shows after how many seconds which steps run.
var progressLine = regexp.MustCompile(`(?m)^  [0-9]+ s: \S.*$`)

func (n *newcomer) wantProgress(program *transcript, when string) {
	n.t.Helper()
	if lines := progressLine.FindAllString(program.String(), -1); len(lines) < 2 {
		n.t.Errorf("%s: got %d lines that show which steps run, want at least 2: %s", when, len(lines), program)
	}
}

// measured prints figures in one line: they depend on the machine and its load, so nothing depends on them. The goals, on two
// free cores, are 90 s from make run to the first response, output at least every 5 s, and 60 s from a package to Python.
func (n *newcomer) measured(what string, figures ...any) {
	line := n.String() + ": " + what
	for i := 0; i < len(figures); i += 2 {
		d, _ := figures[i].(time.Duration)
		line += fmt.Sprintf(", %v %v", d.Round(100*time.Millisecond), figures[i+1])
	}
	n.t.Log("measured: " + line)
}

// await waits until a command succeeds, or the program ends.
func (n *newcomer) await(program *transcript, command string) {
	n.t.Helper()
	ctx, cancel := n.limit()
	defer cancel()
	succeeded := make(chan error, 1)
	cmd := n.system.Command(ctx, n.user, n.dir, n.env, "until "+command+"; do sleep 0.2; done > /dev/null 2>&1")
	go func() { succeeded <- cmd.Run() }()
	select {
	case <-program.done:
		cancel()
		<-succeeded
	case err := <-succeeded:
		if err != nil {
			n.t.Fatalf("%s does not succeed: %v: %s", command, cmp.Or(context.Cause(ctx), err), program)
		}
	}
}

func (n *newcomer) copyRepository() {
	list, err := exec.CommandContext(n.t.Context(), "git", "-C", "../..", "ls-files", "-coz", "--exclude-standard").Output()
	if err != nil {
		testenv.Lack(n.t, "needs a clone of the repository: "+err.Error())
	}
	pack := exec.CommandContext(n.t.Context(), "tar", "-C", "../..", "--null", "--files-from=-", "--ignore-failed-read", "-cf",
		filepath.Join(n.system.Exchange, "cove.tar"))
	pack.Stdin = bytes.NewReader(list)
	if out, err := pack.CombinedOutput(); err != nil {
		n.t.Fatalf("tar: %v: %s", err, out)
	}
	n.types("mkdir cove; tar -C cove -xf /exchange/cove.tar")
	n.dir += "/cove"
}

const version = "9.8.7"

// install installs an archive or a package, and the programs that doctor requires.
func (n *newcomer) install() {
	files, err := filepath.Glob(filepath.Join(n.distribution, "cove*"+version+"*"+runtime.GOARCH+"*"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(filepath.Join(n.system.Exchange, filepath.Base(path)), text, 0o644)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	if n.source == "deb" {
		n.administers("env DEBIAN_FRONTEND=noninteractive apt install -y /exchange/cove_*.deb > /dev/null 2>&1")
		return
	}
	n.types("tar xzf /exchange/cove-*.tar.gz")
	n.dir = strings.TrimSpace(n.types("cd cove-*/ && pwd"))
	n.path = n.dir + "/bin"
	if n.rights != "neither" {
		n.administers("bin/cove doctor --fix")
		return
	}
	findings, _ := n.as(n.user, "bin/cove doctor")
	for _, command := range regexp.MustCompile(`apt-get install [\w-]+`).FindAllString(findings, -1) {
		// A release may lack a package: Ubuntu has no chromium.
		_, _ = n.as("root", strings.Replace(command, "install", "install -qq -y --no-install-recommends", 1)+" > /dev/null")
	}
}

// startServer starts a sandbox without isolation, and waits for the first result of Python.
func (n *newcomer) startServer(begun time.Time) {
	server := n.starts("exec " + n.program("aio") + " serve")
	n.await(server, "curl -sf localhost:8080/v1/sandbox > /dev/null")
	n.await(server, `curl -s localhost:8080/v1/jupyter/execute -d '{"code": "6 * 7"}' | grep -q '"text/plain":"42"'`)
	if server.over() {
		n.t.Fatalf("aio serve: got %v and %s, want a server", server.err, server)
	}
	n.measured(n.source, time.Since(begun), "to the first result of Python", server.longestGap(), "at most without output")
}

func (n *newcomer) program(name string) string {
	if n.path == "" {
		return name
	}
	return "bin/" + name
}

// startHub starts a hub, as root if the newcomer can.
func (n *newcomer) startHub() {
	command := n.program("cove") + " hub"
	if n.rights == "sudo" {
		command = "sudo " + command
	}
	hub := n.starts("exec " + command)
	n.await(hub, n.program("cove")+" list")
	if hub.over() {
		n.t.Fatalf("%s: got %v and %s, want a hub", command, hub.err, hub)
	}
	n.t.Cleanup(func() { // so that it removes its control groups
		_, _ = n.as("root", `for p in /proc/[0-9]*; do [ "$(basename "$(readlink "$p/exe")")" != cove ] || kill "${p#/proc/}"; done || true`)
		testenv.Eventually(hub.over)
	})
}

// typed are commands of the README that the newcomer has typed before, or that are for developers.
var typed = []string{"make run", "make test", "sudo bin/cove hub"}

// readREADME types the commands of the README, and runs its Python code with the public SDK.
func (n *newcomer) readREADME() {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		n.t.Fatal(err)
	}
	n.types("echo notes > notes.txt")
	ran := 0
	for line := range strings.Lines(string(text)) {
		command, ok := strings.CutPrefix(line, "    ")
		command, _, _ = strings.Cut(command, "  #")
		command = strings.TrimSpace(command)
		if !ok || slices.ContainsFunc(typed, func(t string) bool { return strings.HasPrefix(command, t) }) {
			continue
		}
		if n.path == "" { // a package has its programs on the PATH
			command = strings.ReplaceAll(command, "bin/", "")
		}
		out, err := n.as(n.user, command)
		if strings.HasPrefix(command, "curl") && !strings.Contains(out, `"success":true`) && !strings.Contains(out, `"result"`) {
			n.t.Errorf("%s: got %s, want success", command, out)
		}
		if err != nil {
			n.t.Errorf("%s: got error %v and %s, want success", command, err, out)
		}
		ran++
	}
	if ran < 12 {
		n.t.Errorf("got %d commands in the README, want at least 12", ran)
	}
	n.installSDK()
	for _, block := range regexp.MustCompile("(?ms)^```python\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
		if out, err := n.python(block[1]); err != nil || !strings.Contains(out, "Linux") || !strings.Contains(out, "\n45\n") {
			n.t.Errorf("the Python of the README: got %q and error %v, want Linux and 45", out, err)
		}
	}
}

// installSDK installs the public SDK without its large optional dependencies.
func (n *newcomer) installSDK() {
	text, err := os.ReadFile("../sdk/requirements.txt")
	if err == nil {
		err = os.WriteFile(filepath.Join(n.system.Exchange, "requirements.txt"), text, 0o644)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.types("python3 -m venv ~/sdk && ~/sdk/bin/pip -q install --no-deps -r /exchange/requirements.txt")
}

func (n *newcomer) python(code string) (string, error) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.system.Exchange, "code.py"), []byte(code), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return n.as(n.user, "~/sdk/bin/python /exchange/code.py")
}

// readGuide runs the blocks in bash and Python, in the order of the guide.
func (n *newcomer) readGuide() {
	blocks, err := guide.Blocks(os.DirFS("../../docs"))
	if err != nil {
		n.t.Fatal(err)
	}
	onPath := ""
	if n.path != "" {
		onPath = "export PATH=" + n.path + ":$PATH\n"
	}
	ran := map[string]int{}
	for _, b := range blocks {
		if b.Skip != "" || b.With != "" || b.Language != "bash" && b.Language != "python" {
			continue
		}
		if why := n.lacks(b); why != "" {
			n.t.Logf("docs/%s: not run: %s", b, why)
			continue
		}
		run := func(code string) (string, error) { return n.as(n.user, onPath+code) }
		if b.Language == "python" {
			run = n.python
		}
		out, err := run(b.Code)
		ran[b.Language]++
		if err != nil {
			n.t.Errorf("docs/%s: got error %v and %s", b, err, out)
			continue
		}
		for _, want := range b.Wants() {
			if !strings.Contains(out, want) {
				n.t.Errorf("docs/%s: got %q, want %q", b, out, want)
			}
		}
	}
	n.t.Logf("ran %v", ran)
	if ran["bash"] < 30 || ran["python"] < 10 {
		n.t.Errorf("got %v executed blocks, want at least 30 in bash and 10 in Python", ran)
	}
}

// lacks returns what a block needs that this newcomer cannot have.
func (n *newcomer) lacks(b guide.Block) string {
	code := b.Code
	switch {
	case n.release == "noble" && regexp.MustCompile(`\b(aio browser|aio gui|browser/|box\.browser)`).MatchString(code):
		return "Ubuntu has no package of Chromium"
	case n.rights == "neither" && regexp.MustCompile(`--(memory|cpu)-limit`).MatchString(code):
		return "a hub without root and delegated control groups rejects limits"
	case n.rights == "neither" && strings.HasPrefix(b.String(), "guide/templates.md"):
		return "a hub without root cannot build templates"
	}
	return ""
}
