package isolate_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// testPrograms: the programs of agents work with the filter and the limits.
func testPrograms(t *testing.T) {
	for name, c := range map[string]struct{ need, command, want string }{
		"terminal":        {"python3", `python3 -c 'import pty, os; m, s = pty.openpty(); print(os.ttyname(s))'`, "/dev/pts/0\n"},
		"multiprocessing": {"python3", `python3 -c 'import multiprocessing as m; p = m.Pool(2); print(sum(p.map(abs, range(5))))'`, "10\n"},
		"node": {"node", `node -e 'const {Worker} = require("worker_threads"); new ` +
			`Worker("require(\"worker_threads\").parentPort.postMessage(6*7)", {eval: true}).on("message", console.log)'`, "42\n"},
		"git": {"git", `git init -q r && cd r && git -c user.name=a -c user.email=b commit -q ` +
			`--allow-empty -m x && git log --oneline | wc -l`, "1\n"},
		"compiler": {"gcc", `printf 'int main(){return 7;}' > a.c && gcc a.c -o a && ./a; echo $?`, "7\n"},
		"loopback": {"python3",
			`python3 -c 'import socket; s = socket.create_server(("localhost", 80)); c = ` +
				`socket.create_connection(("localhost", 80)); print("ok")'`, "ok\n"},
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Need(t, c.need)
			out, exit := newBox(t).run(isolate.Limits{Memory: 1 << 30, Pids: 256}, "sh", "-c", c.command)
			if out != c.want || exit.Code != 0 {
				t.Errorf("%v: got %q, want %q", exit, out, c.want)
			}
		})
	}
}

// testChromium: Chromium works, as an ordinary user, with its own sandbox.
func testChromium(t *testing.T) {
	testenv.Need(t, "chromium")
	b := newBox(t)
	b.cfg.ShmSize = 256 << 20
	limits := isolate.Limits{Memory: 2 << 30, Pids: 512}
	args := []string{"chromium", "--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking",
		"--user-data-dir=/home/gem/chromium"}
	out, exit := b.run(limits, append(args, "--dump-dom", "data:text/html,<p>one</p><script>document.body.append(6*7)</script>")...)
	if exit.Code != 0 || !strings.Contains(out, "<p>one</p>") || !strings.Contains(out, "42</body>") {
		t.Fatalf("%v: %s", exit, out)
	}
	h, err := b.start(t.Context(), limits, append(args, "--remote-debugging-port=9222", "about:blank")...)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", h.Record().PID))
	if err != nil {
		t.Fatal(err)
	}
	// A page's process lives in a user namespace of Chromium and has
	// Chromium's filter in addition to the two of the sandbox.
	if !testenv.Eventually(func() bool {
		pids, _ := b.cfg.Group.Procs()
		return slices.ContainsFunc(pids, func(pid int) bool {
			cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			ns, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid))
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, filters, _ := strings.Cut(string(status), "Seccomp_filters:\t")
			return strings.Contains(string(cmd), "--type=renderer") && ns != "" && ns != ours && filters >= "3"
		})
	}) {
		t.Errorf("no page is in Chromium's own sandbox: %s", b.log())
	}
}
