package verb

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/recipe/dockerfile"
)

// TestBuildSecrets: a secret comes from a file, a variable, or the variable or file with its name.
func TestBuildSecrets(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("TOKEN", "from the environment")
	for name, text := range map[string]string{"file": "from a file", "binary": "\xff"} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := buildSecrets([]string{"id=a,src=file", "id=b,env=TOKEN", "id=TOKEN", "id=file", "type=file,id=c,source=" +
		filepath.Join(dir, "file")})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"a": "from a file", "b": "from the environment", "TOKEN": "from the environment",
		"file": "from a file", "c": "from a file"} {
		if got[id] != want {
			t.Errorf("%s: got %q, want %q", id, got[id], want)
		}
	}
	for _, spec := range []string{"", "a", "src=file", "id=a,src=file,env=TOKEN", "id=a,env=NOT_SET", "id=none", "id=a,src=none",
		"id=binary", "id=a,x=y"} {
		if got, err := buildSecrets([]string{spec}); err == nil {
			t.Errorf("%q: got %v, want an error", spec, got)
		}
	}
	args, err := buildArgs([]string{"A=b=c", "TOKEN", "NOT_SET", "EMPTY="})
	if _, set := args["NOT_SET"]; err != nil || set || args["A"] != "b=c" || args["TOKEN"] != "from the environment" || len(args) != 3 {
		t.Errorf("build arguments: got %v, %v", args, err)
	}
	if _, err := buildArgs([]string{"=x"}); err == nil {
		t.Error("a build argument without a name was accepted")
	}
}

func TestBuildNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ flags, name, tags string }{
		{"web", "web", ""}, {"web:v1 web:v2 web", "web:v1", "v2 default"}, {"", "my-app", ""}, {"web other", "", ""},
	} {
		o := buildOptions{names: strings.Fields(c.flags)}
		name, err := o.name(filepath.Join("work", "My_App"))
		if name != c.name || strings.Join(o.options.Tags, " ") != c.tags || (err == nil) != (c.name != "") {
			t.Errorf("%q: got %s, %v, %v", c.flags, name, o.options.Tags, err)
		}
	}
}

// TestBuildCommands: flags replace the start and ready command of the file, and a health check stays with its command.
func TestBuildCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ start, ready, want string }{
		{"", "", "serve|check"}, {"other", "", "other|"}, {"", "probe", "serve|probe"}, {"other", "probe", "other|probe"},
	} {
		r, err := dockerfile.Parse([]byte("FROM a\nCMD serve\nHEALTHCHECK CMD check\n"), dockerfile.Options{})
		if err != nil {
			t.Fatal(err)
		}
		o := buildOptions{options: client.BuildOptions{Start: c.start, Ready: c.ready, Force: true}}
		if err := o.setRecipe(r); err != nil {
			t.Fatal(err)
		}
		if got := o.options.Start + "|" + o.options.Ready; got != c.want || o.options.Base.Image != "a" || !o.options.Force {
			t.Errorf("%+v: got %s, %+v", c, got, o.options)
		}
	}
}

// TestIgnored: the file for one Dockerfile takes precedence.
func TestIgnored(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "x.Dockerfile")
	match := func(name string) bool {
		t.Helper()
		p, err := ignored(file, dir)
		if err != nil {
			t.Fatal(err)
		}
		return p.Match(name)
	}
	if match("a") {
		t.Error("a file is ignored without patterns")
	}
	for _, c := range [][2]string{{".dockerignore", "a"}, {"x.Dockerfile.dockerignore", "b"}} {
		if err := os.WriteFile(filepath.Join(dir, c[0]), []byte(c[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		if !match(c[1]) {
			t.Errorf("%s has no effect", c[0])
		}
	}
	if match("a") {
		t.Error(".dockerignore is used in addition to the file for the Dockerfile")
	}
	if err := os.WriteFile(file+".dockerignore", []byte("[x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ignored(file, dir); err == nil {
		t.Error("an invalid pattern was accepted")
	}
	// A hostile project cannot fill the memory of the machine.
	endless := filepath.Join(dir, "Dockerfile")
	for _, name := range []string{endless, endless + ".dockerignore"} {
		if err := os.Symlink("/dev/zero", name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ignored(endless, dir); err == nil {
		t.Error("endless patterns were accepted")
	}
	if _, text, err := (builder{}).dockerfile("", dir); err != nil || len(text) > maxDockerfile {
		t.Errorf("got %d bytes, %v, want a limit", len(text), err)
	}
}
