package recipe

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var hash = strings.Repeat("0a", 32)

func TestValidate(t *testing.T) {
	good := []Step{{Kind: Run, Command: "make"}, {Kind: Run, Args: []string{"make"}}, {Kind: Env, Pairs: []string{"A", ""}},
		{Kind: Copy, Sources: []string{"/a", "b/*"}, To: "x", Files: hash, Mode: "0755"}, {Kind: Workdir, Path: "x"}, {Kind: User, User: "u:g"},
		{Kind: Copy, Sources: []string{"/a"}, To: "/", From: "a"}, {Kind: Run, Command: "x", Mounts: []Mount{{Kind: Cache, Target: "/c"},
			{Kind: Secret, ID: "npm.rc", Env: "NPM", Mode: "0400"}}, Vars: map[string]string{"V": "1"}}}
	stages := []Stage{{Name: "a"}, {Name: "b", Base: Base{Stage: "a"}}}
	if err := (Recipe{Stages: stages, Steps: good}).Validate(); err != nil {
		t.Error(err)
	}
	for name, r := range map[string]Recipe{
		"two bases":        {Base: Base{Image: "a", Template: "b"}},
		"too many steps":   {Steps: make([]Step, MaxSteps+1)},
		"unknown kind":     {Steps: []Step{{Kind: "exec"}}},
		"no command":       {Steps: []Step{{Kind: Run}}},
		"two commands":     {Steps: []Step{{Kind: Run, Command: "a", Args: []string{"a"}}}},
		"long step":        {Steps: []Step{{Kind: Run, Command: strings.Repeat("x", maxStep)}}},
		"long recipe":      {Start: strings.Repeat("x", maxAll+1)},
		"NUL":              {Steps: []Step{{Kind: Run, Command: "a\x00b"}}},
		"source above":     {Steps: []Step{{Kind: Copy, Sources: []string{"a/../../b"}, To: "x", Files: hash}}},
		"source is above":  {Steps: []Step{{Kind: Copy, Sources: []string{".."}, To: "x", Files: hash}}},
		"hash is a path":   {Steps: []Step{{Kind: Copy, Sources: []string{"a"}, To: "x", Files: "../../keys"}}},
		"mode":             {Steps: []Step{{Kind: Copy, Sources: []string{"a"}, To: "x", Files: hash, Mode: "u+x"}}},
		"odd env":          {Steps: []Step{{Kind: Env, Pairs: []string{"A"}}}},
		"bad name":         {Steps: []Step{{Kind: Env, Pairs: []string{"A=B", ""}}}},
		"option as a user": {Steps: []Step{{Kind: User, User: "-x"}}},
		"later stage":      {Stages: []Stage{{Name: "a", Base: Base{Stage: "b"}}, {Name: "b"}}},
		"own stage":        {Stages: []Stage{{Name: "a", Steps: []Step{{Kind: Copy, Sources: []string{"x"}, To: "/", From: "a"}}}}},
		"same stage twice": {Stages: []Stage{{Name: "a"}, {Name: "a"}}},
		"name of a stage":  {Stages: []Stage{{Name: "../a"}}},
		"too many stages":  {Stages: make([]Stage, maxStages+1)},
		"from and files": {Stages: []Stage{{Name: "a"}}, Steps: []Step{{Kind: Copy, Sources: []string{"x"}, To: "/", From: "a",
			Files: hash}}},
		"bad variable":     {Steps: []Step{{Kind: Run, Command: "a", Vars: map[string]string{"A=B": ""}}}},
		"bad mount":        {Steps: []Step{{Kind: Run, Command: "a", Mounts: []Mount{{Kind: "bind", Target: "/a"}}}}},
		"secret is a path": {Steps: []Step{{Kind: Run, Command: "a", Mounts: []Mount{{Kind: Secret, ID: "../a"}}}}},
		"hidden secret":    {Steps: []Step{{Kind: Run, Command: "a", Mounts: []Mount{{Kind: Secret, ID: "."}}}}},
		"cache nowhere":    {Steps: []Step{{Kind: Run, Command: "a", Mounts: []Mount{{Kind: Cache}}}}},
	} {
		if r.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestApply(t *testing.T) {
	c := Config{Env: map[string]string{"PATH": "/bin"}, Workdir: "/app"}
	for _, s := range []Step{
		{Kind: Env, Pairs: []string{"A", "x", "PATH", "/a:$PATH", "B", "$A"}}, {Kind: Env, Pairs: []string{"C", "${A}y"}},
		{Kind: Workdir, Path: "sub/$A"}, {Kind: User, User: "me"},
	} {
		var err error
		if c, err = c.Apply(s); err != nil {
			t.Fatal(err)
		}
	}
	want := Config{Env: map[string]string{"PATH": "/a:/bin", "A": "x", "B": "", "C": "xy"}, Workdir: "/app/sub/x", User: "me"}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
	if c, err := (Config{}).Apply(Step{Kind: Env, Pairs: []string{"PATH", "/a:$PATH"}}); c.Env["PATH"] != "/a:"+standardPath || err != nil {
		t.Errorf("got %v, %v, want the standard PATH in a base without one", c.Env, err)
	}
	for to, want := range map[string]string{"y": "/app/sub/x/y", "y/": "/app/sub/x/y/", ".": "/app/sub/x/", "/": "/", "/z/$A": "/z/x"} {
		if got := c.Resolve(Step{Kind: Copy, To: to}).To; got != want {
			t.Errorf("target %q: got %q, want %q", to, got, want)
		}
	}
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "x", "EMPTY": ""}
	for in, want := range map[string]string{
		"$A": "x", "${A}b": "xb", "$Ab": "", `\$A`: "$A", "${NO:-d}": "d", "${EMPTY:-d}": "d", "${A:-d}": "x", "${A:+d}": "d", "${NO:+d}": "",
		`\\$A`: `\x`, `\\\$A`: `\$A`, `a\\b`: `a\\b`, "${NO-d}": "d", "${EMPTY-d}": "", "${EMPTY+d}": "d", "${NO+d}": "",
		"${NO:-${A}y}z": "xyz",
		`${NO:-a\}b}`:   "a}b", "${NO:-${A}": "${NO:-${A}", "${A?e}": "${A?e}",
		"$": "$", "$1": "$1", "${": "${", "${A": "${A", "${1}": "${1}", "a$$A": "a$x",
	} {
		if got := Expand(in, env); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
}

// TestExpandLimits: variables that contain each other cannot fill the memory of the hub.
func TestExpandLimits(t *testing.T) {
	c := Config{Env: map[string]string{"A": "xx"}}
	var err error
	for i := 0; err == nil; i++ {
		if i > 100 {
			t.Fatal("variables can grow without a limit")
		}
		pairs := []string{"A", "$A$A"}
		for j := range 20 {
			pairs = append(pairs, "B"+strings.Repeat("x", j), "$A$A")
		}
		c, err = c.Apply(Step{Kind: Env, Pairs: pairs})
		if len(c.Env["A"]) > maxExpanded {
			t.Fatalf("a value has %d bytes", len(c.Env["A"]))
		}
	}
	Expand(strings.Repeat("${A:-", 10_000), nil)
	Expand(strings.Repeat("${A", 20_000), nil)
	Expand("$"+strings.Repeat("A", 60_000), nil)
}

func FuzzExpand(f *testing.F) {
	f.Add("${A:-b}$A\\$")
	f.Fuzz(func(t *testing.T, s string) { Expand(s, map[string]string{"A": "x"}) })
}

// TestCanonical: a key depends on what a step does and sees, and on nothing else.
func TestCanonical(t *testing.T) {
	c := Config{Env: map[string]string{"A": "x"}, Workdir: "/app", User: "me"}
	run := Step{Kind: Run, Command: "make", Text: "RUN make", Line: 3}
	key := func(s Step, c Config) []byte { return s.Canonical(c, false, "") }
	same := run
	same.Text, same.Line, same.Force = "RUN  make # comment", 9, true
	if !bytes.Equal(key(run, c), key(same, c)) {
		t.Error("the key depends on text, line or force")
	}
	for name, other := range map[string][]byte{
		"command": key(Step{Kind: Run, Command: "make x"}, c), "user": key(run, Config{Env: c.Env, Workdir: "/app"}),
		"env": key(run, Config{Workdir: "/app", User: "me"}), "login": run.Canonical(c, true, ""),
		"exec form": key(Step{Kind: Run, Args: []string{"make"}}, c),
	} {
		if bytes.Equal(key(run, c), other) {
			t.Errorf("the key does not depend on the %s", name)
		}
	}
	copied := Step{Kind: Copy, Sources: []string{"a"}, To: "b", Files: hash}
	same = Step{Kind: Copy, Sources: []string{"a"}, To: "/app/b", Files: "other"}
	if !bytes.Equal(copied.Canonical(c, false, "1"), same.Canonical(c, false, "1")) {
		t.Error("the key of a copy depends on the client's hash or the form of the destination")
	}
	if bytes.Equal(copied.Canonical(c, false, "1"), copied.Canonical(c, false, "2")) {
		t.Error("the key of a copy does not depend on the content")
	}
}
