// Package sdk drives the real programs with the public client of the AIO sandbox, unmodified.
package sdk

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

var aio, cove string

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) {
		aio, cove = filepath.Join(dir, "aio"), filepath.Join(dir, "cove")
	})
}

// TestPublicPythonSDK calls every method of the client: the synchronous one with a sandbox, the
// asynchronous one through the hub. Both are generated from one description and send the same requests.
func TestPublicPythonSDK(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash", "node", "python3", "chromium", "Xtigervnc", "ffmpeg")
	python := testenv.NeedFile(t, ".venv/bin/python")
	venv := []string{}
	if path, err := filepath.EvalSymlinks("../../.venv"); err == nil {
		if path, err = filepath.Abs(path); err == nil {
			venv = append(venv, "--venv", path)
		}
	}
	t.Run("sandbox", func(t *testing.T) {
		t.Parallel()
		url := start(t, []string{"SANDBOX_API_KEY=key"}, aio,
			append([]string{"serve", "--listen", "127.0.0.1:0", "--log-level", "warn"}, venv...)...)
		runStory(t, python, url, "key", "sync")
	})
	t.Run("hub", func(t *testing.T) {
		t.Parallel()
		testenv.NeedRoot(t)
		hub := start(t, nil, cove, append([]string{"hub", "--listen", "127.0.0.1:0", "--state",
			filepath.Join(t.TempDir(), "state"), "--aio", aio, "--log-level", "warn"}, venv...)...)
		call(t, http.MethodPost, hub+"/api/v1/sandbox", `{"name":"a"}`)
		t.Cleanup(func() { call(t, http.MethodDelete, hub+"/api/v1/sandbox/a", "") }) // sandboxes outlive their hub
		runStory(t, python, hub+"/sandbox/a", "", "async")
	})
}

// runStory runs the script of the client.
func runStory(t *testing.T, python, url, key, kind string) {
	t.Helper()
	out, err := exec.Command(python, "story.py", url, key, kind, fmt.Sprint(testenv.FreePort(t))).CombinedOutput()
	if err != nil {
		t.Errorf("%s: got %v: %s", kind, err, out)
		return
	}
	t.Logf("%s", out)
	if !bytes.HasSuffix(out, []byte("131 methods\n")) {
		t.Errorf("%s: got %s, want 131 methods", kind, out)
	}
}

func call(t *testing.T, method, url, body string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %s: got %s, want 200", method, url, res.Status)
	}
}

// start starts a program that reports its address.
func start(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	home := t.TempDir()
	log, err := os.Create(filepath.Join(home, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(name, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + home}, env...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if b, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%s: %s", filepath.Base(name), b)
		}
	})
	var url string
	testenv.Poll(t, filepath.Base(name)+" serves", func() bool {
		b, _ := os.ReadFile(log.Name())
		if m := regexp.MustCompile(`(?:serving on http://|listening at )([0-9.:]+)`).FindSubmatch(b); m != nil {
			url = "http://" + string(m[1])
		}
		return url != ""
	})
	return url
}
