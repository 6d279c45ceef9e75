package bind_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/bind"
	"github.com/cove-sandbox/cove/internal/surface/rest"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func encode(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// waiting is a service and the settings that it received.
func waiting(t *testing.T) (*bind.Service, *bind.Settings, string) {
	home, got := t.TempDir(), &bind.Settings{}
	return bind.New(bind.Config{Home: home, Prepare: func(s bind.Settings) (bind.Commit, error) {
		return func() (bool, error) { *got = s; return true, nil }, nil
	}}), got, home
}

func code(err error) op.Code {
	if e, ok := op.AsError(err); ok {
		return e.Code
	}
	return ""
}

// All files exist when the settings are applied.
func TestInit(t *testing.T) {
	t.Parallel()
	home, applied := t.TempDir(), bind.Settings{}
	if err := os.WriteFile(filepath.Join(home, "old"), []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := bind.New(bind.Config{Home: home, Prepare: func(in bind.Settings) (bind.Commit, error) {
		return func() (bool, error) {
			for name, want := range map[string]string{"old": "new", "a/b/c": "deep"} {
				if b, err := os.ReadFile(filepath.Join(home, name)); err != nil || string(b) != want {
					t.Errorf("%s got %q %v, want %v", name, b, err, want)
				}
			}
			applied = in
			return true, nil
		}, nil
	}})
	out, err := s.Init(t.Context(), bind.InitIn{Env: map[string]string{"A": "b"}, Unset: []string{"C"}, Workdir: "~/work", Files: []bind.File{
		{Path: "~/old", Content: encode("new"), Mode: "0600"}, {Path: filepath.Join(home, "a/b/c"), Content: encode("deep"), Mode: "755"},
	}})
	if err != nil || !out.Ready {
		t.Fatalf("got %+v, %v, want it ready", out, err)
	}
	if diff := cmp.Diff(bind.Settings{Env: map[string]string{"A": "b"}, Unset: []string{"C"},
		Workdir: filepath.Join(home, "work")}, applied); diff != "" {
		t.Error(diff)
	}
	for name, want := range map[string]fs.FileMode{"old": 0o600, "a/b/c": 0o755, "work": fs.ModeDir | 0o755} {
		if info, err := os.Stat(filepath.Join(home, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want Mode %v", name, info.Mode(), err, want)
		}
	}
	if _, err := s.Init(t.Context(), bind.InitIn{}); code(err) != op.Conflict {
		t.Errorf("second call: got %v, want code %q", err, op.Conflict)
	}
	for _, c := range []bind.Config{{}, {Bound: true}} {
		if _, err := bind.New(c).Init(t.Context(), bind.InitIn{}); code(err) != op.Conflict {
			t.Errorf("%+v: %v, want code %q", c, err, op.Conflict)
		}
	}
}

// Invalid requests are refused without their content in the error, change nothing, and leave the
// sandbox waiting.
func TestRefused(t *testing.T) {
	t.Parallel()
	s, applied, home := waiting(t)
	const secret = "s3cret"
	long := secret + strings.Repeat("x", 1<<17)
	for name, in := range map[string]bind.InitIn{
		"empty name":    {Env: map[string]string{"": secret}},
		"name with =":   {Env: map[string]string{"A=B": secret}},
		"zero byte":     {Env: map[string]string{"A": secret + "\x00"}},
		"long variable": {Env: map[string]string{"A": long}},
		"relative file": {Files: []bind.File{{Path: "a", Content: encode(secret), Mode: "0600"}}},
		"not base64":    {Files: []bind.File{{Path: "~/a", Content: secret + "!", Mode: "0600"}}},
		"mode":          {Files: []bind.File{{Path: "~/a", Content: encode(secret), Mode: "9"}}},
		"folder":        {Files: []bind.File{{Path: "~", Content: encode(secret), Mode: "0600"}}},
		"not writable":  {Files: []bind.File{{Path: "/proc/cove/a", Content: encode(secret), Mode: "0600"}}},
		"workdir":       {Workdir: "work"},
		"no folder":     {Workdir: "/proc/cove"},
	} {
		_, err := s.Init(t.Context(), in)
		if code(err) != op.Invalid || strings.Contains(err.Error(), secret) || len(err.Error()) > 400 {
			t.Errorf("%s: %v, want code %q and a short text without the secret", name, err, op.Invalid)
		}
		if shown := fmt.Sprintf("%v %+v", in, in); strings.Contains(shown, secret) {
			t.Errorf("%s shows: %s, want shown without %q", name, shown, secret)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(home, "*")); len(left) > 0 || applied.Env != nil {
		t.Errorf("left %v %v, want none and no env", left, applied)
	}
	if _, err := s.Init(t.Context(), bind.InitIn{Env: map[string]string{"A": "b"}}); err != nil || applied.Env["A"] != "b" {
		t.Errorf("got %v, %v, want A=b", applied, err)
	}
}

func TestPrepareFails(t *testing.T) {
	t.Parallel()
	home, fault := t.TempDir(), errors.New("no")
	s := bind.New(bind.Config{Home: home, Prepare: func(bind.Settings) (bind.Commit, error) { return nil, fault }})
	if _, err := s.Init(t.Context(), bind.InitIn{Files: []bind.File{{Path: "~/a", Mode: "0600"}}}); !errors.Is(err, fault) {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(home, "*")); len(left) > 0 {
		t.Errorf("left %v, want none", left)
	}
}

// Of many concurrent requests one succeeds, and the others get a conflict, also over HTTP.
func TestOnce(t *testing.T) {
	t.Parallel()
	var done, won atomic.Int64
	s := bind.New(bind.Config{Home: t.TempDir(), Prepare: func(bind.Settings) (bind.Commit, error) {
		return func() (bool, error) { done.Add(1); return false, nil }, nil
	}})
	h := rest.New(rest.Config{Table: op.NewTable(s.Ops())})
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/sandbox/init", strings.NewReader(`{"env":{"A":"b"},"files":null}`)))
			switch w.Code {
			case http.StatusOK:
				won.Add(1)
			case http.StatusConflict:
			default:
				t.Errorf("got status %d: %s, want 200 or 409", w.Code, w.Body)
			}
		})
	}
	wait.Wait()
	if done.Load() != 1 || won.Load() != 1 {
		t.Errorf("got %d commits and %d successful responses, want 1 and 1", done.Load(), won.Load())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
