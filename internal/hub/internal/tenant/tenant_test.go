package tenant

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/quota"
)

func TestRoles(t *testing.T) {
	t.Parallel()
	for role, may := range map[Role][]Action{RoleAdmin: {Read, Write, Admin}, RoleUser: {Read, Write},
		RoleViewer: {Read}, "": nil, "root": nil, "Admin": nil} {
		for a := Action(-1); a < 6; a++ {
			want := false
			for _, m := range may {
				want = want || m == a
			}
			if role.May(a) != want {
				t.Errorf("%s may %d: %v", role, a, !want)
			}
		}
	}
}

func TestKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if _, err := os.Stat(filepath.Dir(r.path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("opening created a file: got %v, want fs.ErrNotExist", err)
	}
	if r.knows("") || len(r.List()) != 0 {
		t.Error("got a valid key without a file, want none")
	}
	secret, key, err := r.Add("acme", RoleUser, "Ada's laptop", r.now().Add(time.Hour))
	must(t, err)
	other, second := r.add("globex", RoleAdmin)
	if id, ok := r.Identify(secret); !ok || id != (Identity{"acme", RoleUser, key.ID}) {
		t.Errorf("got %+v %v, want tenant acme, role user and key %s", id, ok, key.ID)
	}
	if id, ok := r.Identify(other); !ok || id != (Identity{"globex", RoleAdmin, second.ID}) {
		t.Errorf("got %+v %v, want tenant globex, role admin and key %s", id, ok, second.ID)
	}
	if len(secret) != 61 || !strings.HasPrefix(secret, "cove_"+key.ID+"_") || strings.Contains(r.text(), secret[18:]) {
		t.Errorf("%s in %s", secret, r.text())
	}
	info, err := os.Stat(r.path)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	// Malformed keys are rejected.
	for _, s := range []string{
		"", "cove_", secret[:60], secret + "0", " " + secret, secret[:len(secret)-1] + "!", strings.ToUpper(secret), key.ID,
		"cove_" + key.ID + "_" + other[18:], "cove_" + second.ID + "_" + secret[18:], "covx" + secret[4:], strings.Replace(secret, "_", "-", 2),
		"cove_aaaaaaaaaaaa_" + secret[18:], "cove_" + key.ID + "_" + strings.Repeat("0", 43), hashOf(secret),
	} {
		if r.knows(s) {
			t.Errorf("%q is accepted", s)
		}
	}
	if d := cmp.Diff([]Key{key, second}, r.List()); d != "" {
		t.Errorf("got %v, want no difference", d)
	}
	// Another process sees the same.
	again := openRig(t, r.path)
	if d := cmp.Diff(r.List(), again.List()); d != "" || !again.knows(secret) {
		t.Errorf("got difference %s, key known %v, want none and a known key", d, again.knows(secret))
	}
	r.advance(time.Hour)
	if r.knows(secret) || !r.knows(other) {
		t.Error("expiry")
	}
	must(t, r.Revoke(second.ID))
	must(t, r.Revoke(second.ID))
	if r.knows(other) {
		t.Error("a revoked key is accepted")
	}
	if _, ok := r.Recall(second.ID); ok {
		t.Error("a revoked key can still be looked up")
	}
	if err := r.Revoke("nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("got %v, want ErrUnknown", err)
	}
	if list := r.List(); len(list) != 2 || list[1].Revoked.IsZero() {
		t.Errorf("%+v", list)
	}
	// Keys that expired long ago are deleted when the next key is created.
	r.advance(remembered + time.Minute)
	r.add("acme", RoleViewer)
	if list := r.List(); len(list) != 1 || list[0].Role != RoleViewer {
		t.Errorf("got %+v, want 1 entry and first role %q", list, RoleViewer)
	}
	if strings.Contains(r.log.String(), "level=ERROR") {
		t.Errorf(`got %v, want log without "level=ERROR"`, r.log.String())
	}
}

func TestAddRefuses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, tt := range []struct {
		tenant, name string
		role         Role
		expires      time.Time
	}{
		{tenant: "", role: RoleUser}, {tenant: "-a", role: RoleUser}, {tenant: "sub-1", role: RoleUser}, {tenant: "a b", role: RoleUser},
		{tenant: "a/b", role: RoleUser}, {tenant: "ä", role: RoleUser}, {tenant: strings.Repeat("a", 65), role: RoleUser},
		{tenant: "a"}, {tenant: "a", role: "root"}, {tenant: "a", role: RoleUser, name: "two\nlines"},
		{tenant: "a", role: RoleUser, name: strings.Repeat("n", 201)},
		{tenant: "a", role: RoleUser, expires: time.Unix(1, 0)},
	} {
		if _, _, err := r.Add(tt.tenant, tt.role, tt.name, tt.expires); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: got %v, want ErrInvalid", tt, err)
		}
	}
	if _, err := os.Stat(r.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a rejected key was written: got %v, want fs.ErrNotExist", err)
	}
	if _, err := Open(Config{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
}

func TestChangesOnDiskCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret, key := r.add("acme", RoleUser)
	before := r.text()

	// The hub accepts new keys of another process at once, and rejects revoked keys within a second.
	cli := openRig(t, r.path)
	added, _ := cli.add("acme", RoleViewer)
	if !r.knows(added) {
		t.Error("a new key is not accepted at once")
	}
	must(t, cli.Revoke(key.ID))
	r.soon()
	if r.knows(secret) {
		t.Error("a key that another process revoked is accepted")
	}
	r.edit(before) // manual edit
	r.soon()
	if !r.knows(secret) || r.knows(added) {
		t.Error("an edit of the file has no effect")
	}
	// A second change within one tick of the file system's clock has the same timestamp as the first.
	r.edit(replace(t, before, `"acme"`, `"evil"`))
	info, err := os.Stat(r.path)
	must(t, err)
	seen := stampOf(info)
	seen.unsettled = r.keys.seen.unsettled
	r.keys.seen = seen
	r.soon()
	if id, _ := r.Identify(secret); id.Tenant != "evil" {
		t.Errorf(`a change within one tick was missed: got %+v, want tenant "evil"`, id)
	}
	// The file is also checked after the clock was set back.
	r.advance(-time.Hour)
	r.edit(before)
	r.soon()
	if id, _ := r.Identify(secret); id.Tenant != "acme" {
		t.Errorf(`got %+v, want tenant "acme"`, id)
	}
}

func TestFileChecksAreInfrequent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret, key := r.add("acme", RoleUser)
	r.knows(secret)
	must(t, openRig(t, r.path).Revoke(key.ID))
	stopped := r.now()
	r.keys.now = func() time.Time { return stopped }
	r.keys.next.Store(stopped.Add(time.Nanosecond).UnixNano())
	if !r.knows(secret) {
		t.Error("the file was checked too early")
	}
}

// If the file has a fault, its previous content stays in effect.
func TestBrokenFileChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret, key := r.add("acme", RoleUser)
	good := r.text()
	hash := hashOf(secret)
	for name, text := range map[string]string{
		"empty": "", "no JSON": "keys: []", "half": good[:len(good)/2], "null": "null", "array": "[]",
		"nothing": "{}", "more behind": good + "{}",
		"another version":    replace(t, good, `"version": 1`, `"version": 2`),
		"unknown field":      replace(t, good, `"version"`, `"x": 1, "version"`),
		"unknown role":       replace(t, good, `"user"`, `"root"`),
		"no tenant":          replace(t, good, `"acme"`, `""`),
		"odd tenant":         replace(t, good, `"acme"`, `"a/b"`),
		"odd id":             replace(t, good, key.ID, "x"),
		"no hash":            replace(t, good, hash, ""),
		"hash in upper case": replace(t, good, hash, strings.ToUpper(hash)),
		"short hash":         replace(t, good, hash, hash[2:]),
		"odd time":           replace(t, good, `"created": "`, `"created": "x`),
		"same id twice": `{"version":1,"keys":[` +
			strings.Repeat(`{"id":"`+key.ID+`","tenant":"a","role":"user","created":"2026-01-02T03:04:05Z","hash":"`+hash+`"},`, 2) + `]}`,
		"misspelt limit":     replace(t, good, `"keys"`, `"limits": {"default": {"sandboxs": 1}}, "keys"`),
		"limit of no number": replace(t, good, `"keys"`, `"limits": {"tenants": {"a": {"cpu": "1"}}}, "keys"`),
		"limits of nobody":   replace(t, good, `"keys"`, `"limits": {"tenants": {"": {}}}, "keys"`),
	} {
		r.edit(text)
		r.soon()
		if !r.knows(secret) || r.knows("cove_aaaaaaaaaaaa_"+strings.Repeat("0", 43)) || r.Fault() == nil {
			t.Errorf("%s: fault %v", name, r.Fault())
		}
		if _, _, err := r.Add("acme", RoleUser, "", time.Time{}); err == nil || r.text() != text {
			t.Errorf("%s: the file was overwritten: got %v, want an error and file content %q", name, err, text)
		}
		if _, err := Open(Config{Path: r.path}); err == nil {
			t.Errorf("%s: the file was opened, want an error", name)
		}
		if !strings.Contains(r.log.String(), "last valid content stays in force") {
			t.Errorf("%s: nothing in the log", name)
		}
		r.edit(good)
		r.soon()
		if !r.knows(secret) || r.Fault() != nil {
			t.Errorf("%s: got fault %v and known %v, want no fault and a known key", name, r.Fault(), r.knows(secret))
		}
		r.log.mu.Lock()
		r.log.b.Reset()
		r.log.mu.Unlock()
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret, _ := r.add("acme", RoleUser)
	good := r.text()
	breaks := map[string]func() error{
		"gone":               func() error { return os.Remove(r.path) },
		"a folder":           func() error { return errors.Join(os.Remove(r.path), os.Mkdir(r.path, 0o700)) },
		"a FIFO":             func() error { return errors.Join(os.Remove(r.path), syscall.Mkfifo(r.path, 0o600)) },
		"a link to nowhere":  func() error { return errors.Join(os.Remove(r.path), os.Symlink("nowhere", r.path)) },
		"writable to all":    func() error { return os.Chmod(r.path, 0o666) },
		"much too long":      func() error { return os.Truncate(r.path, maxFile+1) },
		"a loop of symlinks": func() error { return errors.Join(os.Remove(r.path), os.Symlink("keys.json", r.path)) },
	}
	for name, broken := range breaks {
		must(t, broken())
		r.soon()
		if !r.knows(secret) || r.Fault() == nil {
			t.Errorf("%s: fault %v", name, r.Fault())
		}
		for range 3 {
			r.soon()
			r.knows(secret)
		}
		if n := strings.Count(r.log.String(), "level=ERROR"); n != 1 {
			t.Errorf("%s: logged %d times, want once: %s", name, n, r.log.String())
		}
		if _, _, err := r.Add("acme", RoleUser, "", time.Time{}); err == nil {
			t.Errorf("%s: the file was overwritten", name)
		}
		must(t, os.RemoveAll(r.path))
		r.edit(good)
		r.soon()
		if r.Fault() != nil || !r.knows(secret) {
			t.Errorf("%s: got fault %v and known %v, want no fault and a known key", name, r.Fault(), r.knows(secret))
		}
		r.log.mu.Lock()
		r.log.b.Reset()
		r.log.mu.Unlock()
	}
}

// A mounted secret is a symbolic link whose target changes.
func TestLinkedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := openRig(t, dir+"/1/keys.json"), openRig(t, dir+"/2/keys.json")
	one, _ := first.add("acme", RoleUser)
	two, _ := second.add("acme", RoleUser)
	must(t, os.Symlink("1/keys.json", dir+"/keys.json"))
	r := openRig(t, dir+"/keys.json")
	if !r.knows(one) || r.knows(two) {
		t.Error("got other keys, want only the key of the first file")
	}
	must(t, os.Symlink("2/keys.json", dir+"/new"))
	must(t, os.Rename(dir+"/new", dir+"/keys.json"))
	r.soon()
	if r.knows(one) || !r.knows(two) {
		t.Error("got other keys, want only the key of the second file")
	}
	three, _ := r.add("acme", RoleUser)
	second.soon()
	if info, err := os.Lstat(dir + "/keys.json"); err != nil || info.Mode()&fs.ModeSymlink == 0 || !second.knows(three) {
		t.Errorf("got %v %v, want a link and its key known", info, err)
	}
}

func TestNewFilesBelongToTheFoldersOwner(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	r := newRig(t)
	must(t, os.Mkdir(filepath.Dir(r.path), 0o700))
	must(t, os.Chown(filepath.Dir(r.path), 1234, 4321))
	r.add("acme", RoleUser)
	r.share(Share{Sandbox: "sb-1"})
	for _, end := range []string{"", ".lock", ".shares", ".shares.lock"} {
		info, err := os.Stat(r.path + end)
		must(t, err)
		if st := info.Sys().(*syscall.Stat_t); st.Uid != 1234 || st.Gid != 4321 || info.Mode() != 0o600 {
			t.Errorf("%s: got %d:%d %v, want owner 1234, group 4321 and mode 0600", end, st.Uid, st.Gid, info.Mode())
		}
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if l := r.Limits("acme"); l != (quota.Limits{}) {
		t.Errorf("got %+v, want %+v", l, quota.Limits{})
	}
	must(t, os.Mkdir(filepath.Dir(r.path), 0o700))
	r.edit(`{"version": 1, "keys": [], "limits": {
		"default": {"sandboxes": 5, "memory": 1024, "create_rate": 0.5},
		"tenants": {"acme": {"sandboxes": 50, "calls": 3}, "free": {"sandboxes": 0}}}}`)
	r.soon()
	// Adding a key does not change the limits.
	r.add("acme", RoleUser)
	for tenant, want := range map[string]quota.Limits{
		"":     {Sandboxes: 5, Memory: 1024, CreateRate: 0.5},
		"else": {Sandboxes: 5, Memory: 1024, CreateRate: 0.5},
		"acme": {Sandboxes: 50, Memory: 1024, CreateRate: 0.5, Calls: 3},
		"free": {Memory: 1024, CreateRate: 0.5},
	} {
		if got := r.Limits(tenant); got != want {
			t.Errorf("%s: %+v, want %+v", tenant, got, want)
		}
		if got := openRig(t, r.path).Limits(tenant); got != want {
			t.Errorf("%s from disk: %+v, want %+v", tenant, got, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	secret, _ := r.add("acme", RoleUser)
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 5 {
				fresh, key, err := r.Add("acme", RoleUser, "", time.Time{})
				if err != nil || !r.knows(fresh) || !r.knows(secret) {
					t.Errorf("got %v, new key known %v, old key known %v, want both", err, r.knows(fresh), r.knows(secret))
					continue
				}
				r.Limits("acme")
				r.advance(time.Second)
				if err := r.Revoke(key.ID); err != nil || r.knows(fresh) {
					t.Errorf("got %v and the revoked key known, want it unknown", err)
				}
			}
		})
	}
	wg.Wait()
	if n := len(r.List()); n != 31 {
		t.Errorf("%d keys", n)
	}
}
