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
		{Kind: Copy, Sources: []string{"/a", "b/*"}, To: "x", Files: hash, Mode: "0755"}, {Kind: Workdir, Path: "x"}, {Kind: User, User: "u:g"}}
	if err := (Recipe{Steps: good}).Validate(); err != nil {
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
		c = c.Apply(s)
	}
	want := Config{Env: map[string]string{"PATH": "/a:/bin", "A": "x", "B": "", "C": "xy"}, Workdir: "/app/sub/x", User: "me"}
	if d := cmp.Diff(want, c); d != "" {
		t.Error(d)
	}
	for to, want := range map[string]string{"y": "/app/sub/x/y", "y/": "/app/sub/x/y/", ".": "/app/sub/x/", "/": "/", "/z/$A": "/z/x"} {
		if got := c.Target(Step{To: to}); got != want {
			t.Errorf("target %q: got %q, want %q", to, got, want)
		}
	}
}

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "x", "EMPTY": ""}
	for in, want := range map[string]string{
		"$A": "x", "${A}b": "xb", "$Ab": "", `\$A`: "$A", "${NO:-d}": "d", "${EMPTY:-d}": "d", "${A:-d}": "x", "${A:+d}": "d", "${NO:+d}": "",
		"$": "$", "$1": "$1", "${": "${", "${A": "${A", "${1}": "${1}", "a$$A": "a$x",
	} {
		if got := Expand(in, env); got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
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
