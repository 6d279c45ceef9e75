package cluster_test

import (
	"testing"

	"github.com/cove-sandbox/cove/test/cluster"
)

// storeFlags returns the flags of a hub with a snapshot store.
func storeFlags(s *cluster.Store) []string {
	return []string{"--kubernetes-snapshot-endpoint", s.Endpoint, "--kubernetes-snapshot-bucket", s.Bucket,
		"--kubernetes-snapshot-access-key", s.AccessKey, "--kubernetes-snapshot-secret-key", s.SecretKey}
}

// testPodCopies: a sandbox created from a snapshot has all additions, changes and deletions of the original, in the
// home, elsewhere and, with root, in folders of the image. Programs of the original continue to run.
func (h *kubeHub) testPodCopies(t *testing.T, kind podKind) {
	name, copied := kind.create.Name, kind.create
	copied.Name, copied.Snapshot = name+"-copy", "good"
	h.wantOutput(name, `mkdir -p deep/er; echo in >deep/er/file; ln deep/er/file deep/twin; ln -s /etc/passwd away
chmod 000 deep/er/file; echo t >/var/tmp/scratch; touch -d 2001-02-03 aged
(setsid sh -c 'while :; do date +%s%N >beat; sleep 0.01; done' >/dev/null 2>&1 &)`, "")
	if kind.root {
		h.wantOutput(name, `sudo -n sh -c 'rm /etc/issue; echo more >>/etc/hosts.allow; mkdir -p /srv/new; echo s `+
			`>/srv/new/s; chown 33:33 /srv/new/s; chmod 4755 /srv/new/s; rm -r /usr/share/doc/sudo; mv /usr/bin/sha1sum /usr/local/bin/renamed'`, "")
	}
	if _, err := h.Snapshot(t.Context(), name, "good"); err != nil {
		t.Fatal(err)
	}
	h.wantOutput(name, "first=$(cat beat); for i in $(seq 1000); do [ \"$first\" != \"$(cat beat)\" ] && [ -s beat "+
		"] && echo goes on && break; sleep 0.1; done", "goes on\n")
	h.wantOutput(name, "rm -r deep; echo changed >/var/tmp/scratch", "")
	if _, err := h.Create(t.Context(), copied); err != nil {
		t.Fatal(err)
	}
	h.wantOutput(copied.Name, "stat -c '%a %h %U' deep/twin; chmod 600 deep/twin; cat deep/er/file; readlink away; "+
		"cat /var/tmp/scratch; stat -c %y aged | cut -c1-10; ls -A /var/tmp | grep -c scratch", "0 2 gem\nin\n/etc/passwd\nt\n2001-02-03\n1\n")
	if kind.root {
		h.wantOutput(copied.Name, "ls /etc/issue /usr/share/doc/sudo /usr/bin/sha1sum 2>&1 | grep -c 'No such'; "+
			"tail -n 1 /etc/hosts.allow; stat -c '%u:%g %a' /srv/new/s; echo -n | /usr/local/bin/renamed | cut "+
			"-c1-8; sudo -n id -u; ls /usr/bin | wc -l | xargs test 100 -lt && echo all", "3\nmore\n33:33 4755\nda39a3ee\n0\nall\n")
	}
	if err := h.DeleteSnapshot(t.Context(), "good"); err != nil {
		t.Error(err)
	}
	if err := h.Delete(t.Context(), copied.Name); err != nil {
		t.Error(err)
	}
}
