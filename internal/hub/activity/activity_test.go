package activity

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func box(id, owner string) sandbox.Sandbox {
	return sandbox.Sandbox{ID: id, Spec: sandbox.Spec{Name: "n", Owner: owner}}
}

func entries(from, to int, more string) (out []json.RawMessage) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Appendf(nil, `{"id": %d, "time": "t%d", "input": %q}`, i, i, more))
	}
	return out
}

// TestStore: saving again adds only new entries. A record is limited in size for any input, and old records expire.
func TestStore(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := New(Config{Dir: t.TempDir() + "/records", Keep: time.Hour, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }})
	ctx := op.WithCall(t.Context(), &op.Call{Subject: "anna"})
	get := func(id string) string {
		t.Helper()
		b, err := s.Get(ctx, IDIn{id})
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(b.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	s.Save(box("sb-1", "anna"), entries(0, 3, "x"), nil)
	s.Save(box("sb-1", "anna"), append(entries(1, 5, "x"), []byte(`{"id":1,"time":"rolled back"}`), []byte(`[1]`),
		[]byte(`{torn`), []byte(`"text"`), nil), nil)
	if got := get("sb-1"); strings.Count(got, "\n") != 6 || strings.Count(got, `"id":1,`) != 2 || strings.Contains(got, "torn") {
		t.Errorf("got %s, want each entry once", got)
	}
	s.Save(box("sb-many", "anna"), entries(0, 1200, "x"), nil)
	if got := get("sb-many"); strings.Count(got, "\n") != maxEntries || !strings.Contains(got, `"id":1199,`) {
		t.Errorf("got %d lines, want the latest %d", strings.Count(got, "\n"), maxEntries)
	}
	s.Save(box("sb-big", "anna"), entries(0, 50, strings.Repeat("<\n", 40<<10)), nil)
	if got := get("sb-big"); len(got) > maxBytes || !strings.Contains(got, `"id":49,`) {
		t.Errorf("got %d bytes, want at most %d with the latest entry", len(got), maxBytes)
	}
	for i := range maxOwned + 5 {
		now = now.Add(time.Second)
		s.Save(box(fmt.Sprintf("sb-x%d", i), "bert"), entries(0, 1, ""), nil)
	}
	if n := len(must(s.List(op.WithCall(t.Context(), &op.Call{Subject: "bert"}), caller.UserIn{}))); n != maxOwned {
		t.Errorf("got %d records of a tenant, want %d", n, maxOwned)
	}
	if n := len(must(s.List(ctx, caller.UserIn{}))); n != 3 {
		t.Errorf("got %d records of the other, want its 3", n)
	}
	if n := len(must(New(s.cfg).List(ctx, caller.UserIn{}))); n != 3 {
		t.Errorf("got %d records after a restart, want 3", n)
	}
	now = now.Add(2 * time.Hour)
	if _, err := s.Get(ctx, IDIn{"sb-1"}); err == nil {
		t.Error("got an expired record")
	}
	if n := len(must(s.List(ctx, caller.UserIn{}))); n != 0 {
		t.Errorf("got %d records, want none after they expired", n)
	}
	if left, err := os.ReadDir(s.cfg.Dir); err != nil || len(left) != 0 {
		t.Errorf("got %d files, %v, want none", len(left), err)
	}
}

// TestTotal: the records that were saved first are deleted if all together are too large.
func TestTotal(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := New(Config{Dir: t.TempDir() + "/records", Keep: time.Hour, MaxTotal: 100 << 10, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now }})
	for i := range 4 {
		now = now.Add(time.Second)
		s.Save(box(fmt.Sprintf("sb-%d", i), "anna"), entries(0, 1, strings.Repeat("x", 40<<10)), nil)
	}
	list := must(s.List(op.WithCall(t.Context(), &op.Call{Subject: "anna"}), caller.UserIn{}))
	if len(list) != 2 || list[0].ID != "sb-3" || list[1].ID != "sb-2" {
		t.Errorf("got %+v, want the two latest", list)
	}
}

// TestPictures: a record has the latest valid pictures. Only its owner can read them, and they are deleted with it.
func TestPictures(t *testing.T) {
	t.Parallel()
	s := New(Config{Dir: t.TempDir() + "/records", Keep: time.Hour, Log: slog.New(slog.DiscardHandler)})
	anna := op.WithCall(t.Context(), &op.Call{Subject: "anna"})
	pictures := map[int64][]byte{
		-1: []byte("<svg onload=alert(1)>"), -2: []byte("\xff\xd8\xff" + strings.Repeat("x", maxPicture)), -3: nil,
	}
	for i := range int64(maxPictures + 10) {
		pictures[i] = fmt.Appendf(nil, "\xff\xd8\xff picture %d", i)
	}
	s.Save(box("sb-1", "anna"), entries(0, 3, "x"), pictures)
	for entry, want := range map[int64]bool{-1: false, -2: false, -3: false, 0: false, 9: false, 10: true,
		maxPictures + 9: true, maxPictures + 10: false} {
		b, err := s.Picture(anna, PictureIn{"sb-1", entry})
		if (err == nil) != want {
			t.Errorf("picture %d: got %v, want it present: %v", entry, err, want)
		}
		if err == nil && (b.Type != "image/jpeg" || b.Header["X-Content-Type-Options"] != "nosniff" ||
			!strings.Contains(b.Header["Content-Security-Policy"], "sandbox")) {
			t.Errorf("picture %d: got the type %q and %v", entry, b.Type, b.Header)
		}
	}
	for _, who := range []*op.Call{{Subject: "bert"}, {Subject: "anna", Share: &op.Share{}}} {
		if _, err := s.Picture(op.WithCall(t.Context(), who), PictureIn{"sb-1", 20}); err == nil {
			t.Errorf("%+v sees the picture of another owner", who)
		}
	}
	for _, id := range []string{"../records/sb-1", "sb-1.pictures", ""} {
		if _, err := s.Picture(anna, PictureIn{id, 20}); err == nil {
			t.Errorf("%q returns a picture", id)
		}
	}
	if _, err := s.Delete(anna, IDIn{"sb-1"}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.cfg.Dir); err != nil || len(left) != 0 {
		t.Errorf("got %d files, %v, want none", len(left), err)
	}
}

func must(list []Head, err error) []Head {
	if err != nil {
		panic(err)
	}
	return list
}
