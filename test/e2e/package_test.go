package e2e

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Package managers work for the sandbox's user without flags, and install to the sandbox's disk.
func TestUsersPackageManagers(t *testing.T) {
	t.Parallel()
	checkPackageManagers(t, serveHub(t, "--private-networks", "127.0.0.1/32"))
}

func TestUsersPackageManagersWithoutRoot(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	checkPackageManagers(t, serveRootless(t, "--private-networks", "127.0.0.1/32"))
}

func checkPackageManagers(t *testing.T, h *hub) {
	with := registries(t)
	h.must(t, "create", "alpha")
	for _, c := range []check{
		{"pip install -q covepkg && covepy && python3 -c 'import covepkg; print(covepkg.__file__)'", "python runs\n/…/lib/python3…"},
		{"pip uninstall -qy covepkg; pip install -q --user covepkg && covepy; python3 -m pip uninstall -qy covepkg", "python runs"},
		{"npm install -g --silent covepkg >/dev/null && covenpm && command -v covenpm", "node runs\n/home/gem/.local/bin/covenpm"},
		{"mkdir -p ~/n && cd ~/n && npm init -y >/dev/null && npm install --silent covepkg >/dev/null && " +
			"./node_modules/.bin/covenpm", "node runs"},
		{"mkdir -p ~/u && cd ~/u && uv venv -q && uv pip install -q covepkg && .venv/bin/covepy", "python runs"},
		{"uv tool install -q covepkg && covepy && uv tool uninstall -q covepkg", "python runs"},
		{"pipx install -q covepkg >/dev/null && covepy && pipx uninstall covepkg >/dev/null", "python runs"},
		{"python3 -m venv ~/v && ~/v/bin/pip install -q covepkg && ~/v/bin/covepy", "python runs"},
	} {
		h.verify(t, "alpha", check{with + c.command, c.want})
	}
	// A running kernel can import packages that are installed later.
	h.verify(t, "alpha",
		check{"aio code execute --language python --code 'print(1)' >/dev/null; " + with + "pip install -q covepkg", ""},
		check{"aio code execute --language python --code 'import covepkg; covepkg.main()'", "…python runs…"})
}

// Root in the sandbox can install Debian packages with daemons and scripts. The host does not change.
func TestAptInstall(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	h := serveHub(t, "--private-networks", "127.0.0.1/32")
	with := registries(t)
	before := hostState(t)
	h.must(t, "create", "alpha")
	with += `echo "deb [trusted=yes] $REPOSITORY ./" > /tmp/test.list; apt="sudo apt-get -q -y -o ` +
		`Dir::Etc::SourceList=/tmp/test.list -o Dir::Etc::SourceParts=- -o Acquire::Retries=0"; `
	for _, c := range []check{
		{"dpkg -l >/dev/null && apt-cache policy | head -n 1", "Package files:"},
		{"$apt update >/dev/null && $apt install cove-script >/dev/null && cove-script && cove-tool && dpkg -s " +
			"cove-script | grep ^Status", "script runs\nscript runs\nStatus: install ok installed"},
		{"cat /var/log/cove-script; stat -c '%U %a' /usr/bin/cove-script; cat /etc/cove-script.conf; id -u " +
			"cove-daemon >/dev/null && echo user", "preinst install\npostinst configure\ndaemon 4755\nx\nuser"},
		// As in a container, installation does not start the daemon; the user starts it.
		{"pgrep -f '[/]usr/sbin/cove-daemon' || echo off; sudo service cove-daemon start; while ! curl -s " +
			"localhost:7070 --noproxy '*' >/dev/null; do sleep 0.05; done; ps -o user= -p $(cat " +
			"/run/cove-daemon.pid); sudo service cove-daemon stop", "off\ncove-da…"},
		{"$apt remove cove-script >/dev/null; command -v cove-tool || echo gone; $apt purge cove-daemon " +
			">/dev/null; dpkg -s cove-daemon 2>&1 | tail -n 1 >/dev/null; $apt install cove-daemon >/dev/null && echo again", "gone\nagain"},
		{"sudo -EH pip install -q covepkg && covepy && command -v covepy; sudo -EH env -u NPM_CONFIG_PREFIX npm " +
			"install -g --silent covepkg >/dev/null && covenpm", "python runs\n/usr/local/bin/covepy\nnode runs"},
	} {
		h.verify(t, "alpha", check{with + c.command, c.want})
	}
	// The package is on the sandbox's disk and survives a stop.
	h.must(t, "stop", "alpha")
	h.verify(t, "alpha", check{"dpkg -s cove-daemon | grep ^Status; covepy", "Status: install ok installed\npython runs"})
	if after := hostState(t); after != before {
		t.Errorf("the host has changed: got state %s, want %s", after, before)
	}
	if _, err := os.Stat("/usr/sbin/cove-daemon"); err == nil {
		t.Error("the package is on the host")
	}
}

// hostState is a digest of everything that packages change: the content of dpkg's and apt's state and of
// /etc, and the names, sizes and times of all programs.
func hostState(t *testing.T) string {
	t.Helper()
	sum := sha256.New()
	for _, root := range []string{"/var/lib/dpkg", "/var/lib/apt", "/etc", "/usr", "/opt"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if e.Name() == "__pycache__" {
				return fs.SkipDir // any Python process on the host may write it
			}
			if strings.HasPrefix(e.Name(), hostSecret) {
				return nil
			}
			info, err := e.Info()
			if err != nil || e.IsDir() {
				return err
			}
			st := info.Sys().(*syscall.Stat_t)
			fmt.Fprintln(sum, path, info.Mode(), info.Size(), st.Mtim, st.Uid, st.Gid)
			if info.Mode().IsRegular() && (strings.HasPrefix(root, "/var") || root == "/etc") {
				content, err := os.ReadFile(path)
				fmt.Fprintf(sum, "%x %v\n", sha256.Sum256(content), err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return fmt.Sprintf("%x", sum.Sum(nil))
}
