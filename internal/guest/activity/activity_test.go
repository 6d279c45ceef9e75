package activity_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/activity"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestBusyAndIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := 0, 0
		start := time.Now()
		s := activity.New(activity.Config{Started: start, Sources: []activity.Source{
			{Name: "a", Running: func() int { return n }},
			{Name: "b", Running: func() int { return m }},
			{Name: "wrong", Running: func() int { return -5 }},
		}})
		get := func(a, b int, want activity.Activity) {
			t.Helper()
			n, m, want.Help = a, b, []activity.Help{}
			got, err := s.Get(t.Context(), activity.GetIn{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			<-time.After(time.Minute) // synthetic time
		}
		get(0, 0, activity.Activity{Since: start, By: map[string]int{}})
		get(2, 1, activity.Activity{Busy: true, Running: 3, Since: start.Add(time.Minute), By: map[string]int{"a": 2, "b": 1}})
		get(0, 1, activity.Activity{Busy: true, Running: 1, Since: start.Add(time.Minute), By: map[string]int{"b": 1}})
		get(0, 0, activity.Activity{Since: start.Add(3 * time.Minute), By: map[string]int{}})
		get(0, 0, activity.Activity{Since: start.Add(3 * time.Minute), By: map[string]int{}})
	})
}

// A real bash command is reported over HTTP while it runs.
func TestRealCommand(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	dir := t.TempDir()
	runner := proc.New(proc.Config{Env: []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir}})
	shells := bash.New(bash.Config{Runner: runner, Home: dir, Workspace: dir, State: dir + "/state"})
	s := activity.New(activity.Config{Started: time.Now(), Sources: []activity.Source{{Name: "bash", Running: func() int {
		list, err := shells.Sessions(t.Context(), op.None{})
		if err != nil {
			return 0
		}
		n := 0
		for _, i := range list {
			if i.CurrentCommand != nil {
				n++
			}
		}
		return n
	}}}})
	server := httptest.NewServer(rest.New(rest.Config{Table: op.NewTable(s.Ops())}))
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		server.Close()
		shells.Close()
		runner.Close()
	})
	get := func() (a activity.Activity) {
		res, err := client.Get(server.URL + "/v1/sandbox/activity")
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != 200 || json.Unmarshal(b, &a) != nil {
			t.Fatalf("got %d %s %v, want status 200 and JSON", res.StatusCode, b, err)
		}
		return a
	}
	if a := get(); a.Busy {
		t.Errorf("busy before anything runs: %+v, want not busy", a)
	}
	session := "s"
	fifo := dir + "/go"
	command := "mkfifo " + fifo + "; read x < " + fifo
	if _, err := shells.Exec(t.Context(), bash.ExecIn{Command: command, SessionID: &session, AsyncMode: true,
		MaxOutputLength: 1000}); err != nil {
		t.Fatal(err)
	}
	if a := get(); !a.Busy || a.Running != 1 || a.By["bash"] != 1 {
		t.Errorf("not busy while a command runs: %+v, want busy, running 1 and bash 1", a)
	}
	testenv.Poll(t, "the command waits", func() bool { _, err := os.Stat(fifo); return err == nil })
	w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	w.WriteString("x\n")
	w.Close()
	testenv.Poll(t, "it becomes idle", func() bool { return !get().Busy })
}
