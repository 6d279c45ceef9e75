package arch

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestHouse checks this repository.
func TestHouse(t *testing.T) {
	faults, err := Check(os.DirFS("../../.."), House)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		t.Error(f)
	}
}

// toy is a small house in which every rule can be broken.
const toy = `
# nouns
op:

# mechanisms +
proc: op
tenant: op

# mechanisms of a sandbox
guest/internal/x11:

# services
guest/bash: op proc
guest/shell: op proc

# hub
hub: op tenant

# surfaces
surface/rest: op

# mains
/cmd/aio: surface/rest

# tests
dev/testenv:
`

// sound is a tree that keeps the rules of toy.
func sound() map[string]string {
	return map[string]string{
		"internal/op/op.go": "package op",
		"internal/proc/proc.go": `package proc; import (_ "cove/internal/op"; _ "golang.org/x/sys/unix"; "os/exec"; "syscall")
			var _, _, _ = exec.Command, syscall.ForkExec, syscall.Exec`,
		"internal/tenant/tenant.go": `package tenant; import _ "cove/internal/op"`,
		"internal/guest/internal/x11/x11.go": `package x11; type Conn struct{}
			func (Conn) A() {}; func (*Conn) B() {}; func (Conn) C() {}; func (Conn) D() {}`,
		"internal/guest/bash/bash.go":     `package bash; import (_ "cove/internal/op"; _ "cove/internal/proc")`,
		"internal/guest/shell/shell.go":   `package shell; import (_ "cove/internal/op"; _ "cove/internal/proc")`,
		"internal/hub/hub.go":             `package hub; import (_ "cove/internal/op"; _ "cove/internal/tenant")`,
		"internal/surface/rest/rest.go":   `package rest; import _ "cove/internal/op"`,
		"internal/dev/testenv/testenv.go": `package testenv; import "os"; var _ = os.Getenv`,
		"internal/hub/hub_test.go": `package hub_test
			import (_ "cove/internal/guest/shell"; _ "cove/internal/hub"; _ "cove/internal/op"; _ "cove/internal/dev/testenv")`,
		"cmd/aio/main.go": `package main; import _ "cove/internal/surface/rest"`,
	}
}

// rules are those of the house, with small limits and a table of packages. Among the
// packages that may start processes, only proc is in the small house.
func rules(packages string) Rules {
	r := House
	r.Module, r.Packages = "cove/", packages
	r.Tests = "hub: guest/shell"
	r.Calls, r.Libraries = slices.Clone(r.Calls), slices.Clone(r.Libraries)
	for i := range r.Calls {
		r.Calls[i].By = onlyProc(r.Calls[i].By)
	}
	for i := range r.Libraries {
		r.Libraries[i].By, r.Libraries[i].Tests = onlyProc(r.Libraries[i].By), nil
	}
	r.Limits = maps.Clone(r.Limits)
	for rule, most := range map[string]int{"package-size": 40, "main-size": 10, "function-size": 8, "method-count": 3} {
		l := r.Limits[rule]
		l.Max = most
		r.Limits[rule] = l
	}
	r.Exceptions, r.MaxEqual, r.Words = "", 4, words
	return r
}

func onlyProc(by []string) []string {
	if slices.Contains(by, "internal/system/proc") {
		return []string{"internal/proc"}
	}
	return nil
}

func treeOf(files map[string]string) fs.FS {
	tree := fstest.MapFS{}
	for name, text := range files {
		if path.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(text, "//") {
			text = "// Package x is documented.\n" + text
		}
		tree[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return tree
}

func check(t *testing.T, files map[string]string, r Rules) []Fault {
	t.Helper()
	faults, err := Check(treeOf(files), r)
	if err != nil {
		t.Fatal(err)
	}
	return faults
}

func TestSoundTreePasses(t *testing.T) {
	if got := check(t, sound(), rules(toy)); len(got) > 0 {
		t.Errorf("got faults %q, want none", got)
	}
}

// long is the end of a function that is too long for the small house.
var long = strings.Repeat("\n", 9) + "}"

const unix = `"golang.org/x/sys/unix"`

// use returns a Go file that imports a package and uses something of it.
func use(spec, value string) string { return "package x; import " + spec + "; var _ = " + value }

// badTrees are files that break one rule each when they are added to a sound tree.
var badTrees = []struct {
	rule, name, file, text, want string
}{
	{"table", "a folder named bin below the root", "internal/hub/bin/bad.go",
		"package bin", "internal/hub/bin is not in the table"},
	{"imports", "a surface knows a service", "internal/surface/rest/bad.go",
		`package rest; import _ "cove/internal/guest/bash"`, "imports internal/guest/bash"},
	{"imports", "a service of a sandbox knows tenants", "internal/guest/bash/bad.go",
		`package bash; import _ "cove/internal/tenant"`, "imports internal/tenant"},
	{"imports", "siblings", "internal/guest/bash/bad.go",
		`package bash; import _ "cove/internal/guest/shell"`, "imports internal/guest/shell"},
	{"imports", "upwards", "internal/op/bad.go", `package op; import _ "cove/internal/proc"`, "imports internal/proc"},
	{"table", "unlisted package", "internal/misc/misc.go", "package misc", "internal/misc is not in the table"},
	{"imports", "import of an unlisted package", "internal/hub/bad.go",
		`package hub; import _ "cove/internal/misc"`, "imports internal/misc"},
	{"library", "os/exec", "internal/guest/bash/bad.go", `package bash; import _ "os/exec"`, "imports os/exec"},
	{"library", "the MCP library in the hub", "internal/hub/bad.go",
		`package hub; import _ "github.com/modelcontextprotocol/go-sdk/mcp"`, "go-sdk/mcp"},
	{"library", "a library that is not listed", "internal/hub/bad.go", `package hub; import _ "github.com/pkg/errors"`, "does not list it"},
	{"library", "a library in a test", "internal/hub/bad_test.go", `package hub; import _ "github.com/moby/moby/client"`, "moby/client"},
	{"test-imports", "a test of the hub knows a service", "internal/hub/bad_test.go", `package hub; import _ "cove/internal/guest/bash"`,
		"imports internal/guest/bash"},
	{"library", "cgo", "internal/hub/bad.go", `package hub; import "C"`, "without cgo"},
	{"process", "syscall under another name", "internal/guest/bash/bad.go", use(`sys "syscall"`, "sys.ForkExec"), "uses syscall.ForkExec"},
	{"process", "os.StartProcess", "internal/hub/bad.go", use(`"os"`, "os.StartProcess"), "uses os.StartProcess"},
	{"process", "syscall.StartProcess", "internal/proc/bad.go", use(`"syscall"`, "syscall.StartProcess"), "uses syscall.StartProcess"},
	{"process", "the number of execve", "internal/hub/bad.go", use(`"syscall"`, "syscall.SYS_EXECVE"), "uses syscall.SYS_EXECVE"},
	{"process", "the number of execveat", "internal/proc/bad.go", use(unix, "unix.SYS_EXECVEAT"), "unix.SYS_EXECVEAT"},
	{"process", "the number of clone", "internal/proc/bad.go", use(unix, "unix.SYS_CLONE"), "unix.SYS_CLONE"},
	{"raw-syscall", "a system call by number", "internal/proc/bad.go", use(`"syscall"`, "syscall.RawSyscall6"), "syscall.RawSyscall6"},
	{"environment", "os.Environ", "internal/guest/bash/bad.go", use(`"os"`, "os.Environ"), "uses os.Environ"},
	{"environment", "os.ExpandEnv", "internal/proc/bad.go", use(`"os"`, "os.ExpandEnv"), "uses os.ExpandEnv"},
	{"environment", "unix.Getenv", "internal/proc/bad.go", use(unix, "unix.Getenv"), "unix.Getenv"},
	{"environment", "proxies", "internal/hub/bad.go", use(`"net/http"`, "http.ProxyFromEnvironment"), "uses net/http.ProxyFromEnvironment"},
	{"environment", "the default transport", "internal/hub/bad.go", use(`"net/http"`, "http.Client{Timeout: 1}"), "uses net/http.Client{}"},
	{"environment", "a client without a transport", "internal/hub/bad.go", use(`"net/http"`, "http.Client{Transport: nil}"),
		"uses net/http.Client{}"},
	{"environment", "the zero value of a client", "internal/hub/bad.go", `package hub; import "net/http"; var c http.Client`,
		"uses net/http.Client{}"},
	{"environment", "a new client", "internal/hub/bad.go", use(`"net/http"`, "new(http.Client)"), "uses net/http.Client{}"},
	{"environment", "a client in a field", "internal/hub/bad.go", `package hub; import "net/http"; type t struct{ http.Client }`,
		"uses net/http.Client{}"},
	{"environment", "TMPDIR", "internal/hub/bad.go", use(`"os"`, "os.TempDir()"), "uses os.TempDir"},
	{"environment", "TMPDIR for a file", "internal/hub/bad.go", use(`"os"`, `os.CreateTemp("", "x")`), "uses os.CreateTemp()"},
	{"environment", "TMPDIR for a folder", "internal/proc/bad.go", use(`"os"`, "os.MkdirTemp(``, `x`)"), "uses os.MkdirTemp()"},
	{"environment", "USER", "internal/hub/bad.go", use(`"os/user"`, "user.Current"), "uses os/user.Current"},
	{"dot-import", "dot import", "internal/proc/bad.go", `package proc; import . "os"; var _ = Getenv`, "dot import"},
	{"sleep", "time.Sleep", "internal/proc/bad.go", `package proc; import "time"; func f() { time.Sleep(1) }`, "sleeps is 1, at most 0"},
	{"sleep", "time.Sleep in a test", "internal/proc/bad_test.go", `package proc; import "time"; func f() { time.Sleep(1) }`, "sleeps is 1"},
	{"sleep", "time.After", "internal/proc/bad_test.go", `package proc; import "time"; func f() { <-time.After(1) }`, "sleeps is 1"},
	{"sleep", "time.Tick", "internal/proc/bad_test.go", `package proc; import "time"; func f() { for range time.Tick(1) {} }`, "sleeps is 1"},
	{"sleep", "a timer", "internal/proc/bad.go", `package proc; import "time"; func f() { <-time.NewTimer(1).C }`, "sleeps is 1"},
	{"sleep", "a stored channel", "internal/proc/bad.go", `package proc; import "time"; func f() { c := time.After(1); <-c }`, "sleeps is 2"},
	{"sleep", "a stored timer", "internal/proc/bad.go",
		`package proc; import "time"; func f() { t := time.NewTimer(1); <-t.C }`, "sleeps is 1"},
	{"sleep", "a loop over a ticker", "internal/proc/bad.go",
		`package proc; import "time"; func f() { t := time.NewTicker(1); for range t.C {} }`, "sleeps is 1"},
	{"sleep", "a ticker of another file", "internal/proc/bad.go", `package proc; func f() { for ; ; <-s.tick.C {} }`, "sleeps is 1"},
	{"sleep", "the channel of a timer", "internal/proc/bad.go",
		`package proc; import "time"; func f() { t := time.NewTimer(1); c := t.C; <-(c) }`, "sleeps is 1"},
	{"sleep", "a parameter", "internal/proc/bad.go", `package proc; import "time"; func f(c <-chan time.Time) { <-c }`, "sleeps is 1"},
	{"sleep", "a select of stored timers", "internal/proc/bad.go",
		`package proc; import "time"; func f(t *time.Timer) { select { case <-t.C: } }`, "sleeps is 1"},
	{"sleep", "a system call that sleeps", "internal/proc/bad_test.go", use(unix, "unix.Nanosleep"), "sleeps is 1"},
	{"sleep", "a select of timers", "internal/proc/bad.go",
		`package proc; import "time"; func f() { select { case <-time.After(1): case <-time.After(2): } }`, "sleeps is 2"},
	{"package-size", "a large package", "internal/hub/bad.go", "package hub\n" + strings.Repeat("\n", 50), "at most 40"},
	{"main-size", "a large main", "cmd/aio/bad.go", "package main\n" + strings.Repeat("\n", 12), "at most 10"},
	{"function-size", "a long function", "internal/hub/bad.go", "package hub\nfunc f() {" + long, "f: number of lines is 10, at most 8"},
	{"function-size", "a long function in a test", "internal/hub/bad_test.go", "package hub\nfunc f() {" + long, "f: number of lines is 10"},
	{"function-size", "a long method", "internal/hub/bad.go", "package hub\nfunc (t *T) f() {" + long, "T.f: number of lines is 10"},
	{"function-size", "a long literal", "internal/hub/bad.go", "package hub\nvar f = func() {" + long, "number of lines is 10"},
	{"method-count", "a type with too many methods", "internal/guest/bash/bad.go",
		`package bash; type T struct{}; func (T) A() {}; func (*T) B() {}; func (T) C() {}; func (T) D() {}`,
		"internal/guest/bash.T: number of methods is 4, at most 3"},
	{"line-length", "a long line", "internal/hub/bad.go", "package hub\n// " + strings.Repeat("ü", 138), "140 columns is 1"},
	{"line-length", "a long line in a module", "web/bad.mjs", "ok();\n// " + strings.Repeat("ü", 138), "140 columns is 1"},
	{"line-length", "long lines in a test of Python", "test/bad.py", strings.Repeat("# "+strings.Repeat("x", 139)+"\n", 2),
		"140 columns is 2"},
	{"line-length", "a long line in a script without extension", "scripts/bad", "#!/bin/sh\n: " + strings.Repeat("x", 139),
		"140 columns is 1"},
	{"line-length", "a long line in a Makefile", "Makefile", "a:\n\t" + strings.Repeat("x", 140), "140 columns is 1"},
	{"words", "a phrase of the list", "internal/hub/bad.go", "package hub\n// It starts a" + "new.", "again"},
	{"package-comment", "two package comments", "internal/hub/bad.go",
		"// Package hub again.\npackage hub", "2 package comments"},
}

// TestBadTreesAreRefused feeds the checks one broken rule at a time.
func TestBadTreesAreRefused(t *testing.T) {
	repeated := "func f() {\n\tone()\n\ttwo()\n\tthree()\n}\n"
	for _, c := range badTrees {
		t.Run(c.name, func(t *testing.T) {
			files := sound()
			files[c.file] = c.text
			if c.rule != "package-comment" && c.rule != "table" && path.Ext(c.file) == ".go" && !strings.HasSuffix(c.file, "_test.go") {
				files[c.file] = "//\n\n" + c.text // one comment in the package is enough
			}
			got := check(t, files, rules(toy))
			if len(got) != 1 || got[0].Rule != c.rule || !strings.Contains(got[0].Text, c.want) {
				t.Errorf("got faults %q, want one of rule %s that contains %q", got, c.rule, c.want)
			}
		})
	}
	t.Run("equal lines", func(t *testing.T) {
		files := sound()
		files["internal/hub/a.go"] = "//\n\npackage hub\n" + repeated
		files["internal/proc/b.go"] = "//\n\npackage proc\n\n// f differs by a comment only.\n" + repeated
		got := check(t, files, rules(toy))
		if len(got) != 1 || got[0].Rule != "repetition" {
			t.Errorf("got faults %q, want one of rule repetition", got)
		}
	})
}

// TestGoodTreesPass checks trees that resemble violations of a rule.
func TestGoodTreesPass(t *testing.T) {
	for _, c := range []struct{ name, file, text string }{
		{"build output", "bin/bad.go", `package bin; import _ "os/exec"`},
		{"a sleep in a bubble", "internal/proc/good_test.go",
			`package proc; import ("testing/synctest"; "time"); func f() { synctest.Wait(); time.Sleep(1) }`},
		{"a timeout", "internal/proc/good_test.go",
			`package proc; import "time"; func f(c chan int) { select { case <-c: case _ = <-time.After(1): } }`},
		{"a stored timer as a timeout", "internal/proc/good_test.go",
			`package proc; import "time"; func f(c chan int) { t := time.NewTimer(1); select { case <-c: case <-t.C: } }`},
		{"a line of 140 columns", "internal/proc/good_test.go", "package proc\n// " + strings.Repeat("ü", 137)},
		{"long lines of third parties", "web/vendor/a/a.js", strings.Repeat("x", 200)},
		{"long lines of a document", "docs/a.md", strings.Repeat("x", 200)},
		{"a long generated function", "internal/proc/good_test.go",
			"// Code generated by hand. DO NOT EDIT.\npackage proc\nfunc f() {" + long},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := sound()
			files[c.file] = c.text
			if got := check(t, files, rules(toy)); len(got) > 0 {
				t.Errorf("got faults %q, want none", got)
			}
		})
	}
}

// TestUnusedPermissionsAreRefused adds a permission that no file of the tree needs.
func TestUnusedPermissionsAreRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*Rules)
	}{
		{"calls", "internal/hub uses none of os.StartProcess", func(r *Rules) { r.Calls[0].By = []string{"internal/hub"} }},
		{"libraries", "internal/hub/... does not import C", func(r *Rules) { r.Libraries[0].By = []string{"internal/hub/..."} }},
		{"libraries in tests", "internal/hub does not import C", func(r *Rules) { r.Libraries[0].Tests = []string{"internal/hub"} }},
		{"tests", "tests of internal/hub need no permission for internal/guest/bash", func(r *Rules) { r.Tests += " guest/bash" }},
		{"what the package imports", "tests of internal/hub need no permission for internal/op", func(r *Rules) { r.Tests += " op" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rules(toy)
			c.change(&r)
			if got := check(t, sound(), r); len(got) != 1 || !strings.Contains(got[0].Text, c.want) {
				t.Errorf("got faults %q, want one that contains %q", got, c.want)
			}
		})
	}
}

// TestBadTablesAreRefused changes the table instead of the tree.
func TestBadTablesAreRefused(t *testing.T) {
	for _, c := range []struct{ name, old, new, want string }{
		{"siblings", "guest/shell: op proc", "guest/shell: op proc guest/bash", "siblings never import each other"},
		{"upwards", "op:\n", "op: proc\n", "is not above it in the table"},
		{"the two halves", "hub: op tenant", "hub: op tenant guest/bash", "sandbox and hub never meet"},
		{"twice", "dev/testenv:\n", "dev/testenv:\nop:\n", "is a duplicate"},
		{"allowed but unused", "surface/rest: op", "surface/rest: op proc", "does not import internal/proc"},
		{"no such package", "dev/testenv:\n", "dev/testenv:\nghost:\n", "there is no package internal/ghost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := check(t, sound(), rules(strings.Replace(toy, c.old, c.new, 1)))
			if !strings.Contains(fmt.Sprint(got), c.want) {
				t.Errorf("got faults %q, want one that contains %q", got, c.want)
			}
		})
	}
}
