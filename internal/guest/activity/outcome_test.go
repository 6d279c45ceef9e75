package activity_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"hash/crc32"
	"image"
	"image/jpeg"
	"image/png"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/activity"
)

// TestFailures: commands with an exit code, and cells that raised, are failures although the operation succeeded.
func TestFailures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	run := func(name string, out any) {
		t.Helper()
		call(t, s, op.New(op.Spec{Name: name, Route: "POST /x", Tag: "code", Doc: "X."},
			func(context.Context, op.None) (map[string]any, error) { return out.(map[string]any), nil }), &op.None{})
	}
	run("fine", map[string]any{"exit_code": 0, "status": "ok"})
	run("exit", map[string]any{"exit_code": 2})
	run("raised", map[string]any{"status": "error"})
	run("streamed", map[string]any{"result": map[string]any{"status": "error"}})
	run("late", map[string]any{"status": "timeout"})
	run("running", map[string]any{"status": "running", "exit_code": nil})
	for range 2 { // also after a restart
		var got []string
		for _, e := range get(t, s, activity.GetIn{Failed: true}) {
			got = append(got, e.Op)
		}
		if want := []string{"exit", "raised", "streamed", "late"}; !slices.Equal(got, want) {
			t.Errorf("got failures %q, want %q", got, want)
		}
		s.Close()
		s = open(t, dir)
	}
}

// TestTyped: commands that people type are recorded with their caller and the files that they changed, without secrets.
func TestTyped(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	s.Typed(&op.Call{Via: "rest", Subject: "anna"}, activity.Typed{Session: "s", Command: "echo server-token-1 | false",
		Output: "nothing", ExitCode: 1, Began: time.Now()})
	got := get(t, s, activity.GetIn{Search: "echo"})
	if len(got) != 1 || got[0].Op != activity.TypedOp || got[0].Kind != "shell" || got[0].Caller != "anna" || got[0].Via != "page" ||
		!got[0].Failed || !strings.Contains(got[0].Output, `"exit_code":1`) || strings.Contains(got[0].Input, "server-token-1") {
		t.Errorf("got %+v, want the failed command of anna without the secret", got)
	}
}

// plot is the output of a cell.
type plot struct {
	Status string `json:"status"`
	png    []byte
}

func (p plot) Picture() []byte { return p.png }

// TestPlots: the plot of a cell is the picture of its entry. A hostile one is dropped.
func TestPlots(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewRGBA(image.Rect(0, 0, 30, 20))); err != nil {
		t.Fatal(err)
	}
	huge := slices.Clone(small.Bytes()) // claims more pixels than memory has
	binary.BigEndian.PutUint32(huge[16:], 1<<30)
	binary.BigEndian.PutUint32(huge[20:], 1<<30)
	binary.BigEndian.PutUint32(huge[29:], crc32.ChecksumIEEE(huge[12:29]))
	for name, b := range map[string][]byte{"small": small.Bytes(), "huge": huge, "large": make([]byte, 3<<20),
		"text": []byte("<svg>"), "none": nil} {
		call(t, s, op.New(op.Spec{Name: name, Route: "POST /x", Tag: "code", Doc: "X."},
			func(context.Context, op.None) (plot, error) { return plot{"ok", b}, nil }), &op.None{})
	}
	for _, e := range get(t, s, activity.GetIn{}) {
		if e.Picture != (e.Op == "small") {
			t.Errorf("%s: got picture %v, want one only of the small plot", e.Op, e.Picture)
		}
		if !e.Picture {
			continue
		}
		blob, err := s.Picture(t.Context(), activity.PictureIn{ID: e.ID})
		if err != nil {
			t.Fatal(err)
		}
		img, err := jpeg.Decode(blob.Body)
		blob.Body.Close()
		if err != nil || img.Bounds().Dx() != 30 {
			t.Errorf("got %v, %v, want a picture of 30 pixels", img, err)
		}
	}
}
