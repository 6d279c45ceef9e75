package app

import (
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestSearchOfTheHomeFindsNoSessionLog: session logs are outside of the home, only this user can
// read them, and the API returns them.
func TestSearchOfTheHomeFindsNoSessionLog(t *testing.T) {
	t.Parallel()
	home, logs := t.TempDir(), filepath.Join(t.TempDir(), "logs")
	log := slog.New(slog.DiscardHandler)
	cfg := config.Aio{Listen: "unix:/nowhere", Home: home, Workspace: home, State: filepath.Join(home, ".state"),
		SessionLogs: logs, Activity: true}
	cfg.SessionLogs = openSessionLogs(cfg, log)
	if info, err := os.Stat(logs); err != nil || info.Mode().Perm() != 0o700 {
		t.Fatalf("got %v, %v, want a folder with mode 0700", info, err)
	}
	a, err := NewAio(cfg, nil, "0.0.0", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	h, _ := a.Handlers()
	ask := func(method, path, body string) string {
		r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
		r.Host, r.RemoteAddr = "localhost", "127.0.0.1:1"
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Body.String()
	}
	ask("POST", "/v1/bash/exec", `{"command":"true needle"}`)
	if got := ask("GET", "/v1/sandbox/activity", ""); !strings.Contains(got, "needle") {
		t.Errorf("got %s, want the record of the command", got)
	}
	testenv.Poll(t, "the record is written", func() bool { return grep(t, logs, "needle") != "" })
	if found := grep(t, home, "needle"); found != "" {
		t.Errorf("a search of the home found %s, want no match", found)
	}
}

// grep returns a file below a folder that contains a word.
func grep(t *testing.T, dir, word string) (found string) {
	t.Helper()
	filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), word) {
				found = path
			}
		}
		return nil
	})
	return found
}

// TestSessionLogsFolder: logs of earlier versions are moved, and a folder of another user is not used.
func TestSessionLogsFolder(t *testing.T) {
	t.Parallel()
	dir, log := t.TempDir(), slog.New(slog.DiscardHandler)
	cfg := config.Aio{State: filepath.Join(dir, "state"), SessionLogs: filepath.Join(dir, "logs")}
	old := filepath.Join(cfg.State, "activity")
	if err := os.MkdirAll(old, 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := openSessionLogs(cfg, log); got != cfg.SessionLogs {
			t.Errorf("got %s, want %s", got, cfg.SessionLogs)
		}
	}
	if _, err := os.Stat(filepath.Join(cfg.SessionLogs, "activity")); err != nil {
		t.Errorf("earlier logs: %v, want them moved", err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(t.TempDir(), link); err != nil {
		t.Fatal(err)
	}
	foreign := []string{link, filepath.Join(dir, "none", "below")}
	if os.Geteuid() == 0 {
		theirs := filepath.Join(dir, "theirs")
		if err := os.Mkdir(theirs, 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, theirs)
	}
	for _, path := range foreign {
		cfg.SessionLogs = path
		if got := openSessionLogs(cfg, log); got != cfg.State {
			t.Errorf("%s: got %s, want the state folder", path, got)
		}
	}
}
