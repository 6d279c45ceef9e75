package skill

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newService(t *testing.T, c Config) *Service {
	t.Helper()
	home := t.TempDir()
	c.Home, c.Workspace = home, home
	if c.State == "" {
		c.State = filepath.Join(home, "state")
	}
	c.Runner = proc.New(proc.Config{Env: append([]string{"HOME=" + home}, os.Environ()...)})
	s := New(c)
	t.Cleanup(func() { s.Close(); s.Close(); c.Runner.Close() })
	return s
}

// write writes files below a folder, given as pairs of name and content.
func write(t *testing.T, dir string, pairs ...string) string {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		path := filepath.Join(dir, pairs[i])
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(pairs[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func packZip(t *testing.T, pairs ...string) *op.File {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := 0; i < len(pairs); i += 2 {
		w, err := z.Create(pairs[i])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(pairs[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return &op.File{Name: "bundle.zip", Reader: &b}
}

func names(list []Metadata) (out []string) {
	for _, m := range list {
		out = append(out, m.Name)
	}
	slices.Sort(out)
	return out
}

const published = `---
name: pdf-forms
description: Fill in PDF forms. Use when a form is mentioned.
license: Apache-2.0
allowed-tools: [bash, python]
metadata:
  version: 1.5
  1: number as a key
---

# PDF forms

Run scripts/fill.py.
`

func TestFolderOfAPublishedSkillLoadsUnmodified(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	dir := write(t, filepath.Join(t.TempDir(), "pdf"), "SKILL.md", published, "scripts/fill.py", "print()", "assets/a.bin", "\x00\xff")
	out, err := s.Register(t.Context(), RegisterIn{Path: &dir})
	if err != nil || out.Count != 1 {
		t.Fatalf("got %+v and error %v, want one skill", out, err)
	}
	if _, err := json.Marshal(out); err != nil {
		t.Errorf("encode the response: %v, want no error", err)
	}
	m := out.Registered[0]
	if m.Name != "pdf-forms" || m.Path != dir || m.Metadata["license"] != "Apache-2.0" || len(m.Commands) != 0 {
		t.Errorf("got %+v, want pdf-forms with its front matter", m)
	}
	c, err := s.Content(t.Context(), NameIn{"pdf-forms"})
	if err != nil || c.Content != "# PDF forms\n\nRun scripts/fill.py.\n" {
		t.Errorf("got %q and error %v, want the text without front matter", c.Content, err)
	}
	if got, err := s.Delete(t.Context(), NameIn{"pdf-forms"}); err != nil || got.Name != "pdf-forms" {
		t.Errorf("delete: got %+v and error %v, want the deleted skill", got, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "SKILL.md")); err != nil {
		t.Errorf("files after delete: got %v, want them kept", err)
	}
	for _, call := range []func() error{
		func() error { _, err := s.Content(t.Context(), NameIn{"pdf-forms"}); return err },
		func() error { _, err := s.Delete(t.Context(), NameIn{"pdf-forms"}); return err },
	} {
		if e, ok := op.AsError(call()); !ok || e.Code != op.NotFound {
			t.Errorf("unknown skill: got %v, want not_found", e)
		}
	}
}

func TestFolderOfFolders(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	dir := write(t, t.TempDir(),
		"one/SKILL.md", "---\nname: one\n---\n1", "group/two/skill.md", "no front matter",
		"three/SKILL.md", "---\nname: [broken\n---\n", "twin/SKILL.md", "---\nname: one\n---\n",
		"node_modules/x/SKILL.md", "---\nname: hidden\n---\n", ".git/SKILL.md", "x", "README.md", "x")
	ctx := op.WithCall(t.Context(), &op.Call{})
	out, err := s.Register(ctx, RegisterIn{Path: &dir})
	if d := cmp.Diff([]string{"one", "two"}, names(out.Registered)); err != nil || d != "" {
		t.Fatalf("got error %v and %s, want one and two", err, d)
	}
	for _, want := range []string{"three", "not valid YAML", `"one" is already used`} {
		if hint := op.CallOf(ctx).Hint; !strings.Contains(hint, want) {
			t.Errorf("hint: got %q, want %q in it", hint, want)
		}
	}
	list, err := s.List(t.Context(), ListIn{Names: new("two, absent")})
	if d := cmp.Diff([]string{"two"}, names(list.Skills)); err != nil || d != "" {
		t.Errorf("got error %v and %s, want two alone", err, d)
	}
	cleared, err := s.Clear(t.Context(), op.None{})
	if err != nil || cleared.Count != 2 || len(s.All()) != 0 {
		t.Errorf("clear: got %+v and error %v, want both removed", cleared, err)
	}
}

func TestFaultsAreClear(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	for name, c := range map[string]struct{ text, want string }{
		"invalid yaml":    {"---\nname: a: b\n---\n", "not valid YAML"},
		"not closed":      {"---\nname: a\n", "no closing ---"},
		"a list":          {"---\n- a\n---\n", "must be a list of fields"},
		"name is a list":  {"---\nname: [a]\n---\n", "must be text"},
		"name climbs":     {"---\nname: ../../etc\n---\n", "invalid skill name"},
		"name is dots":    {"---\nname: ..\n---\n", "invalid skill name"},
		"name is empty":   {"---\nname: ''\n---\n", "invalid skill name"},
		"name of control": {"---\nname: \"a\\nb\"\n---\n", "invalid skill name"},
		"name too long":   {"---\nname: " + strings.Repeat("x", 200) + "\n---\n", "invalid skill name"},
		"billion laughs": {"---\na: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c " +
			"[*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\n" +
			"e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n---\n", "front matter"},
	} {
		dir := write(t, t.TempDir(), "SKILL.md", c.text)
		_, err := s.Register(t.Context(), RegisterIn{Path: &dir})
		if e, ok := op.AsError(err); !ok || e.Code != op.Invalid || !strings.Contains(e.Msg, c.want) || !strings.Contains(e.Msg, dir) {
			t.Errorf("%s: got %v, want invalid with %q and the path", name, err, c.want)
		}
	}
	empty := t.TempDir()
	for name, in := range map[string]RegisterIn{"nothing": {}, "no skill": {Path: &empty},
		"no folder": {Path: new("/does/not/exist")}, "a file": {Path: new("/etc/passwd")}} {
		if _, err := s.Register(t.Context(), in); err == nil {
			t.Errorf("%s: got no error, want one", name)
		} else if _, ok := op.AsError(err); !ok {
			t.Errorf("%s: got %v, want an error for the caller", name, err)
		}
	}
	if list := s.All(); len(list) != 0 {
		t.Errorf("got %+v, want nothing registered", list)
	}
}

func TestZip(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	dest := filepath.Join(t.TempDir(), "skills")
	out, err := s.Register(t.Context(), RegisterIn{File: packZip(t, "SKILL.md", published, "scripts/fill.py", "x"),
		Path: &dest, Name: new("forms")})
	if err != nil || out.Count != 1 || out.Registered[0].Path != filepath.Join(dest, "forms") {
		t.Fatalf("got %+v and error %v, want the skill in %s/forms", out, err, dest)
	}
	out, err = s.Register(t.Context(), RegisterIn{File: packZip(t, "a/SKILL.md", "---\nname: a\n---\n", "b/SKILL.md",
		"---\nname: b\n---\n"), Path: &dest})
	if d := cmp.Diff([]string{"a", "b", "pdf-forms"}, names(s.All())); err != nil || d != "" {
		t.Errorf("two in one: got error %v, %+v and %s, want all three registered", err, out, d)
	}
	out, err = s.Register(t.Context(), RegisterIn{File: packZip(t, "SKILL.md", "plain")})
	if err != nil || out.Count != 1 || out.Registered[0].Name != "bundle" {
		t.Errorf("without a path: got %+v and error %v, want the skill bundle", out, err)
	}
	if left, _ := filepath.Glob(filepath.Join(s.cfg.State, "skill-*")); len(left) != 0 {
		t.Errorf("got %q, want no temporary folder left", left)
	}
}

// An archive registers only its own skills: neither deleted ones that an earlier archive with the
// same name left, nor does it change those that are still registered.
func TestZipWithTheNameOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	register := func(in RegisterIn, want ...string) []Metadata {
		t.Helper()
		out, err := s.Register(t.Context(), in)
		if d := cmp.Diff(want, names(out.Registered)); err != nil || d != "" {
			t.Errorf("got error %v and %s, want %q registered", err, d, want)
		}
		return out.Registered
	}
	skill := func(name string) string { return "---\nname: " + name + "\n---\n" + name }
	first := register(RegisterIn{File: packZip(t, "SKILL.md", skill("old"), "left.txt", "x")}, "old")[0].Path
	if _, err := s.Delete(t.Context(), NameIn{"old"}); err != nil {
		t.Fatal(err)
	}
	register(RegisterIn{File: packZip(t, "new/SKILL.md", skill("new"))}, "new")
	if _, err := os.Stat(filepath.Join(first, "left.txt")); !os.IsNotExist(err) {
		t.Errorf("file of the deleted skill: got %v, want it removed", err)
	}
	register(RegisterIn{File: packZip(t, "SKILL.md", skill("other"))}, "other")
	register(RegisterIn{File: packZip(t, "new/SKILL.md", skill("new"), "more/SKILL.md", skill("more"))}, "more", "new")
	if d := cmp.Diff([]string{"more", "new", "other"}, names(s.All())); d != "" {
		t.Error(d)
	}
	for _, name := range names(s.All()) {
		if c, err := s.Content(t.Context(), NameIn{name}); err != nil || c.Content != name {
			t.Errorf("content of %s: got %q and error %v", name, c.Content, err)
		}
	}
	dir := write(t, t.TempDir(), "SKILL.md", skill("mine"), "notes.txt", "kept")
	register(RegisterIn{File: packZip(t, "b/SKILL.md", skill("b")), Path: &dir}, "b")
	if _, err := os.Stat(filepath.Join(dir, "notes.txt")); err != nil {
		t.Errorf("file in the folder of the caller: %v, want it kept", err)
	}
}

func TestHostileZipLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{Archive: archive.Limits{Entries: 100, Bytes: 1000, Packed: 1 << 20}})
	base := t.TempDir()
	for name, c := range map[string]struct {
		file *op.File
		name *string
	}{
		"escapes":          {packZip(t, "SKILL.md", "x", "../../evil", "x"), nil},
		"absolute":         {packZip(t, "SKILL.md", "x", "/tmp/evil-skill-test", "x"), nil},
		"no skill":         {packZip(t, "README.md", "x"), nil},
		"bad front matter": {packZip(t, "SKILL.md", "---\n: :\n---"), nil},
		"no zip":           {&op.File{Name: "x.zip", Reader: strings.NewReader("garbage")}, nil},
		"name climbs":      {packZip(t, "SKILL.md", "x"), new("../up")},
		"name has slash":   {packZip(t, "SKILL.md", "x"), new("a/b")},
		"bomb":             {packZip(t, "SKILL.md", "x", "zeros", strings.Repeat("\x00", 1<<20)), nil},
	} {
		dest := filepath.Join(base, "dest")
		_, err := s.Register(t.Context(), RegisterIn{File: c.file, Path: &dest, Name: c.name})
		if e, ok := op.AsError(err); !ok || e.Code == op.Internal {
			t.Errorf("%s: got %v, want an error for the caller", name, err)
		}
		if found, _ := filepath.Glob(base + "/*"); len(found) != 0 {
			t.Errorf("%s: got %q, want nothing left behind", name, found)
			os.RemoveAll(dest)
		}
	}
	if _, err := os.Stat("/tmp/evil-skill-test"); err == nil {
		t.Error("got a file in /tmp, want none")
	}
}

// pip and npm are real, and install packages from this machine.
func TestDependenciesAreInstalledAndReported(t *testing.T) {
	testenv.Need(t, "python3", "npm")
	s := newService(t, Config{})
	dir := write(t, t.TempDir(),
		"good/SKILL.md", "---\nname: good\n---\n", "good/package.json",
		`{"name":"good","version":"1.0.0","dependencies":{"local-thing":"file:./thing"}}`,
		"good/thing/package.json", `{"name":"local-thing","version":"1.0.0"}`,
		"bad/SKILL.md", "---\nname: bad\n---\n", "bad/requirements.txt", "./does-not-exist\n")
	ctx := op.WithCall(t.Context(), &op.Call{})
	out, err := s.Register(ctx, RegisterIn{Path: &dir})
	if err != nil || out.Count != 2 {
		t.Fatalf("got %+v and error %v, want both registered", out, err)
	}
	for _, m := range out.Registered {
		if len(m.Commands) != 1 || m.Commands[0].Success != (m.Name == "good") || m.Commands[0].Stdout == nil || m.Commands[0].Stderr == nil {
			t.Errorf("%s: got %+v, want one command with its output", m.Name, m.Commands)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "good/node_modules/local-thing/package.json")); err != nil {
		t.Errorf("npm: %v, want the package installed", err)
	}
	if !strings.Contains(op.CallOf(ctx).Hint, "dependencies of bad are not installed") {
		t.Errorf("got hint %q, want the failure in it", op.CallOf(ctx).Hint)
	}
	for _, m := range s.All() {
		if len(m.Commands) != 1 {
			t.Errorf("list: got %+v, want the command with it", m)
		}
	}
}

func TestInstallationIsLimitedInTime(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "npm")
	s := newService(t, Config{InstallTime: 1})
	dir := write(t, t.TempDir(), "SKILL.md", "x", "package.json", `{"name":"x","version":"1.0.0"}`)
	out, err := s.Register(t.Context(), RegisterIn{Path: &dir})
	if err != nil || len(out.Registered) != 1 {
		t.Fatalf("got %+v and error %v, want it registered", out, err)
	}
	if c := out.Registered[0].Commands[0]; c.Success || !strings.Contains(*c.Stderr, "timed out") {
		t.Errorf("got %+v, want a timeout", c)
	}
}

func TestSkillsSurviveARestartAndComeFromTheConfiguration(t *testing.T) {
	t.Parallel()
	state := t.TempDir()
	one := write(t, filepath.Join(t.TempDir(), "one"), "SKILL.md", "---\nname: one\n---\n")
	gone := write(t, filepath.Join(t.TempDir(), "gone"), "SKILL.md", "x")
	many := write(t, t.TempDir(), "two/SKILL.md", "2", "three/SKILL.md", "3")
	first := newService(t, Config{State: state})
	for _, dir := range []string{one, gone} {
		if _, err := first.Register(t.Context(), RegisterIn{Path: &dir}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.RemoveAll(gone); err != nil {
		t.Fatal(err)
	}
	second := newService(t, Config{State: state, Paths: []string{many, "/does/not/exist"}})
	second.Begin(t.Context())
	if d := cmp.Diff([]string{"one", "three", "two"}, names(second.All())); d != "" {
		t.Error(d)
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte(published))
	f.Add([]byte("---\n---\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := parseDocument(b)
		if err != nil {
			return
		}
		if _, err := json.Marshal(doc.front); err != nil {
			t.Errorf("front matter %v of %q: %v, want it to be JSON", doc.front, b, err)
		}
	})
}
