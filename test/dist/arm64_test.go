package dist

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// emulator runs programs for arm64 on other machines; scripts/deps unpacks it.
const emulator = "../../.tools/qemu/usr/bin/qemu-aarch64-static"

// The arm64 programs start and serve. The programs that they start are native.
func TestArm64ProgramsServe(t *testing.T) {
	t.Parallel()
	testenv.Engine(t)
	run := []string{}
	if runtime.GOARCH != "arm64" {
		run = []string{testenv.NeedFile(t, emulator)}
	}
	dir, home := t.TempDir(), t.TempDir()
	// The settings of make check, so that its compiled packages are reused.
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
	for attempt := 1; ; attempt++ {
		err := serve(t, start, home)
		if errors.Is(err, errFork) && attempt < 6 {
			t.Log(err)
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
}

// errFork reports that the emulator hangs, not the program. Up to version 7.2, the emulator forks while
// other threads hold its locks. No thread releases them in the child process: about one in ten of our
// servers cannot start a program.
var errFork = errors.New("the emulator hangs in a process that it has copied")

// serve runs a server and sends requests to it.
func serve(t *testing.T, start func(name string, args ...string) *exec.Cmd, home string) (err error) {
	socket := filepath.Join(home, "aio.sock")
	var log bytes.Buffer
	server := start("aio", "serve", "--listen", "unix:"+socket)
	server.Stdout, server.Stderr = &log, &log
	server.WaitDelay = time.Second
	if err := server.Start(); err != nil {
		return err
	}
	defer func() {
		if stuck := copies(server); err != nil && len(stuck) > 0 {
			for _, pid := range append(stuck, server.Process.Pid) {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			server.Wait()
			err = fmt.Errorf("%w: %w", errFork, err)
			return
		}
		if err == nil && !t.Failed() {
			server.Process.Signal(os.Interrupt)
			late := time.AfterFunc(time.Minute, func() { server.Process.Kill() })
			defer late.Stop()
		} else {
			server.Process.Kill()
		}
		if end := server.Wait(); err != nil || end != nil {
			err = fmt.Errorf("%v; aio serve: %v: %s", err, end, &log)
		}
	}()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	testenv.Poll(t, "the server is ready", func() bool {
		resp, err := client.Get("http://aio/readyz")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	file := filepath.Join(home, "file.txt")
	for _, call := range []struct{ path, body, want string }{
		{"/v1/file/write", `{"file": "` + file + `", "content": "kept"}`, `"bytes_written":4`},
		{"/v1/file/read", `{"file": "` + file + `"}`, `"content":"kept"`},
		{"/v1/bash/exec", `{"command": "echo $((6 * 7))"}`, `"stdout":"42\n"`},
		{"/v1/shell/exec", `{"command": "echo in a terminal"}`, `"exit_code":0`},
	} {
		resp, err := client.Post("http://aio"+call.path, "application/json", strings.NewReader(call.body))
		if err != nil {
			return err
		}
		out, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !bytes.Contains(out, []byte(call.want)) {
			return fmt.Errorf("%s: got %s, %v, %s, want %s", call.path, resp.Status, err, out, call.want)
		}
	}
	return nil
}

// copies returns the child processes of the server that still run the emulator.
func copies(server *exec.Cmd) (pids []int) {
	own := fmt.Sprintf("/proc/%d", server.Process.Pid)
	program, err := os.Readlink(own + "/exe")
	if err != nil || runtime.GOARCH == "arm64" {
		return nil
	}
	lists, _ := filepath.Glob(own + "/task/*/children")
	for _, path := range lists {
		list, _ := os.ReadFile(path)
		for _, word := range strings.Fields(string(list)) {
			pid, err := strconv.Atoi(word)
			if now, _ := os.Readlink("/proc/" + word + "/exe"); err == nil && now == program {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}
