package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// eachHub runs a test with a hub that runs as root and with a rootless hub.
func eachHub(t *testing.T, story func(t *testing.T, h *hub), args ...string) {
	t.Parallel()
	for name, serve := range map[string]func(*testing.T, ...string) *hub{"root": serveHub, "rootless": serveRootless} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(t, serve(t, args...))
		})
	}
}

// check is a command and its expected output, a pattern in which … matches any text.
type check struct{ command, want string }

// verify runs commands in a sandbox.
func (h *hub) verify(t *testing.T, name string, checks ...check) {
	t.Helper()
	for _, c := range checks {
		out, errs, code := h.cove(t, "", "exec", name, "--", c.command)
		if code != 0 || !matches(out, c.want) {
			t.Errorf("%s: got code %d, output %q and errors %q, want %q", c.command, code, out, errs, c.want)
		}
	}
}

// matches compares a text with a pattern.
func matches(text, pattern string) bool {
	parts := strings.Split(pattern, "…")
	text, ok := strings.CutPrefix(strings.TrimSpace(text), parts[0])
	for _, p := range parts[1:] {
		var at int
		if at = strings.Index(text, p); !ok || at < 0 {
			return false
		}
		text = text[at+len(p):]
	}
	return ok && (text == "" || strings.HasSuffix(pattern, "…"))
}

// Programs see the sandbox as a separate computer.
func TestInsideWorksAsOutside(t *testing.T) {
	eachHub(t, func(t *testing.T, h *hub) {
		h.must(t, "create", "alpha")
		h.verify(t, "alpha",
			check{"hostname; cat /etc/hostname; getent hosts alpha | cut -d' ' -f1", "alpha\nalpha\n127.0.0.1"},
			check{"command -v aio; bash -lc 'command -v aio'; env -i bash -c 'command -v aio'", "/run/bin/aio\n/run/bin/aio\n/usr/local/bin/aio"},
			check{"aio bash exec --command 'echo from inside'", "…from inside…"},
			check{"curl -sf http://127.0.0.1:8080/v1/bash/exec -d '{\"command\":\"id -un\"}'", "…gem…"},
			check{"curl -sf http://localhost:8080/readyz -o /dev/null && echo ready", "ready"},
			check{"test -r ~/.bashrc && test -d ~/workspace && touch ~/workspace/x && echo there", "there"},
			check{"env -u AIO_API_URL aio sandbox info >/dev/null && echo found", "found"},
			check{"test $(($(date +%s) - $(date -d \"$(ps -o lstart= -p $$)\" +%s))) -lt 600 && echo started just now", "started just now"},
			check{"git init -q r && cd r && git commit -q --allow-empty -m first && git log -1 --format='%an " +
				"<%ae> %D'", "gem <gem@localhost> HEAD -> main"},
			check{"test -s \"$SSL_CERT_FILE\" && test \"$SSL_CERT_FILE\" = \"$NODE_EXTRA_CA_CERTS\" && test " +
				"\"$SSL_CERT_FILE\" = \"$REQUESTS_CA_BUNDLE\" && echo trusted as on the host", "trusted as on the host"},
			check{"TZ=EST5 date -d @0 +%H; docker ps 2>&1 | head -n 1 | wc -l; mount -t tmpfs x /mnt 2>&1 | head -n 1",
				"19\n1\nmount: /mnt: must be superuser to use mount."},
			// The browser also runs inside: pages must not have access.
			check{"curl -s -o /dev/null -w '%{http_code}' -H 'Host: rebound.example' http://127.0.0.1:8080/v1/sandbox", "403"},
			check{"curl -s -o /dev/null -w '%{http_code}' -H 'Origin: https://page.example' " +
				"http://127.0.0.1:8080/v1/bash/exec -d '{\"command\":\"id\"}'", "403"},
			check{"curl -s -o /dev/null -w '%{http_code}' -H 'Sec-Fetch-Site: cross-site' -H 'Sec-Fetch-Mode: " +
				"no-cors' http://127.0.0.1:8080/v1/bash/exec -d '{\"command\":\"id\"}'", "403"},
			check{"curl -s -o /dev/null -w '%{http_code}' http://8080-alpha.localhost:8080/v1/sandbox --resolve " +
				"8080-alpha.localhost:8080:127.0.0.1", "403"},
		)
		// Requests from outside arrive through the hub's own listener.
		if status, body := h.get(t, "/sandbox/alpha/proxy/8080/v1/sandbox"); status < 400 {
			t.Errorf("port 8080 through the hub: got %d %s, want a refusal", status, body)
		}
	})
}

// Commands, terminals, kernels and relative paths start in the working directory.
func TestWorkdirIsWhereThingsStart(t *testing.T) {
	eachHub(t, func(t *testing.T, h *hub) {
		h.must(t, "create", "alpha", "--workdir", "/home/gem/project")
		h.verify(t, "alpha",
			check{"pwd", "/home/gem/project"},
			check{"aio shell exec --command pwd", "…/home/gem/project…"},
			check{"aio file write --file relative --content x >/dev/null; cat /home/gem/project/relative", "x"},
			check{"aio code execute --language python --code 'import os; print(os.getcwd())'", "…/home/gem/project…"},
			check{"aio code execute --language javascript --code 'console.log(process.cwd())'", "…/home/gem/project…"},
		)
	})
}

// Python code runs in the first sandbox, and its packages can be replaced.
func TestPythonOutOfTheBox(t *testing.T) {
	eachHub(t, func(t *testing.T, h *hub) {
		h.must(t, "create", "alpha")
		h.verify(t, "alpha",
			check{"aio code execute --language python --code 'import pandas; print(6 * 7)'", "…42…"},
			check{"python -c 'import numpy, sys; print(sys.prefix)'", "/usr"},
			check{"ls /usr/lib/python3*/EXTERNALLY-MANAGED 2>/dev/null | wc -l", "0"},
		)
	})
}

// The sandbox's user can become root in the sandbox, and sudo behaves as usual.
func TestSudo(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "alpha")
	h.verify(t, "alpha",
		check{"id -un; sudo id -u; sudo -n whoami; sudo -- id -un", "gem\n0\nroot\nroot"},
		check{"sudo -u daemon id -un; sudo -u '#1' id -un; sudo -g tty id -gn; sudo --user=daemon id -un; sudo " +
			"-udaemon id -un", "daemon\ndaemon\ntty\ndaemon\ndaemon"},
		check{"sudo sh -c 'exit 7'; echo $?; sudo sh -c 'kill -TERM $$'; echo $?; sudo no-such-command 2>&1; echo " +
			"$?; sudo -u nobody-here id 2>&1 || true", "7\n143\nsudo: no-such-command: command not found\n1\nsudo: unknown user nobody-here…"},
		check{"echo through | sudo cat; cd /tmp && sudo pwd; sudo -D /usr pwd; (umask 077; sudo sh -c umask)", "through\n/tmp\n/usr\n0077"},
		check{"sudo sh -c 'echo $HOME $USER $LOGNAME $SUDO_USER $SUDO_UID $SUDO_GID'", "/root root root gem 1000 1000"},
		check{"A=1 sudo sh -c 'echo ${A-none}'; A=1 sudo -E sh -c 'echo $A'; A=1 sudo --preserve-env=A sh -c 'echo " +
			"$A'; sudo A=2 sh -c 'echo $A'; sudo -H -E sh -c 'echo $HOME'", "none\n1\n1\n2\n/root"},
		check{"sudo -i sh -c 'pwd; echo $HOME'; sudo -i pwd; sudo -s 'echo' 'a  b' '$HOME'; sudo -k; sudo -v && " +
			"echo valid; sudo -l | tail -n 1", "/root\n/root\n/root\na  b /root\nvalid\n    (ALL : ALL) NOPASSWD: ALL"},
		check{"sudo sh -c 'test -n \"$http_proxy\" && echo proxied'; sudo -b sh -c 'echo behind > /tmp/b'; while ! " +
			"[ -s /tmp/b ]; do sleep 0.01; done; cat /tmp/b", "proxied\nbehind"},
		check{"sudo sudo id -u; sudo -u daemon sudo id 2>&1 || true", "0\nsudo: user 1 may not run sudo…"},
		check{"sudo touch /etc/made /usr/made /root/made /opt/made && sudo chown gem /usr/made && stat -c %U " +
			"/usr/made && sudo rm /usr/made && ls /usr/made 2>&1 || true", "gem\n…No such file…"},
		check{"sudo sh -c 'echo content > /etc/secret; chmod 600 /etc/secret'; aio file read --file /etc/secret " +
			"--sudo; aio file write --file /etc/secret --content other --sudo >/dev/null; sudo cat /etc/secret", "…content…other"},
		check{"script -qec 'sudo sh -c \"test -t 0 && tty\"' /dev/null", "/dev/pts/…"},
		// Processes that a sudo command started end with the command, within its timeout.
		check{"aio bash exec --command 'sudo sleep 987; true' --hard-timeout 1 >/dev/null; while pgrep -xu root " +
			"sleep >/dev/null; do sleep 0.05; done; echo ended", "ended"},
	)
}

// If root in the sandbox is not available, the error has the reason and advice.
func TestSudoIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "environments.json")
	if err := os.WriteFile(file, []byte(`[{"name":"plain","image":"","description":"no root","sudo":false}]`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		hub        *hub
		args       []string
	}{
		{"rootless", "run the hub as root", serveRootless(t), nil},
		{"forbidden", `whose "sudo" is not false`, serveHub(t, "--environments", file), []string{"--environment", "plain"}},
	} {
		c.hub.must(t, append([]string{"create", "alpha"}, c.args...)...)
		if _, errs, code := c.hub.cove(t, "", "exec", "alpha", "--", "sudo id"); code != 1 || !strings.Contains(errs, c.want) {
			t.Errorf("%s: got code %d and errors %q, want code 1 and %q", c.name, code, errs, c.want)
		}
		c.hub.verify(t, "alpha", check{"grep NoNewPrivs /proc/self/status; find / -xdev -perm -4000 -newer /proc/1 " +
			"2>/dev/null | wc -l", "NoNewPrivs:\t1\n0"})
		if status, body := c.hub.post(t, "/sandbox/alpha/v1/file/read",
			`{"file":"/etc/shadow","sudo":true}`); !strings.Contains(body, "permission_denied") ||
			!strings.Contains(strings.ReplaceAll(body, `\"`, `"`), c.want) {
			t.Errorf("%s: reading as root: got %d %s, want %q", c.name, status, body, c.want)
		}
	}
}

// A stopped sandbox keeps its disk. The hub refuses operations that would lose its processes.
func TestPausedOrStoppedNothingIsLost(t *testing.T) {
	t.Parallel()
	h := serveHub(t)
	h.must(t, "create", "alpha")
	h.verify(t, "alpha", check{"echo kept > note; sudo sh -c 'echo too > /etc/note'; (sleep 1000 >/dev/null 2>&1 " +
		"&) ; until pgrep -x sleep >/dev/null; do :; done; pgrep -c sleep", "1"})
	if _, errs, code := h.cove(t, "", "pause", "alpha", "--to-disk"); code == 0 ||
		!strings.Contains(errs, "gvisor") && !strings.Contains(errs, "gVisor") {
		t.Errorf("pause to disk: got code %d and %q, want a refusal that names the requirements", code, errs)
	}
	h.verify(t, "alpha", check{"pgrep -c sleep", "1"})
	if out := h.must(t, "info"); !strings.Contains(out, "pause_to_disk") {
		t.Errorf("info: got %q, want it to say whether sandboxes can be paused to disk", out)
	}
	h.must(t, "pause", "alpha")
	h.verify(t, "alpha", check{"pgrep -c sleep", "1"})
	h.must(t, "stop", "alpha")
	h.verify(t, "alpha", check{"cat note /etc/note; pgrep -c sleep || true", "kept\ntoo\n0"})
}

// A sandbox with its own kernel works like the others and allows root. If the hub is killed while
// the sandbox is paused to disk, the next request resumes it with all its processes.
func TestPausedToDiskNothingIsLostGVisor(t *testing.T) {
	t.Parallel()
	runsc := testenv.GVisor(t)
	h := serveHub(t, "--runsc", runsc)
	h.must(t, "create", "alpha", "--isolation", "gvisor")
	h.verify(t, "alpha",
		check{"hostname; id -un; sudo id -un; sudo sh -c 'echo root was here > /etc/note'; stat -c %U /etc/note; " +
			"curl -sf http://127.0.0.1:8080/readyz -o /dev/null && echo ready", "alpha\ngem\nroot\nroot\nready"},
		// Web pages cannot use the hub's own listener.
		check{"curl -s -m 30 http://127.0.0.1:61080/v1/sandbox || echo refused", "refused"},
		check{"(python3 -m http.server 3000 >/dev/null 2>&1 &) ; (sleep 1000 >/dev/null 2>&1 &) ; (exec 7> ~/open; " +
			"unlink ~/open; while :; do echo more >&7; sleep 0.1; done) >/dev/null 2>&1 & curl -sf --retry 100 " +
			"--retry-connrefused --retry-delay 0 localhost:3000 -o /dev/null; pgrep -xc sleep >/dev/null && echo goes on", "goes on"},
	)
	call := func(path, body, want string) {
		t.Helper()
		if status, got := h.post(t, "/sandbox/alpha"+path, body); status != 200 || !strings.Contains(got, want) {
			t.Errorf("%s %s: got %d %s, want %q", path, body, status, got, want)
		}
	}
	call("/v1/jupyter/execute", `{"session_id":"k","code":"answer = 42"}`, `"ok"`)
	call("/v1/shell/exec", `{"id":"t","command":"cd /tmp && export WORD=kept"}`, `"completed"`)
	h.must(t, "pause", "alpha", "--to-disk")
	var alpha struct {
		ID      string `json:"id"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal([]byte(h.must(t, "get", "alpha")), &alpha); err != nil ||
		alpha.Message != "paused to disk" || h.groups()[alpha.ID] {
		t.Errorf("a sandbox on disk: got %+v, %v, and a control group: %v; want the message \"paused to disk\" "+
			"and no group", alpha, err, h.groups()[alpha.ID])
	}
	h.cmd.Process.Kill()
	<-h.done
	h.start(t, "--runsc", runsc)
	call("/v1/jupyter/execute", `{"session_id":"k","code":"print(answer)"}`, `42`)
	call("/v1/shell/exec", `{"id":"t","command":"pwd; echo $WORD"}`, `/tmp\nkept`)
	if status, _ := h.get(t, "/sandbox/alpha/proxy/3000/"); status != 200 {
		t.Errorf("the server that was running: got %d, want 200", status)
	}
	h.verify(t, "alpha", check{"cat /etc/note; pgrep -f 'sleep 1000' >/dev/null && echo goes on", "root was here\ngoes on"})
}
