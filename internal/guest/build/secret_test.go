package build

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSecrets: a command sees its secrets as files and variables, and nothing of them stays.
func TestSecrets(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.Secrets = filepath.Join(t.TempDir(), "secrets")
	root := t.TempDir()
	target := filepath.Join(root, "new", "folder", ".npmrc")
	me := itoa(os.Geteuid())
	secrets := []Secret{{ID: "a", Value: "value a", Owner: me}, {ID: "b", Value: "value b", Target: target, Owner: me, Mode: "0440"},
		{ID: "c", Value: "value c", Env: "C"}}
	script := "cat " + s.Secrets + "/a; echo; cat " + target + "; echo; echo $C; stat -Lc %a " + target + "; ls " + s.Secrets
	out, end := s.output(t, RunIn{Args: []string{"/bin/sh", "-c", script}, Secrets: secrets})
	if got := strings.Join(out, "|"); got != "value a|value b|value c|440|a|b" || end.Code != 0 {
		t.Errorf("got %s, %+v", got, end)
	}
	for _, dir := range []string{s.Secrets, root} {
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s contains %v", dir, left)
		}
	}
	// What the command creates next to a secret stays; the secret does not.
	if _, end := s.output(t, RunIn{Args: []string{"/bin/sh", "-c", "touch " + filepath.Dir(target) + "/own"},
		Secrets: secrets[1:2]}); end.Code != 0 {
		t.Error(end)
	}
	if left, _ := os.ReadDir(filepath.Dir(target)); len(left) != 1 || left[0].Name() != "own" {
		t.Errorf("got %v, want only the file of the command", left)
	}
	for name, secret := range map[string]Secret{
		"existing target": {ID: "a", Target: filepath.Dir(target)}, "relative target": {ID: "a", Target: "x"}, "path": {ID: "../a"},
		"target below a file": {ID: "a", Target: filepath.Join(filepath.Dir(target), "own", "x")}, "mode": {ID: "a", Mode: "x", Owner: me},
	} {
		if _, end := s.output(t, RunIn{Args: []string{"/bin/true"}, Secrets: []Secret{secret}}); end.Reason == "" {
			t.Errorf("%s: accepted", name)
		}
		if left, _ := os.ReadDir(s.Secrets); len(left) != 0 {
			t.Errorf("%s: left %v", name, left)
		}
	}
	cache := filepath.Join(root, "cache")
	if err := os.Mkdir(cache, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, end := s.output(t, RunIn{Args: []string{"/bin/true"}, Caches: []Cache{{Path: cache, Owner: me, Mode: "1777"}}}); end.Reason != "" {
		t.Error(end)
	}
	if info, err := os.Stat(cache); err != nil || info.Mode().Perm() != 0o777 || info.Mode()&os.ModeSticky == 0 {
		t.Errorf("the cache has %v, %v", info.Mode(), err)
	}
}

// TestSettleFindsSecrets: a secret that a step wrote into a file is found at any position.
func TestSettleFindsSecrets(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.Root = t.TempDir()
	write := func(name string, parts ...string) string {
		path := filepath.Join(s.Root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(strings.Join(parts, "")), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	settle := func(since time.Time, value string) Settled {
		t.Helper()
		found, err := s.Settle(t.Context(), SettleIn{Secrets: map[string]string{"key": value}, Since: since,
			Except: []string{filepath.Join(s.Root, "cache")}})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	begin := time.Now().Add(-time.Minute)
	const value = "hunter22-and-more"
	for _, name := range []string{"proc/x", "run/secrets/key", "cache/x"} {
		write(name, value)
	}
	write("short", "1234567")
	if got := settle(begin, value); got != (Settled{}) {
		t.Errorf("found %+v in a folder that is not saved", got)
	}
	if got := settle(begin, "1234567"); got != (Settled{}) {
		t.Errorf("found %+v, a value that occurs by chance", got)
	}
	// At all positions around the end of a part of the file.
	for _, before := range []int{0, 256<<10 - 1, 256 << 10, 256<<10 + 5, 600 << 10} {
		path := write("deep/down/.npmrc", string(bytes.Repeat([]byte("x"), before)), value)
		if got := settle(begin, value); got != (Settled{"key", path}) {
			t.Errorf("after %d bytes: got %+v", before, got)
		}
	}
	if got := settle(time.Now().Add(time.Hour), value); got != (Settled{}) {
		t.Errorf("found %+v, an older file", got)
	}
}
