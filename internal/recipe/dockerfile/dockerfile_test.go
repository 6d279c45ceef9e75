package dockerfile

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/recipe"
)

func parse(t testing.TB, text string, args ...string) Result {
	t.Helper()
	o := Options{Platform: "linux/amd64", Args: map[string]string{}}
	for _, a := range args {
		name, value, _ := strings.Cut(a, "=")
		o.Args[name] = value
	}
	r, err := Parse([]byte(text), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return r
}

// step returns the last step of a file, without what only people see.
func step(t testing.TB, text string, args ...string) recipe.Step {
	t.Helper()
	steps := parse(t, "FROM base\n"+text, args...).Recipe.Steps
	if len(steps) == 0 {
		t.Fatalf("no step in %q", text)
	}
	s := steps[len(steps)-1]
	s.Text, s.Line = "", 0
	return s
}

func TestRun(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]recipe.Step{
		"RUN make all":                             {Command: "make all"},
		"run make && \\\n  make test":              {Command: "make &&   make test"},
		"RUN a \\\n# comment\n\n  b":               {Command: "a   b"},
		`RUN echo \\` + "\nUSER x":                 {Kind: recipe.User, User: "x"},
		"RUN a \\  \nb":                            {Command: "a b"},
		`RUN ["make", "all"]`:                      {Args: []string{"make", "all"}},
		`RUN [ -f x ] && make`:                     {Command: "[ -f x ] && make"},
		`RUN echo "$A" '$B'`:                       {Command: `echo "$A" '$B'`},
		"SHELL [\"/bin/bash\", \"-ec\"]\nRUN make": {Args: []string{"/bin/bash", "-ec", "make"}},
		"RUN <<EOF\nset -e\nmake\nEOF":             {Command: "set -e\nmake\n"},
		"RUN <<-EOF\n\tmake\n\tEOF":                {Command: "make\n"},
		"RUN <<'EOF'\n# not a comment \\\nEOF":     {Command: "# not a comment \\\n"},
		"RUN python3 <<EOF > /x\nprint(1)\nEOF":    {Command: "python3 <<EOF > /x\nprint(1)\nEOF"},
		"RUN <<EOF\n#!/usr/bin/env python3\nprint(1)\nEOF": {
			Command: "exec /usr/bin/env python3 /dev/stdin <<'COVE_END'\nprint(1)\nCOVE_END\n",
		},
		"RUN cat <<A <<B\na\nA\nb\nB":                          {Command: "cat <<A <<B\na\nA\nb\nB"},
		"RUN echo $((1<<3)) <<<x":                              {Command: "echo $((1<<3)) <<<x"},
		"RUN --network=default make":                           {Command: "make"},
		"RUN --mount=type=cache,target=/c,sharing=locked make": {Command: "make", Mounts: []recipe.Mount{{Kind: "cache", Target: "/c"}}},
		"RUN --mount=type=cache,id=x,dst=/c,uid=5,mode=0700 a": {Command: "a", Mounts: []recipe.Mount{{Kind: "cache", ID: "x",
			Target: "/c", Owner: "5:0", Mode: "0700"}}},
		"RUN --mount=type=secret,id=x a": {Command: "a", Mounts: []recipe.Mount{{Kind: "secret", ID: "x"}}},
		"RUN --mount=type=secret,id=x,env=X,required a": {Command: "a", Mounts: []recipe.Mount{{Kind: "secret", ID: "x",
			Env: "X", Required: true}}},
		"RUN --mount=type=secret,target=/root/.npmrc,mode=0400 a": {Command: "a", Mounts: []recipe.Mount{{Kind: "secret", ID: ".npmrc",
			Target: "/root/.npmrc", Mode: "0400"}}},
		"ARG V=1\nRUN make":                {Command: "make", Vars: map[string]string{"V": "1"}},
		"ARG V=1\nENV V=2\nRUN make":       {Command: "make"},
		"ENV V=2\nARG V=1\nRUN make":       {Command: "make"},
		"ARG NO\nRUN make":                 {Command: "make"},
		"ARG TARGETARCH\nRUN make":         {Command: "make", Vars: map[string]string{"TARGETARCH": "amd64"}},
		"ARG A=1\nARG B=${A}-$A\nRUN make": {Command: "make", Vars: map[string]string{"A": "1", "B": "1-1"}},
	} {
		if want.Kind == "" {
			want.Kind = recipe.Run
		}
		if d := cmp.Diff(want, step(t, text)); d != "" {
			t.Errorf("%s: %s", text, d)
		}
	}
	if got := step(t, "ARG V=1\nRUN make", "V=2").Vars["V"]; got != "2" {
		t.Errorf("the value of --build-arg: got %q", got)
	}
}

// TestVariables: the words of a file and the variables of a step give the same text as in Docker.
func TestVariables(t *testing.T) {
	t.Parallel()
	env := map[string]string{"A": "x", "EMPTY": ""}
	for in, want := range map[string]string{
		`$A`: "x", `"$A"`: "x", `'$A'`: "$A", `\$A`: "$A", `"\$A"`: "$A", `${A}b`: "xb", `$A'b'`: "xb", `"a b"c`: "a bc", `a\ b`: "a b",
		`${NO:-d}`: "d", `${NO:-"a b"}`: "a b", `${NO:-${A}}`: "x", `${EMPTY:-d}`: "d", `${EMPTY-d}`: "", `${A:+y}`: "y", `${NO+y}`: "",
		`\\$A`: `\x`, `'\'$A`: `\x`, `'a\b'`: `a\b`, `"a\b"`: `a\b`, `a\b`: "ab", `${NO:-'}'}`: "}", `"${NO:-a}"`: "a", `$`: "$", `a$`: "a$",
		`$1`: "", `'a}b'`: "a}b", `a}b`: "a}b", `"it's"`: "it's", `'$'A`: "$A", `"\\$A"`: `\x`, `é"ü"`: "éü",
	} {
		out, _, err := unquote(in, '\\')
		if got := recipe.Expand(out, env); err != nil || got != want {
			t.Errorf("%s: got %q (%s), %v; want %q", in, got, out, err, want)
		}
	}
	if d := cmp.Diff([]string{"A", "x y", "B", "${A}z"}, step(t, `ENV A="x y" B=$A'z'`).Pairs); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"A", "x  y"}, step(t, "ENV A x  y").Pairs); d != "" {
		t.Error(d)
	}
	if got := parse(t, "# escape=`\nFROM base\nENV A=c:\\x `\n  B=`$x").Recipe.Steps[0].Pairs; !cmp.Equal(got, []string{"A", `c:\x`,
		"B", `\$x`}) {
		t.Errorf("got %q with another escape character", got)
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	r := parse(t,
		"FROM base\nARG D=src\nCOPY --chown=me:us --chmod=0755 --link $D/a b* /to/\nADD x.tar.gz /\nCOPY --parents --exclude=*.md a /p\n"+
			"COPY <<a.txt <<\"b.txt\" /t/\n$D\\$\na.txt\n$D\nb.txt\nCOPY [\"a b\", \"/c\"]\nCOPY . .\n")
	var got []string
	for _, x := range r.Contexts {
		s := x.Step
		got = append(got, strings.Join([]string{strings.Join(s.Sources, ","), s.To, s.Owner, s.Mode, strings.Join(x.Sources, ","),
			strings.Join(x.Exclude, ",")}, "|"))
		if s.Unpack != (s.To == "/") {
			t.Errorf("%v: unpack is %v", s.Sources, s.Unpack)
		}
	}
	want := []string{"src/a,b*|/to/|me:us|0755|src/a,b*|", "x.tar.gz|/|||x.tar.gz|", "/|/p/|||a|*.md", "a.txt,b.txt|/t/||||",
		"a b|/c|||a b|", "/|.|||/|"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]File{{"a.txt", "src$\n"}, {"b.txt", "$D\n"}}, r.Contexts[3].Inline); d != "" {
		t.Error(d)
	}
}

func TestStages(t *testing.T) {
	t.Parallel()
	const text = `ARG V=1.2
FROM golang:$V AS Build
RUN build
FROM unused AS other
RUN never
FROM build AS test
RUN test
FROM debian
COPY --from=build /out /bin/
COPY --from=0 /out2 /bin/
COPY --from=nginx:1 /etc/nginx /etc/nginx
COPY --from=nginx:1 /a /a
`
	names := func(r recipe.Recipe) string {
		var list []string
		for _, s := range r.Stages {
			list = append(list, s.Name+"="+s.Base.Image+s.Base.Stage)
		}
		return strings.Join(append(list, r.Base.Image+r.Base.Stage), " ")
	}
	r := parse(t, text, "V=2")
	if got := names(r.Recipe); got != "build=golang:2 0-image-2=nginx:1 debian" {
		t.Errorf("got %s", got)
	}
	if err := r.Recipe.Validate(); err != nil {
		t.Error(err)
	}
	for target, want := range map[string]string{"TEST": "build=golang:1.2 build", "0": "golang:1.2", "other": "unused"} {
		r, err := Parse([]byte(text), Options{Target: target})
		if err != nil || names(r.Recipe) != want {
			t.Errorf("target %s: got %s, %v; want %s", target, names(r.Recipe), err, want)
		}
	}
	for name, want := range map[string]recipe.Base{"environment://": {}, "environment://aio": {Environment: "aio"},
		"template://a:b": {Template: "a:b"}} {
		if got := parse(t, "FROM "+name).Recipe.Base; got != want {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string][2]string{
		`CMD ["a", "b c"]`: {},
		"EXPOSE 80/tcp 8000-8100\n" + `CMD ["a", "b c"]`:             {"a 'b c'"},
		"EXPOSE 80\nENTRYPOINT [\"e\"]\nCMD [\"a\"]":                 {"e a"},
		"EXPOSE 80\nENTRYPOINT [\"e\"]\nCMD a $B":                    {"e /bin/sh -c 'a $B'"},
		"EXPOSE 80\nENTRYPOINT e $X\nCMD [\"a\"]":                    {"e $X"},
		"HEALTHCHECK --interval=5s CMD curl -f localhost\nCMD serve": {"serve", "curl -f localhost"},
		"HEALTHCHECK CMD [\"curl\", \"a b\"]\nCMD serve":             {"serve", "curl 'a b'"},
		"HEALTHCHECK CMD x\nHEALTHCHECK NONE\nCMD serve":             {},
	} {
		r := parse(t, "FROM base\n"+text).Recipe
		if r.Start != want[0] || r.Ready != want[1] {
			t.Errorf("%s: got %q and %q, want %q", text, r.Start, r.Ready, want)
		}
	}
	inherited := parse(t, "FROM base AS a\nEXPOSE 80\nCMD [\"a\"]\nFROM a\nENTRYPOINT [\"e\"]\n").Recipe
	if inherited.Start != "e" {
		t.Errorf("got %q, want the entrypoint without the command of its base", inherited.Start)
	}
}

// TestReject: what a recipe cannot express is an error with the line.
func TestReject(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "1: it has no FROM",
		"RUN x":                 "1: RUN: the first instruction must be FROM",
		"FROM a\n\nRUM x":       "3: unknown instruction RUM",
		"FROM a\nONBUILD RUN x": "2: ONBUILD: unsupported",
		"FROM a\nRUN --mount=type=bind,target=/x y":         "2: RUN: --mount=type=bind,target=/x: type=bind is unsupported",
		"FROM a\nRUN --mount=target=/x y":                   "2: RUN: --mount=target=/x: type=bind is unsupported",
		"FROM a\nRUN --mount=type=ssh y":                    "type=ssh is unsupported",
		"FROM a\nRUN --mount=type=cache,from=b,target=/x y": "from is unsupported",
		"FROM a\nRUN --mount=type=cache,targt=/x y":         "targt=/x is unknown",
		"FROM a\nRUN --mount=type=cache,target=/x,uid=-1 y": "is not a number",
		"FROM a\nRUN --network=host y":                      "--network=host is unsupported",
		"FROM a\nRUN --security=insecure y":                 "--security=insecure is unsupported",
		"FROM a\nRUN --frob y":                              "unknown flag --frob",
		"FROM a\nRUN":                                       "2: RUN: it has no arguments",
		"FROM a\nRUN \\\n":                                  "2: RUN: it has no arguments",
		"FROM a\nRUN <<EOF\nx\n":                            "2: the text of <<EOF has no end",
		"FROM a\nCOPY a":                                    "a source and a destination",
		"FROM a\nCOPY ../a /":                               "2: COPY: ../a is outside the build context",
		"FROM a\nCOPY x/../../a /":                          "outside the build context",
		"FROM a\nCOPY $X /":                                 "variable X is not set before this line",
		"FROM a\nARG B=$X":                                  "variable X is not set before this line",
		"FROM a\nCOPY a b c":                                "must end with /",
		"FROM a\nCOPY [a-  /":                               "invalid pattern",
		"FROM a\nCOPY --chmod=u+x a b":                      "up to four octal digits",
		"FROM a\nCOPY --from=9 a b":                         "no such stage",
		"FROM a AS b\nCOPY --from=b a b":                    "this stage itself",
		"FROM a\nADD --from=b a b":                          "--from is unknown",
		"FROM a\nADD --checksum=sha256:0 http://a/b /":      "--checksum is unknown",
		"FROM a\nADD http://a/b /":                          "URLs are unsupported",
		"FROM a\nADD git@a:b /":                             "URLs are unsupported",
		"FROM a\nENV A":                                     "use NAME=VALUE",
		"FROM a\nENV A=1 B":                                 "use NAME=VALUE",
		"FROM a\nENV 1A=1":                                  "use letters",
		"FROM a\nENV A=\"x":                                 "has no end",
		"FROM a\nENV A=${B?no}":                             "${B?no} is unsupported",
		"FROM a\nENV A=${B#x}":                              "is unsupported",
		"FROM a\nENV A=${B":                                 "is unsupported",
		"FROM a\nENV A=${}":                                 "needs the name of a variable",
		"FROM a\nEXPOSE http":                               "use PORT",
		"FROM a\nHEALTHCHECK RUN x":                         "use HEALTHCHECK CMD",
		"FROM a\nSHELL bash":                                "use SHELL [",
		"FROM a AS b\nFROM c AS B":                          "two stages b",
		"FROM a AS 1b":                                      "begin with a letter",
		"FROM a b":                                          "use FROM IMAGE",
		"FROM --platform=linux/s390x a":                     "sandboxes have the platform of the hub, linux/amd64",
		"FROM scratch":                                      "scratch is unsupported",
		"FROM $X":                                           "the name of the image is empty",
		"# syntax=me/other:1\nFROM a":                       "1: syntax \"me/other:1\" is unsupported",
		"# escape=x\nFROM a":                                "1: escape \"x\"",
		"# escape=\\\n# escape=`\nFROM a":                   "2: the directive escape is given twice",
		"FROM a\nENV A=\x00":                                "not UTF-8",
		"FROM a\nENV A=\xff":                                "not UTF-8",
	} {
		_, err := Parse([]byte(text), Options{Name: "my/Dockerfile", Platform: "linux/amd64"})
		if err == nil || !strings.HasPrefix(err.Error(), "my/Dockerfile:") || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := Parse([]byte("FROM a"), Options{Target: "x"}); err == nil || !strings.Contains(err.Error(), `no stage "x"`) {
		t.Errorf("got %v for an unknown target", err)
	}
	if _, err := Parse([]byte("FROM a\n"+strings.Repeat("#", maxText)), Options{}); err == nil {
		t.Error("a large file was accepted")
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	var got []string
	for _, w := range parse(t, "# syntax=docker/dockerfile:1\r\n# check=skip=all\r\nFROM a\r\nVOLUME /x\r\nLABEL a=b\r\n", "NO=1").Warnings {
		got = append(got, w.Text)
	}
	if d := cmp.Diff([]string{"VOLUME has no effect", "the build argument NO is not declared with ARG"}, got); d != "" {
		t.Error(d)
	}
}

// TestCorpus: files in the style of real projects have these recipes. -update rewrites them.
func TestCorpus(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.Dockerfile")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		r := parse(t, string(text))
		for _, x := range r.Contexts {
			x.Step.Files = strings.Repeat("0", 64)
		}
		if err := r.Recipe.Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		got, err := json.MarshalIndent(r.Recipe, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		testenv.Golden(t, "testdata", strings.TrimSuffix(filepath.Base(file), ".Dockerfile")+".json", append(got, '\n'))
	}
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.Dockerfile")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("FROM a\nENV A=${B:-'x'\\}$C\nCOPY <<E /\n$A\nE\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := Parse(b, Options{})
		if err != nil {
			if !strings.HasPrefix(err.Error(), "Dockerfile:") {
				t.Errorf("an error without a line: %v", err)
			}
			return
		}
		for _, x := range r.Contexts {
			if x.Step.Kind != recipe.Copy {
				t.Error("a context belongs to another step")
			}
		}
		for _, s := range append(r.Recipe.Stages, recipe.Stage{Steps: r.Recipe.Steps}) {
			c := recipe.Config{}
			for _, step := range s.Steps {
				if c, err = c.Apply(step); err != nil {
					break
				}
				c.Resolve(step)
			}
		}
	})
}
