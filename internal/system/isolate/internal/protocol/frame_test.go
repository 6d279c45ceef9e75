package protocol

import (
	"bytes"
	"errors"
	"io"
	"math"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func fullSetup() Setup {
	return Setup{Version: Version, Hostname: "höst", ShmSize: 1 << 40, LogSize: -1, Rootless: true,
		Filter: "\x00f", Notify: "n\x00", Egress: "/e", Listens: true, Setuid: true, Late: true,
		Root: []Overlay{{Target: "/", Lower: []Source{{"/a", 0}, {"", -1}}, Upper: Source{"/u", 7}, Data: "d", Work: "w"},
			{Target: "/usr", Lower: []Source{}}},
		Alias:   Alias{Path: "/a", Target: "/b"},
		Tmpfs:   []Tmpfs{{Target: "/run", Size: math.MaxInt64, Mode: 0o1777, UID: math.MaxUint32, GID: 5}},
		Binds:   []Bind{{Source: Source{"/b\nc", 3}, Target: "/t", ReadOnly: true, Setuid: true, Hidden: true, File: "f"}, {}},
		Process: Process{Args: []string{"x", ""}, Env: []string{"A=1\x00\xff", "B="}, Dir: "/home", UID: 1000, GID: 1001},
		Limits:  Limits{CPU: 1, Share: 2, Memory: math.MinInt64, Pids: 4, Files: 5, FileSize: 6},
	}
}

func TestFrameCarriesEveryField(t *testing.T) {
	want := fullSetup()
	var got Setup
	if err := receive(bytes.NewReader(marshal(&want)), &got, maxSetup); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	var b bytes.Buffer
	sent := Report{Stage: StageRun, Took: 1234567, PID: 42, Error: "no"}
	if err := SendReport(&b, sent); err != nil {
		t.Fatal(err)
	}
	if got, err := ReceiveReport(&b); err != nil || got != sent {
		t.Errorf("got %+v, %v, want %+v", got, err, sent)
	}
}

// TestSetupHasEveryField ensures that fullSetup sets every field, so that
// TestFrameCarriesEveryField finds a field that transfer omits.
func TestSetupHasEveryField(t *testing.T) {
	s := fullSetup()
	for _, v := range []any{s, s.Limits, s.Process, s.Tmpfs[0], s.Binds[0], s.Root[0], s.Root[0].Upper} {
		r := reflect.ValueOf(v)
		for i := range r.NumField() {
			if r.Field(i).IsZero() {
				t.Errorf("%s.%s is not tested: set it in fullSetup, and transfer it", r.Type(), r.Type().Field(i).Name)
			}
		}
	}
}

func TestFrameOfAnotherVersion(t *testing.T) {
	old := fullSetup()
	old.Version = Version + 1
	var got Setup
	if err := receive(bytes.NewReader(marshal(&old)), &got, maxSetup); err != nil || got.Version != old.Version || got.Hostname != "" {
		t.Errorf("got %+v, %v, want only the version", got, err)
	}
}

// TestFrameMalformed ensures that malformed input results in an error.
func TestFrameMalformed(t *testing.T) {
	s := fullSetup()
	whole := marshal(&s)
	for n := range whole {
		if err := receive(bytes.NewReader(whole[:n]), &Setup{}, maxSetup); err == nil {
			t.Fatalf("%d of %d bytes were accepted", n, len(whole))
		}
	}
	for n := range len(whole) - 5 {
		if err := unmarshal(whole[4:4+n], &Setup{}); n > 0 && err == nil {
			t.Fatalf("a message of %d instead of %d bytes was read", n, len(whole)-4)
		}
	}
	if err := unmarshal(append(bytes.Clone(whole[4:]), 0), &Setup{}); !errors.Is(err, errFrame) {
		t.Errorf("with an extra byte: got %v, want %v", err, errFrame)
	}
	if err := receive(bytes.NewReader([]byte(`{"Error":"the report of an older init"}`)), &Report{}, maxReport); !errors.Is(err, errFrame) {
		t.Errorf("another format: got %v, want %v", err, errFrame)
	}
	if err := receive(bytes.NewReader(nil), &Report{}, maxReport); !errors.Is(err, io.EOF) {
		t.Errorf("no input: got %v, want %v", err, io.EOF)
	}
}

func FuzzFrame(f *testing.F) {
	s := fullSetup()
	f.Add(marshal(&s)[4:])
	f.Add([]byte{4, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1})
	f.Fuzz(func(t *testing.T, body []byte) {
		var s Setup
		if unmarshal(body, &s) != nil || s.Version != Version {
			return
		}
		var again Setup
		if err := unmarshal(marshal(&s)[4:], &again); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(s, again); d != "" {
			t.Error(d)
		}
	})
}
