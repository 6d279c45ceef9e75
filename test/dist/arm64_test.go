package dist

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/testenv"
)

// emulator runs programs for arm64 on other machines; scripts/deps unpacks it.
const emulator = "../../.tools/qemu/usr/bin/qemu-aarch64-static"

// The programs for arm64 start and serve. Programs that they start are this machine's own.
func TestArm64ProgramsServe(t *testing.T) {
	t.Parallel()
	run := []string{}
	if runtime.GOARCH != "arm64" {
		run = []string{testenv.NeedFile(t, emulator)}
	}
	dir, home := t.TempDir(), t.TempDir()
	// With the settings of make check, which has compiled it.
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir+"/", "../../cmd/aio", "../../cmd/cove")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	start := func(name string, args ...string) *exec.Cmd {
		all := append(append(run, filepath.Join(dir, name)), args...)
		cmd := exec.CommandContext(t.Context(), all[0], all[1:]...)
		cmd.Env = append(os.Environ(), "HOME="+home)
		return cmd
	}
	for _, name := range []string{"aio", "cove"} {
		if out, err := start(name, "version").CombinedOutput(); err != nil || !bytes.Contains(out, []byte("linux/arm64")) {
			t.Errorf("%s version: got %v: %s, want linux/arm64", name, err, out)
		}
	}
	socket := filepath.Join(home, "aio.sock")
	var log bytes.Buffer
	server := start("aio", "serve", "--listen", "unix:"+socket)
	server.Stdout, server.Stderr = &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		server.Process.Signal(os.Interrupt)
		if err := server.Wait(); err != nil || t.Failed() {
			t.Errorf("aio serve: %v: %s", err, &log)
		}
	}()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	post := func(path, body, want string) {
		t.Helper()
		resp, err := client.Post("http://aio"+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var out bytes.Buffer
		if _, err := out.ReadFrom(resp.Body); err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(out.String(), want) {
			t.Errorf("%s: got %s, %v, %s, want %s", path, resp.Status, err, &out, want)
		}
	}
	testenv.Poll(t, "the server is ready", func() bool {
		resp, err := client.Get("http://aio/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	file := filepath.Join(home, "file.txt")
	post("/v1/file/write", `{"file": "`+file+`", "content": "kept"}`, `"bytes_written":4`)
	post("/v1/file/read", `{"file": "`+file+`"}`, `"content":"kept"`)
	post("/v1/bash/exec", `{"command": "echo $((6 * 7))"}`, `"stdout":"42\n"`)
	post("/v1/shell/exec", `{"command": "echo in a terminal"}`, `"exit_code":0`)
}
