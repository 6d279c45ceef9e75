package browser_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/browser"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func fileIs(path, want string) bool {
	b, err := os.ReadFile(path)
	return err == nil && string(b) == want
}

func TestRestart(t *testing.T) {
	t.Parallel()
	files := site(t, map[string]http.HandlerFunc{"/login": func(w http.ResponseWriter, _ *http.Request) {
		http.SetCookie(w, &http.Cookie{Name: "who", Value: "me", MaxAge: 3600})
		fmt.Fprint(w, "<title>login</title>")
	}})
	r := newFixture(t, func(c *browser.Config) { c.Homepage = files.URL + "/home" })
	c := r.connect(t)
	testenv.Poll(t, "the homepage is open", func() bool { return slices.Equal(pages(t, c), []string{files.URL + "/home"}) })
	r.open(t, c, files.URL+"/login")
	r.open(t, c, files.URL+"/second")
	want := pages(t, c)
	slices.Sort(want)

	call := &op.Call{}
	out, err := r.Restart(op.WithCall(testContext(t), call), browser.RestartIn{Mode: "soft"})
	must(t, err)
	if out.Mode != "soft" || call.Hint != "" {
		t.Errorf("soft: %+v, hint %q, want Mode \"soft\", Hint \"\"", out, call.Hint)
	}
	c = r.connect(t)
	testenv.Poll(t, "the tabs are back", func() bool {
		got := pages(t, c)
		slices.Sort(got)
		return slices.Equal(got, want)
	})
	if _, hint := r.info(t); hint != "" {
		t.Errorf("after a requested restart the hint is %q, want hint \"\"", hint)
	}

	out, err = r.Restart(testContext(t), browser.RestartIn{Mode: "hard", Locale: new("de-DE")})
	must(t, err)
	c = r.connect(t)
	testenv.Poll(t, "only the homepage is open", func() bool { return slices.Equal(pages(t, c), []string{files.URL + "/home"}) })
	p := r.open(t, c, files.URL+"/login")
	if lang, cookie := eval[string](t, p, `navigator.language`),
		eval[string](t, p, `document.cookie`); lang != "de-DE" || cookie != "who=me" || out.Locale != "de-DE" {
		t.Errorf("hard: language %q, cookie %q, %+v, want lang \"de-DE\", cookie \"who=me\", Locale \"de-DE\"", lang, cookie, out)
	}
	if _, err := r.Restart(testContext(t), browser.RestartIn{Mode: "soft", Locale: new("not a language")}); err == nil {
		t.Error("an invalid language was accepted")
	}
}

func TestKilledBrowserIsReplaced(t *testing.T) {
	t.Parallel()
	files := site(t, nil)
	r := newFixture(t)
	c := r.connect(t)
	r.open(t, c, files.URL+"/kept")
	// Chromium saves its tabs every few seconds; a soft restart saves them immediately.
	_, err := r.Restart(testContext(t), browser.RestartIn{Mode: "soft"})
	must(t, err)
	first, _ := r.info(t)
	must(t, syscall.Kill(r.pidOf(t, "chromium"), syscall.SIGKILL))
	second, hint := r.info(t)
	if !strings.Contains(hint, "ended by SIGKILL") || !strings.Contains(hint, "tabs were restored") {
		t.Errorf("hint %q, want hint containing \"ended by SIGKILL\", hint containing \"tabs were restored\"", hint)
	}
	if first.CDP == second.CDP {
		t.Errorf("the browser was not replaced, want CDP address other than %q", second.CDP)
	}
	testenv.Poll(t, "the tab is back", func() bool { return slices.Contains(pages(t, r.connect(t)), files.URL+"/kept") })
	if _, hint := r.info(t); hint != "" {
		t.Errorf("the next hint is %q, want hint \"\"", hint)
	}
	// An external client may close the browser; the next call starts a new one.
	_ = dial(t, getJSON[entry](t, r.url+"/json/version").Socket).Call(testContext(t), cdp.Browser, "Browser.close", nil, nil)
	testenv.Poll(t, "the browser ends", func() bool { state, _ := r.State(); return state == "failed" })
	if _, hint := r.info(t); !strings.Contains(hint, "ended normally") {
		t.Errorf("after it was closed: hint %q, want hint containing \"ended normally\"", hint)
	}
}

func TestHungBrowserIsReplaced(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	r := newFixture(t, func(c *browser.Config) { c.Hang = 10 * time.Second })
	r.info(t)
	pid := r.pidOf(t, "chromium")
	must(t, syscall.Kill(pid, syscall.SIGSTOP))
	if _, hint := r.info(t); !strings.Contains(hint, "hung") || r.pidOf(t, "chromium") == pid {
		t.Errorf("hint %q and process %d, want one containing \"hung\" and another process", hint, pid)
	}
	// The hang is detected without a call, too.
	must(t, syscall.Kill(r.pidOf(t, "chromium"), syscall.SIGSTOP))
	testenv.Poll(t, "the hung browser is given up", func() bool { state, _ := r.State(); return state == "failed" })
	r.info(t)
}

// TestEverythingIsKilledUnderLoad kills the processes, one by one and together, during calls.
func TestEverythingIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	r := newFixture(t)
	r.info(t)
	stop := make(chan struct{})
	var load sync.WaitGroup
	for i := range 3 {
		load.Go(func() {
			for n := i; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				switch n % 3 {
				case 0:
					_, err = r.Info(testContext(t), op.None{})
				case 1:
					_, err = r.display.Screenshot(testContext(t), display.ScreenshotIn{Format: "jpeg"})
				case 2:
					_, err = r.display.Act(testContext(t), display.ActionIn{OneOf: op.OneOf{Value: &display.MoveTo{Kind: "MOVE_TO", X: 5, Y: 5}}})
				}
				if e, ok := op.AsError(err); err != nil && (!ok || e.Code != op.Unavailable) {
					t.Errorf("a call ended with %v, want success or code %q", err, op.Unavailable)
				}
			}
		})
	}
	for _, victims := range [][]string{{"chromium"}, {"openbox"}, {"Xtigervnc"}, {"chromium", "openbox", "Xtigervnc"}} {
		var pids []int
		for _, v := range victims {
			pids = append(pids, r.pidOf(t, v))
		}
		for i, pid := range pids { // the others may have ended with the first
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && (i == 0 || !errors.Is(err, syscall.ESRCH)) {
				t.Fatal(err)
			}
		}
		r.info(t)
		_, err := r.display.Screenshot(testContext(t), display.ScreenshotIn{Format: "png"})
		must(t, err)
	}
	close(stop)
	load.Wait()
}

func TestIdleBrowserStopsAndRestarts(t *testing.T) {
	t.Parallel()
	files := site(t, nil)
	r := newFixture(t, func(c *browser.Config) { c.Idle = 50 * time.Millisecond })
	c, release, err := r.Connect(testContext(t))
	must(t, err)
	r.open(t, c, files.URL+"/kept")
	release()
	testenv.Poll(t, "the browser stops", func() bool { state, _ := r.State(); return state == "idle" })
	// Hold the browser so that it does not stop before its tabs are restored.
	c, release, err = r.Connect(testContext(t))
	must(t, err)
	defer release()
	_, hint := r.info(t)
	if !strings.Contains(hint, "was idle") {
		t.Errorf("hint %q, want hint containing \"was idle\"", hint)
	}
	testenv.Poll(t, "the tab is back", func() bool { return slices.Contains(pages(t, c), files.URL+"/kept") })
}

// TestStaleProfileLock starts with a profile that was used under another host name or by a killed browser.
func TestStaleProfileLock(t *testing.T) {
	t.Parallel()
	r := newFixture(t)
	profile := filepath.Join(r.dir, "browser", "profile")
	must(t, os.MkdirAll(profile, 0o700))
	must(t, os.Symlink("otherhost-1", filepath.Join(profile, "SingletonLock")))
	must(t, os.Symlink("/nowhere", filepath.Join(profile, "SingletonSocket")))
	r.info(t)
	other := browser.New(browser.Config{Runner: r.runner, Display: r.display, State: r.dir, Home: r.dir})
	ctx := testContext(t)
	if _, err := other.Info(ctx, op.None{}); err == nil || !strings.Contains(err.Error(), "another sandbox") {
		t.Errorf("a second browser with the same profile: %v, want an error containing \"another sandbox\"", err)
	}
	r.info(t)
}

func TestMissingBrowser(t *testing.T) {
	t.Parallel()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + t.TempDir()}})
	defer runner.Close()
	for program, want := range map[string]string{"": "install the package chromium", "/no/such/browser": "/no/such/browser"} {
		s := browser.New(browser.Config{Runner: runner, State: t.TempDir(), Program: program})
		if state, why := s.State(); state != "absent" || !strings.Contains(why, want) {
			t.Errorf("state %s: %s, want state \"absent\", why containing %q", state, why, want)
		}
		for name, call := range map[string]func() error{
			"info":    func() error { _, err := s.Info(testContext(t), op.None{}); return err },
			"restart": func() error { _, err := s.Restart(testContext(t), browser.RestartIn{Mode: "hard"}); return err },
		} {
			if e, ok := op.AsError(call()); !ok || e.Code != op.Unavailable || !strings.Contains(e.Msg, want) {
				t.Errorf("%s: %v, want an error with code unavailable that contains %q", name, e, want)
			}
		}
		must(t, s.Close())
	}
}

// TestScreenshotWithoutBrowser checks that a desktop works without a browser.
func TestScreenshotWithoutBrowser(t *testing.T) {
	t.Parallel()
	r := newFixture(t, func(c *browser.Config) { c.Program = "/no/such/browser" })
	_, err := r.display.Screenshot(testContext(t), display.ScreenshotIn{Format: "png"})
	must(t, err)
	call := &op.Call{}
	_, err = r.display.Act(op.WithCall(testContext(t), call),
		display.ActionIn{OneOf: op.OneOf{Value: &display.MoveTo{Kind: "MOVE_TO", X: 5, Y: 5}}})
	if err != nil || !strings.Contains(call.Hint, "No browser") {
		t.Errorf("%v, hint %q, want Hint containing \"No browser\"", err, call.Hint)
	}
}

// TestAsAnotherUser runs the tests below as a user without privileges, as the sandbox does.
func TestAsAnotherUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("this is another user already")
	}
	testenv.NeedRoot(t)
	home, err := os.MkdirTemp("", "cove-user-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(home) })
	const nobody = 65534
	must(t, os.Chown(home, nobody, nobody))
	program := filepath.Join(home, "browser.test")
	must(t, exec.Command("cp", os.Args[0], program).Run())
	cmd := exec.Command(program, "-test.run", "^TestSandbox", "-test.v")
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home, "CI=" + os.Getenv("CI"), "COVE_UNPRIVILEGED=1"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || strings.Contains(string(out), "SKIP") {
		t.Fatal(err)
	}
}

func unprivileged(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		t.Skip("root cannot use Chromium's sandbox; TestAsAnotherUser runs this")
	}
}

func TestSandboxIsOn(t *testing.T) {
	unprivileged(t)
	r := newFixture(t)
	info, _ := r.info(t)
	if _, why := r.State(); !info.Sandbox || info.Reason != "" || why != "" {
		t.Fatalf("the sandbox is off: %s, %s, want Sandbox true, Reason \"\", why \"\"", info.Reason, why)
	}
	p := r.open(t, r.connect(t), "about:blank")
	if eval[int](t, p, `6 * 7`) != 42 {
		t.Error("a page does not work")
	}
	for _, path := range []string{"/json/protocol", "/devtools/inspector.html"} {
		if status, _, body := get(t, "GET", r.url+path); status != 200 {
			t.Errorf("%s: %d %.200s, want status 200", path, status, body)
		}
	}
	filtered := 0
	for _, line := range testenv.ProcessesOf(r.dir) {
		if strings.Contains(line, "--no-sandbox") {
			t.Errorf("without sandbox: %s, want line without \"--no-sandbox\"", line)
		}
		pid, _, _ := strings.Cut(line, " ")
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err == nil && strings.Contains(line, "--type=renderer") && strings.Contains(string(status), "Seccomp:\t2") {
			filtered++
		}
	}
	if filtered == 0 {
		t.Error("no renderer is in a sandbox")
	}
}

// TestSandboxIsTurnedOffOnlyWhereItCannotWork replaces Chromium by a program that prints the same error.
func TestSandboxIsTurnedOffOnlyWhereItCannotWork(t *testing.T) {
	unprivileged(t)
	script := filepath.Join(t.TempDir(), "chromium")
	must(t, os.WriteFile(script, []byte(`#!/bin/sh
case "$*" in *--no-sandbox*) exec /usr/bin/chromium "$@";; esac
echo "[1:1:FATAL:zygote_host_impl_linux.cc(128)] No usable sandbox! If you are running on Ubuntu 23.10+ ..." >&2
exit 133
`), 0o755))
	r := newFixture(t, func(c *browser.Config) { c.Program = script })
	info, _ := r.info(t)
	if _, why := r.State(); info.Sandbox || !strings.Contains(info.Reason, "No usable sandbox") ||
		!strings.Contains(why, "No usable sandbox") {
		t.Errorf("info %+v, readiness %q, want Sandbox false, Reason containing \"No usable sandbox\", why "+
			"containing \"No usable sandbox\"", info, why)
	}
}
