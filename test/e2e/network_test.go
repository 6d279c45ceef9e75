package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// serveFile starts a web server on the loopback address of a sandbox, which serves one file with the given text.
func (h *hub) serveFile(t *testing.T, name, port, text string) {
	t.Helper()
	h.must(t, "exec", name, "--", "sh", "-c", "mkdir -p site && cd site && echo "+text+" > f && "+
		"(setsid python3 -m http.server "+port+" --bind 127.0.0.1 > log 2>&1 &) && "+
		"curl -s --noproxy '*' --retry 100 --retry-all-errors --retry-delay 1 --fail http://127.0.0.1:"+port+"/f")
}

// fetch is a command that prints what a URL returns and then the exit code, without the variables of the proxy if direct.
func fetch(direct bool, url string, more ...string) []string {
	args := append([]string{"curl", "-s", "-S", "--max-time", "120", url}, more...)
	if direct {
		args = append([]string{"env", "-i", "PATH=/usr/bin:/bin"}, args...)
	}
	return []string{"sh", "-c", `"$@" 2>&1; echo " code $?"`, "-", strings.Join(args, "\x00")}
}

// inside runs a command of fetch.
func (h *hub) inside(t *testing.T, name string, cmd []string) string {
	t.Helper()
	args := append([]string{"exec", name, "--"}, cmd[:len(cmd)-1]...)
	out, errs, _ := h.cove(t, "", append(args, strings.Split(cmd[len(cmd)-1], "\x00")...)...)
	return out + errs
}

// TestPrivateNetworkOfPrograms: programs in sandboxes of one owner reach each other's services by name, with the proxy and without it,
// and never each other's own ports. Another owner sees no such host. It stays after a restart of the hub, and ends with the
// membership.
func TestPrivateNetworkOfPrograms(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "curl", "python3")
	admin := tenants(t, nil)
	ann, bob := admin.tenant(t, "ann", "user"), admin.tenant(t, "bob", "user")
	ann.must(t, "network", "create", "team")
	bob.must(t, "network", "create", "team")
	const none = `{"mode":"none"}`
	ann.must(t, "create", "a", "--join", "team", "--network", none)
	ann.must(t, "create", "db", "--join", "team", "--network", none)
	bob.must(t, "create", "spy", "--join", "team", "--network", none)
	ann.serveFile(t, "db", "5432", "ours")
	const url = "http://db:5432/f"
	for _, direct := range []bool{false, true} {
		for _, host := range []string{"db", "db.team.internal"} {
			if out := ann.inside(t, "a", fetch(direct, "http://"+host+":5432/f")); !strings.Contains(out, "ours\n code 0") {
				t.Errorf("%s, direct %v: got %q, want the file", host, direct, out)
			}
		}
		if out := ann.inside(t, "a", fetch(direct, "http://db:1/")); !direct && !strings.Contains(out, "port 1 of sandbox") ||
			direct && !strings.Contains(out, "code 7") {
			t.Errorf("a port without a service, direct %v: got %q, want it refused", direct, out)
		}
		if out := bob.inside(t, "spy", fetch(direct, url)); strings.Contains(out, "ours") || direct && !strings.Contains(out, "code 6") {
			t.Errorf("another owner, direct %v: got %q, want no such host", direct, out)
		}
	}
	if out := ann.inside(t, "a", fetch(false, url, "-x", "socks5h://127.0.0.1:8118")); !strings.Contains(out, "ours\n code 0") {
		t.Errorf("over SOCKS: got %q, want the file", out)
	}
	// The server trusts programs inside, and its proxy connects to what the sandbox may reach.
	for _, own := range []string{"8080/v1/sandbox", "8118/diagnose"} {
		for _, direct := range []bool{false, true} {
			out := ann.inside(t, "a", fetch(direct, "http://db:"+own, "-H", "Host: localhost:8080"))
			if direct && !strings.Contains(out, "code 7") || !direct && !strings.Contains(out, "reserved for its server") {
				t.Errorf("db:%s, direct %v: got %q, want it refused", own, direct, out)
			}
		}
	}

	admin.stop(t)
	admin.start(t, "--tenants")
	t.Cleanup(func() { admin.clear(t); admin.stop(t) })
	ann.server, ann.env = admin.server, []string{"COVE_URL=" + admin.URL, "COVE_API_KEY=" + ann.key}
	for _, direct := range []bool{false, true} {
		if out := ann.inside(t, "a", fetch(direct, url)); !strings.Contains(out, "ours\n code 0") {
			t.Errorf("after a restart, direct %v: got %q, want the file", direct, out)
		}
	}
	ann.must(t, "network", "leave", "team", "db")
	if out := ann.inside(t, "a", fetch(true, url)); !strings.Contains(out, "code 6") {
		t.Errorf("after db has left: got %q, want no such host", out)
	}
}

// TestDatabaseInAPrivateNetwork: psql in one sandbox uses a database in another, which listens on its loopback address only.
func TestDatabaseInAPrivateNetwork(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "psql")
	testenv.NeedFile(t, "/usr/lib/postgresql")
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatalf("got %v, want a PostgreSQL server", err)
	}
	h := serveHub(t)
	h.must(t, "network", "create", "team")
	for _, name := range []string{"a", "db"} {
		h.must(t, "create", name, "--join", "team", "--network", `{"mode":"none"}`)
	}
	h.must(t, "exec", "db", "--", "sh", "-c", "id -u; "+found[0]+"/initdb -D $HOME/data -A trust -U app > init.log && "+
		found[0]+"/pg_ctl -D $HOME/data -w -o '-k /tmp -h 127.0.0.1' -l log start")
	out := h.must(t, "exec", "a", "--", "env", "-i", "psql", "-h", "db", "-U", "app", "-d", "postgres", "-Atc",
		"create table t as select generate_series(1,1000) n; select sum(n) from t")
	if !strings.Contains(out, "500500") {
		t.Errorf("got %q, want 500500", out)
	}
}
