package secretstore

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/google/go-cmp/cmp"
)

func TestMain(m *testing.M) { testenv.Main(m) }

const hush = "tok-5f1c9e77a0"

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func set(t *testing.T, s *Store, tenant string, sec Secret) Info {
	t.Helper()
	info, err := s.Set(tenant, sec)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func TestValuePrintsAsNothing(t *testing.T) {
	t.Parallel()
	type inner struct{ hidden Value }
	v := New(hush)
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "v", v, "s", Secret{Value: v}, "p", &v, "in", inner{v}, slog.Group("g", "v", v), "e",
			fmt.Errorf("%w %v", os.ErrExist, v))
	}
	cred := egress.Credential{Host: "a.test", Value: v}
	var all strings.Builder
	all.WriteString(log.String())
	for _, x := range []any{v, &v, Secret{Value: v}, &Secret{Value: v}, Given{Value: v}, inner{v}, &inner{v},
		[]Value{v}, map[string]Value{"a": v}, cred, []egress.Credential{cred}, entry{value: v}, tenant{"a": {value: v}}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T", "%p", "%10.3s"} {
			fmt.Fprintf(&all, verb+"\n", x)
		}
		b, err := json.Marshal(x)
		if err != nil {
			t.Error(err)
		}
		all.Write(b)
	}
	if s := all.String(); strings.Contains(s, "5f1c9e77a0") || strings.Contains(s, fmt.Sprintf("%x", hush)) || !strings.Contains(s, redacted) {
		t.Errorf(`formatted secret: got %s, want neither "5f1c9e77a0" nor %q in it, but %q`, s, fmt.Sprintf("%x", hush), redacted)
	}
	if v.Reveal() != hush || (Value{}).Reveal() != "" {
		t.Error("the secret is missing")
	}
}

func TestSecretsSurviveARestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "secrets")
	s := open(t, dir)
	set(t, s, "ann", Secret{Name: "TOKEN", Value: New(hush), Mode: Env})
	set(t, s, "ann", Secret{Name: "cert", Value: New("bin\x00ary\xff"), Mode: File, Target: "/run/cert"})
	set(t, s, "ann", Secret{Name: "api", Value: New(hush), Mode: Broker, Hosts: []string{"api.test", "*.api.test:8443"}})
	set(t, s, "bob/../x", Secret{Name: "TOKEN", Value: New("his"), Mode: Env, Target: "OTHER"})
	for range 2 {
		list := s.List("ann")
		if len(list) != 3 || list[0].Name != "TOKEN" || list[0].Target != "TOKEN" ||
			list[1].Header != "Authorization" || list[1].Format != "Bearer %s" || list[0].Created.IsZero() {
			t.Errorf("%+v", list)
		}
		got, err := s.Values("ann", []string{"cert", "api", "TOKEN", "cert"})
		if err != nil || len(got) != 2 || got[0].Value.Reveal() != "bin\x00ary\xff" || got[0].Target != "/run/cert" ||
			got[1].Value.Reveal() != hush {
			t.Errorf("%+v %v", got, err)
		}
		rules, err := s.Rules("ann", []string{"cert", "api", "TOKEN"})
		if err != nil || len(rules) != 2 || rules[1].Host != "*.api.test:8443" ||
			rules[1].Header != "Authorization" || rules[1].Value.Reveal() != "Bearer "+hush {
			t.Errorf(`got %+v %v, want 2 rules, second host "*.api.test:8443", second header "Authorization" and second value %q`,
				rules, err, "Bearer "+hush)
		}
		if got, err := s.Values("bob/../x", []string{"TOKEN"}); err != nil || got[0].Value.Reveal() != "his" || got[0].Target != "OTHER" {
			t.Errorf("%+v %v", got, err)
		}
		for _, f := range []func(string, []string) error{
			func(t string, n []string) error { _, err := s.Values(t, n); return err },
			func(t string, n []string) error { _, err := s.Rules(t, n); return err },
		} {
			if err := f("bob/../x", []string{"api"}); !errors.Is(err, ErrNotFound) {
				t.Errorf("got %v %v, want ErrNotFound", "a foreign secret:", err)
			}
			if err := f("nobody", nil); err != nil {
				t.Error(err)
			}
		}
		before := s.List("ann")
		s = open(t, dir)
		if d := cmp.Diff(before, s.List("ann")); d != "" {
			t.Errorf("got %v, want no difference", d)
		}
	}
}

func TestDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	set(t, s, "ann", Secret{Name: "secretname", Value: New(hush), Mode: Env})
	set(t, s, "bob", Secret{Name: "b", Value: New("his"), Mode: Env})
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 3 {
		t.Fatalf("got %v %v, want 3 entries", list, err)
	}
	for _, e := range list {
		info, err := e.Info()
		b, err2 := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil || err2 != nil || info.Mode().Perm() != 0o600 || bytes.Contains(b, []byte("5f1c9e77a0")) ||
			bytes.Contains(b, []byte("secretname")) {
			t.Errorf(`got %s %v %q %v %v, want mode 0600, neither "5f1c9e77a0" nor "secretname" in it`, e.Name(), info.Mode(), b, err, err2)
		}
	}
	ann, bob, key := filepath.Join(dir, fileOf("ann")), filepath.Join(dir, fileOf("bob")), filepath.Join(dir, keyFile)
	old := map[string][]byte{}
	for _, f := range []string{ann, bob, key} {
		if old[f], err = os.ReadFile(f); err != nil {
			t.Fatal(err)
		}
	}
	for what, harm := range map[string]func() error{
		"changed":       func() error { return os.WriteFile(ann, append(bytes.Clone(old[ann][:40]), old[bob]...), 0o600) },
		"cut":           func() error { return os.WriteFile(ann, old[ann][:len(old[ann])/2], 0o600) },
		"empty":         func() error { return os.WriteFile(ann, nil, 0o600) },
		"swapped":       func() error { return os.WriteFile(ann, old[bob], 0o600) },
		"other key":     func() error { return os.WriteFile(key, bytes.Repeat([]byte("ab"), 32), 0o600) },
		"no key":        func() error { return os.Remove(key) },
		"broken key":    func() error { return os.WriteFile(key, []byte("5f1c9e77a0"), 0o600) },
		"key of others": func() error { return os.Chmod(key, 0o644) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(Config{Dir: dir}); err == nil || strings.Contains(err.Error(), "5f1c9e77a0") {
			t.Errorf(`%s: got %v, want an error without "5f1c9e77a0"`, what, err)
		}
		for f, b := range old {
			if err := os.WriteFile(f, b, 0o600); err != nil {
				t.Fatal(err)
			}
			os.Chmod(f, 0o600)
		}
	}
}

func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	set(t, s, "ann", Secret{Name: "a", Value: New(hush), Mode: Env})
	set(t, s, "bob", Secret{Name: "b", Value: New("his"), Mode: Env})
	// Temporary files of an interrupted write are deleted.
	left := filepath.Join(dir, ".cove-x.tmp")
	os.WriteFile(left, []byte("half"), 0o600)
	s = open(t, dir)
	if _, err := os.Stat(left); !errors.Is(err, os.ErrNotExist) {
		t.Error("a temporary file remains")
	}
	if err := s.Delete("bob", "b"); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete("bob", "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v, want ErrNotFound", err)
	}
	if _, err := os.Stat(filepath.Join(dir, fileOf("bob"))); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file of a tenant without secrets remains")
	}
	if n := len(open(t, dir).List("bob")); n != 0 {
		t.Error("the deleted secret is listed again")
	}
	// A change that cannot be written has no effect.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Set("ann", Secret{Name: "x", Value: New(hush), Mode: Env}); err == nil || strings.Contains(err.Error(), "5f1c9e77a0") {
		t.Errorf(`got %v, want an error without "5f1c9e77a0"`, err)
	}
	if n := len(s.List("ann")); n != 1 {
		t.Errorf("%d secrets", n)
	}
}

func TestBadSecrets(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s, err := Open(Config{Dir: t.TempDir(), Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	v := New(hush)
	hosts := []string{"a.test"}
	for what, sec := range map[string]Secret{
		"no name":         {Value: v, Mode: Env},
		"odd name":        {Name: "a b", Value: v, Mode: Env},
		"path as name":    {Name: "../a", Value: v, Mode: Env},
		"long name":       {Name: strings.Repeat("a", 65), Value: v, Mode: Env},
		"no value":        {Name: "a", Mode: Env},
		"long value":      {Name: "a", Value: New(strings.Repeat("x", MaxValue+1)), Mode: Env},
		"no mode":         {Name: "a", Value: v},
		"odd mode":        {Name: "a", Value: v, Mode: "x"},
		"no variable":     {Name: "a", Value: v, Mode: Env, Target: "A=B"},
		"name, variable":  {Name: "a-b", Value: v, Mode: Env},
		"zero":            {Name: "a", Value: New(hush + "\x00"), Mode: Env},
		"env with hosts":  {Name: "a", Value: v, Mode: Env, Hosts: hosts},
		"no path":         {Name: "a", Value: v, Mode: File},
		"relative":        {Name: "a", Value: v, Mode: File, Target: "a/b"},
		"dots":            {Name: "a", Value: v, Mode: File, Target: "/a/../b"},
		"root":            {Name: "a", Value: v, Mode: File, Target: "/"},
		"no hosts":        {Name: "a", Value: v, Mode: Broker},
		"all hosts":       {Name: "a", Value: v, Mode: Broker, Hosts: []string{"*"}},
		"host twice":      {Name: "a", Value: v, Mode: Broker, Hosts: []string{"a.test", "A.test."}},
		"broker, target":  {Name: "a", Value: v, Mode: Broker, Hosts: hosts, Target: "A"},
		"no place":        {Name: "a", Value: v, Mode: Broker, Hosts: hosts, Format: "Bearer"},
		"two places":      {Name: "a", Value: v, Mode: Broker, Hosts: hosts, Format: "%s %s"},
		"other verb":      {Name: "a", Value: v, Mode: Broker, Hosts: hosts, Format: "%s %d"},
		"break in format": {Name: "a", Value: v, Mode: Broker, Hosts: hosts, Format: "%s\r\nX: y"},
		"break in value":  {Name: "a", Value: New(hush + "\n"), Mode: Broker, Hosts: hosts},
		"header":          {Name: "a", Value: v, Mode: Broker, Hosts: hosts, Header: "Host"},
		"many hosts":      {Name: "a", Value: v, Mode: Broker, Hosts: make([]string, MaxHosts+1)},
	} {
		if _, err := s.Set("ann", sec); !errors.Is(err, ErrInvalid) || strings.Contains(err.Error(), "5f1c9e77a0") {
			t.Errorf(`%s: got %v, want ErrInvalid without "5f1c9e77a0"`, what, err)
		}
	}
	for _, tenant := range []string{"", strings.Repeat("a", maxTenant+1)} {
		if _, err := s.Set(tenant, Secret{Name: "a", Value: v, Mode: Env}); !errors.Is(err, ErrInvalid) {
			t.Errorf("got %v, want ErrInvalid", err)
		}
	}
	// Valid individually, but not together.
	set(t, s, "ann", Secret{Name: "a", Value: v, Mode: Env, Target: "A"})
	set(t, s, "ann", Secret{Name: "b", Value: v, Mode: Env, Target: "A"})
	set(t, s, "ann", Secret{Name: "c", Value: v, Mode: Broker, Hosts: hosts})
	set(t, s, "ann", Secret{Name: "d", Value: v, Mode: Broker, Hosts: hosts})
	if _, err := s.Values("ann", []string{"a", "b"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if _, err := s.Rules("ann", []string{"c", "d"}); !errors.Is(err, ErrInvalid) {
		t.Errorf("got %v, want ErrInvalid", err)
	}
	if strings.Contains(log.String(), "5f1c9e77a0") || !strings.Contains(log.String(), "secret=c") {
		t.Errorf(`got %v, want log without "5f1c9e77a0" but with "secret=c"`, log.String())
	}
}

func TestReplacing(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	hosts := []string{"a.test"}
	first := set(t, s, "ann", Secret{Name: "a", Value: New("1"), Mode: Broker, Hosts: hosts})
	hosts[0] = "evil.test"
	first.Hosts[0] = "evil.test"
	s.List("ann")[0].Hosts[0] = "evil.test"
	if got := s.List("ann")[0].Hosts[0]; got != "a.test" {
		t.Error("the store was changed from outside:", got)
	}
	testenv.Poll(t, "the clock moves", func() bool { return time.Now().After(first.Updated) })
	second := set(t, s, "ann", Secret{Name: "a", Value: New("2"), Mode: Env})
	if !second.Created.Equal(first.Created) || !second.Updated.After(first.Updated) || len(second.Hosts) != 0 {
		t.Errorf("%+v after %+v", second, first)
	}
	if rules, err := s.Rules("ann", []string{"a"}); err != nil || len(rules) != 0 {
		t.Errorf("got %v %v, want no rules", rules, err)
	}
}

func TestConcurrentCreatesAndDeletes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for j := range 5 {
				name := fmt.Sprintf("s%d_%d", i, j)
				if _, err := s.Set("ann", Secret{Name: name, Value: New(name), Mode: Env}); err != nil {
					t.Error(err)
				}
				s.List("ann")
				if got, err := s.Values("ann", []string{name}); err != nil || got[0].Value.Reveal() != name {
					t.Error(got, err)
				}
			}
		})
	}
	wait.Wait()
	if n := len(open(t, dir).List("ann")); n != 20 {
		t.Errorf("%d are left", n)
	}
	// The limit, without writing each secret to disk.
	full := tenant{}
	for i := range MaxPerTenant {
		full[fmt.Sprint("x", i)] = entry{}
	}
	s.tenants["ann"] = full
	if _, err := s.Set("ann", Secret{Name: "more", Value: New("x"), Mode: Env}); !errors.Is(err, ErrTooMany) {
		t.Errorf("got %v, want ErrTooMany", err)
	}
	if _, err := s.Set("ann", Secret{Name: "x0", Value: New("x"), Mode: Env}); err != nil {
		t.Error("an existing secret cannot be replaced:", err)
	}
}
