package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// After the loss of a machine, a restore on another machine recovers the complete backup: sandboxes
// with all their files, snapshots, templates, volumes, keys, secrets and the audit log.
func TestBackupAndRestore(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir()}
	h.beginOwn(t, "--tenants")
	h.must(t, "create", "a")
	h.verify(t, "a", check{`mkdir d; echo kept > d/f; ln d/f hard; ln -s d/f soft; chmod 640 d/f
		truncate -s 1T sparse; echo end | dd of=sparse bs=1 seek=500G conv=notrunc status=none
		sudo rm /etc/debian_version; sudo chown 1234:5678 soft -h; mkfifo pipe
		setfattr -n user.colour=x -v blue d/f 2>/dev/null ||
			python3 -c 'import os; os.setxattr("d/f", "user.colour=x", b"blue")'
		touch -d 2001-02-03 d; echo first > stage`, ""})
	h.must(t, "snapshot", "create", "a", "good")
	h.verify(t, "a", check{"echo second > stage", ""})
	h.must(t, "volume", "create", "data")
	h.must(t, "create", "b", "--volumes", `[{"name":"data","target":"/data"}]`)
	h.verify(t, "b", check{"echo shared > /data/v", ""})
	if _, errs, code := h.cove(t, "s3cret", "secret", "set", "TOKEN"); code != 0 {
		t.Fatalf("secret set: got code %d and %s, want 0", code, errs)
	}
	ann := h.addKey(t, "ann")
	h.must(t, "template", "build", "tools", "--wait", "--steps", `[{"kind":"run","command":"echo built > /built"}]`)

	file := filepath.Join(t.TempDir(), "cove.backup")
	h.must(t, "backup", file)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 || info.Size() > 100<<20 {
		t.Fatalf("got backup %+v and error %v, want a file of mode 0600 without the holes", info, err)
	}
	h.verify(t, "a", check{"cat stage", "second"}) // the hub still works

	elsewhere := filepath.Join(t.TempDir(), "state")
	h.refuseRestores(t, file, elsewhere)

	// The machine and all its data are lost.
	h.must(t, "rm", "--all", "--yes")
	h.cmd.Process.Signal(syscall.SIGKILL)
	<-h.done
	for _, mounted := range []string{"disk", "programs", "sockets"} {
		syscall.Unmount(filepath.Join(h.State, mounted), syscall.MNT_DETACH) // as the next hub does
	}

	next := &hub{State: elsewhere}
	out := next.must(t, "restore", file, "--state", elsewhere)
	if !strings.Contains(out, "restored 2 sandboxes, 2 snapshots and 1 volumes") {
		t.Errorf("got %q, want the number of restored objects, including the layer of a template", out)
	}
	next.beginOwn(t, "--tenants")
	if out := next.must(t, "list", "-q"); out != "a\nb\n" && out != "b\na\n" {
		t.Errorf("got sandboxes %q, want a and b", out)
	}
	for _, c := range []check{
		{"cat stage d/f hard soft", "second\nkept\nkept\nkept"},
		{"stat -c '%a %h %U' d/f; stat -c '%u:%g' soft; stat -c %F pipe; date -r d +%F", "640 2 gem\n1234:5678\nfifo\n2001-02-03"},
		{"stat -c %s sparse; du -k sparse | cut -f1 | grep -cE '^[0-9]{1,3}$'; dd if=sparse bs=1 skip=500G count=3 " +
			"status=none", "1099511627776\n1\nend"},
		{"ls /etc/debian_version 2>/dev/null || echo gone", "gone"},
		{`python3 -c 'import os; print(os.getxattr("d/f", "user.colour=x").decode())'`, "blue"},
		{"sudo whoami", "root"},
	} {
		next.verify(t, "a", c)
	}
	next.verify(t, "b", check{"cat /data/v", "shared"})
	next.must(t, "create", "c", "--from-snapshot", "good", "--secrets", "TOKEN")
	next.verify(t, "c", check{"cat stage; echo $TOKEN", "first\ns3cret"})
	next.must(t, "create", "d", "--environment", "tools")
	next.verify(t, "d", check{"cat /built", "built"})
	next.must(t, "rollback", "a", "good")
	next.verify(t, "a", check{"cat stage", "first"})
	if out := next.must(t, "audit", "verify"); strings.Contains(out, "problem") && !strings.Contains(out, `"problem": null`) {
		t.Errorf("got %s, want a valid log", out)
	}
	if out := next.must(t, "audit", "tail", "--lines", "100"); !strings.Contains(out, "sandbox_create") {
		t.Errorf("got %s, want the log of the lost machine", out)
	}
	if _, errs, code := next.cove(t, ann, "login", next.URL); code != 0 {
		t.Errorf("sign in with a key from the backup: got code %d and %s, want 0", code, errs)
	}
}

// refuseRestores checks that restore fails over a running hub and for damaged backups.
func (h *hub) refuseRestores(t *testing.T, file, elsewhere string) {
	t.Helper()
	if _, errs, code := h.cove(t, "", "restore", file, "--state", h.State); code == 0 || !strings.Contains(errs, "in use") {
		t.Errorf("restore over a running hub: got code %d and %q, want an error", code, errs)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{len(whole) - 100, len(whole) - 3000, len(whole) / 2, 1000} {
		if _, errs, code := h.cove(t, string(whole[:size]), "restore", "-", "--state", elsewhere); code != 2 ||
			!strings.Contains(errs, "damaged or truncated") {
			t.Errorf("restore of %d of %d bytes: got code %d and %q, want 2 and the reason", size, len(whole), code, errs)
		}
	}
	for _, at := range []int{len(whole) / 4, len(whole) / 2, len(whole) * 3 / 4, len(whole) - 1} {
		whole[at] ^= 1
		if _, errs, code := h.cove(t, string(whole), "restore", "-", "--state", elsewhere); code != 2 ||
			!strings.Contains(errs, "damaged or truncated") {
			t.Errorf("restore with a changed bit in byte %d: got code %d and %q, want 2 and the reason", at, code, errs)
		}
		whole[at] ^= 1
	}
}

// beginOwn starts a hub that its command line finds through the state folder.
func (h *hub) beginOwn(t *testing.T, args ...string) {
	t.Helper()
	h.begin(t, args...)
	h.env = []string{"COVE_STATE=" + h.State}
	key, err := os.ReadFile(filepath.Join(h.State, "admin.key"))
	if err != nil {
		t.Fatal(err)
	}
	h.key = strings.TrimSpace(string(key))
}

// addKey creates a key and returns its secret.
func (h *hub) addKey(t *testing.T, tenant string) string {
	t.Helper()
	_, secret, _ := strings.Cut(h.must(t, "key", "add", tenant, "-o", "json"), `"secret": "`)
	secret, _, _ = strings.Cut(secret, `"`)
	return secret
}
