package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sample has every type once.
type sample struct {
	Listen  string            `key:"listen" env:"AIO_LISTEN" default:"127.0.0.1:8080" doc:"address"`
	Level   string            `key:"log_level" env:"AIO_LOG_LEVEL,LOG_LEVEL" default:"info" enum:"debug,info" doc:"level"`
	Quiet   bool              `key:"quiet" env:"AIO_QUIET" doc:"no output"`
	Workers int               `key:"workers" env:"AIO_WORKERS" default:"2" minimum:"1" maximum:"8" doc:"workers"`
	Ratio   float64           `key:"ratio" env:"AIO_RATIO" default:"0.5" minimum:"0" maximum:"1" doc:"ratio"`
	TTL     time.Duration     `key:"ttl" env:"AIO_TTL_SECONDS" default:"30s" minimum:"1s" maximum:"1h" doc:"life"`
	Limit   Bytes             `key:"limit" env:"AIO_LIMIT" default:"1MiB" minimum:"1KiB" doc:"limit"`
	Hosts   []string          `key:"hosts" env:"AIO_HOSTS" doc:"hosts"`
	Args    []string          `key:"args" env:"AIO_ARGS" sep:"space" doc:"arguments"`
	Ports   []int             `key:"ports" env:"AIO_PORTS" minimum:"1" maximum:"65535" doc:"ports"`
	Map     map[string]string `key:"mapping" env:"AIO_MAP" doc:"mapping"`
	Token   string            `key:"token" env:"AIO_TOKEN" secret:"true" doc:"token"`
	Proxy   string            `key:"proxy" env:"AIO_PROXY" secret:"url" doc:"proxy"`
	Agent   map[string]string `key:"agent" env:"AGENT_*" secret:"print" doc:"agent"`
}

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	var got sample
	report, err := Load(&got, Source{})
	if err != nil {
		t.Fatal(err)
	}
	want := sample{Listen: "127.0.0.1:8080", Level: "info", Workers: 2, Ratio: 0.5, TTL: 30 * time.Second, Limit: 1 << 20}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, r := range report.Rows {
		if r.Origin != "default" {
			t.Errorf("%s: got origin %q, want default", r.Key, r.Origin)
		}
	}
}

func TestLayersOverrideEachOther(t *testing.T) {
	t.Parallel()
	path := write(t, "# settings\nlisten: file:1\nworkers: 3\nratio: 0.25\ntoken: 12345\nhosts: [a, b]\n")
	var got sample
	report, err := Load(&got, Source{
		File:    path,
		Environ: []string{"AIO_WORKERS=4", "AIO_RATIO=0.75", "AIO_HOSTS=", "LOG_LEVEL=debug"},
		Flags:   map[string][]string{"ratio": {"1"}},
		Prefix:  "AIO_",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := sample{Listen: "file:1", Level: "debug", Workers: 4, Ratio: 1, TTL: 30 * time.Second, Limit: 1 << 20,
		Hosts: []string{"a", "b"}, Token: "12345"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	origins := map[string]string{}
	for _, r := range report.Rows {
		origins[r.Key] = r.Origin
	}
	for key, want := range map[string]string{
		"listen": "file " + path + ":2", "workers": "environment AIO_WORKERS", "ratio": "flag --ratio",
		"hosts": "file " + path + ":6", "log_level": "environment LOG_LEVEL", "ttl": "default",
	} {
		if origins[key] != want {
			t.Errorf("%s: got origin %q, want %q", key, origins[key], want)
		}
	}
}

func TestValues(t *testing.T) {
	t.Parallel()
	base := func(change func(*sample)) sample {
		s := sample{Listen: "127.0.0.1:8080", Level: "info", Workers: 2, Ratio: 0.5, TTL: 30 * time.Second, Limit: 1 << 20}
		change(&s)
		return s
	}
	tests := []struct {
		name  string
		env   []string
		file  string
		flags map[string][]string
		want  sample
	}{
		{name: "spaces around a value are removed", env: []string{"AIO_TOKEN= abc\n"}, want: base(func(s *sample) { s.Token = "abc" })},
		{name: "bool words", env: []string{"AIO_QUIET=Yes"}, want: base(func(s *sample) { s.Quiet = true })},
		{name: "bare duration is seconds", env: []string{"AIO_TTL_SECONDS=90"}, want: base(func(s *sample) { s.TTL = 90 * time.Second })},
		{name: "duration with unit", flags: map[string][]string{"ttl": {"1m30s"}}, want: base(func(s *sample) { s.TTL = 90 * time.Second })},
		{name: "binary size", env: []string{"AIO_LIMIT=2 GiB"}, want: base(func(s *sample) { s.Limit = 2 << 30 })},
		{name: "decimal size", env: []string{"AIO_LIMIT=2MB"}, want: base(func(s *sample) { s.Limit = 2e6 })},
		{name: "list by comma and newline", env: []string{"AIO_HOSTS=a, b\nc,,"},
			want: base(func(s *sample) { s.Hosts = []string{"a", "b", "c"} })},
		{name: "list by repeated flag", flags: map[string][]string{"hosts": {"a,b", "c"}},
			want: base(func(s *sample) { s.Hosts = []string{"a", "b", "c"} })},
		{name: "items of a file list are not split", file: "hosts:\n - a,b\n - c\n",
			want: base(func(s *sample) { s.Hosts = []string{"a,b", "c"} })},
		{name: "words with quotes", env: []string{`AIO_ARGS=--a=1,2 "--b=x y" --c='"' --d=\ z`},
			want: base(func(s *sample) { s.Args = []string{"--a=1,2", "--b=x y", `--c="`, "--d= z"} })},
		{name: "ports by comma or space", env: []string{"AIO_PORTS=80, 443 8080"},
			want: base(func(s *sample) { s.Ports = []int{80, 443, 8080} })},
		{name: "ports in the file", file: "ports: [80, 443]", want: base(func(s *sample) { s.Ports = []int{80, 443} })},
		{name: "one port in the file", file: "ports: 80", want: base(func(s *sample) { s.Ports = []int{80} })},
		{name: "map as text", env: []string{"AIO_MAP=a.example=80, b=http://x/?q=1"},
			want: base(func(s *sample) { s.Map = map[string]string{"a.example": "80", "b": "http://x/?q=1"} })},
		{name: "map as a list of pairs", file: "mapping: ['a=1,2', 'b=c']",
			want: base(func(s *sample) { s.Map = map[string]string{"a": "1,2", "b": "c"} })},
		{name: "map in the file", file: "mapping: {a: 80, b: c}", want: base(func(s *sample) { s.Map = map[string]string{"a": "80", "b": "c"} })},
		{name: "prefix map", env: []string{"AGENT_KEY=k", "AGENT_URL=u", "AGENTS=x", "AGENT_EMPTY="},
			want: base(func(s *sample) { s.Agent = map[string]string{"AGENT_KEY": "k", "AGENT_URL": "u"} })},
		{name: "first variable wins", env: []string{"LOG_LEVEL=info", "AIO_LOG_LEVEL=debug"}, want: base(func(s *sample) { s.Level = "debug" })},
		{name: "first of a doubled variable wins", env: []string{"AIO_WORKERS=3", "AIO_WORKERS=4"},
			want: base(func(s *sample) { s.Workers = 3 })},
		{name: "last of a repeated flag wins", flags: map[string][]string{"workers": {"3", "4"}}, want: base(func(s *sample) { s.Workers = 4 })},
		{name: "null counts as absent", file: "workers:\nlisten: ~\n", want: base(func(*sample) {})},
		{name: "empty file", file: "# nothing\n", want: base(func(*sample) {})},
		{name: "anchors", file: "listen: &x somewhere\ntoken: *x\n",
			want: base(func(s *sample) { s.Listen, s.Token = "somewhere", "somewhere" })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			src := Source{Environ: tt.env, Flags: tt.flags, Prefix: "AIO_"}
			if tt.file != "" {
				src.File = write(t, tt.file)
			}
			var got sample
			if _, err := Load(&got, src); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		env   []string
		file  string
		flags map[string][]string
		want  []string // parts of the error
		never string   // must not be in it
	}{
		{name: "not a number", env: []string{"AIO_WORKERS=many"}, want: []string{"workers (environment AIO_WORKERS)",
			`"many"`, "a whole number from 1 to 8"}},
		{name: "too large", flags: map[string][]string{"workers": {"9"}}, want: []string{"workers (flag --workers)", "from 1 to 8"}},
		{name: "too small in the file", file: "\nworkers: 0\n", want: []string{"config.yaml:2", "from 1 to 8"}},
		{name: "float not finite", env: []string{"AIO_RATIO=NaN"}, want: []string{"a number from 0 to 1"}},
		{name: "enum", env: []string{"AIO_LOG_LEVEL=loud"}, want: []string{"one of debug, info"}},
		{name: "bool", env: []string{"AIO_QUIET=maybe"}, want: []string{"true or false"}},
		{name: "negative duration", env: []string{"AIO_TTL_SECONDS=-5"}, want: []string{"a duration", "from 1s to 1h"}},
		{name: "overflowing duration", env: []string{"AIO_TTL_SECONDS=99999999999999"}, want: []string{"a duration"}},
		{name: "size without a clear unit", env: []string{"AIO_LIMIT=5M"}, want: []string{"a size such as"}},
		{name: "size overflow", env: []string{"AIO_LIMIT=9999999999TiB"}, want: []string{"a size such as"}},
		{name: "port in list", env: []string{"AIO_PORTS=80,http"}, want: []string{`"http"`, "from 1 to 65535"}},
		{name: "map without value", env: []string{"AIO_MAP=a"}, want: []string{"name=value"}},
		{name: "quote not closed", env: []string{"AIO_ARGS=--a='b"}, want: []string{"unclosed quote"}},
		{name: "list where one value belongs", file: "workers: [1, 2]", want: []string{"a single value"}},
		{name: "mapping where a list belongs", file: "hosts: {a: b}", want: []string{"must be a list"}},
		{name: "list where a mapping belongs", file: "mapping: [a, b]", want: []string{`"a"`, "name=value"}},
		{name: "nested list", file: "hosts: [[a]]", want: []string{"single values"}},
		{name: "nested mapping", file: "mapping: {a: {b: c}}", want: []string{"single values"}},
		{name: "unknown key", file: "log_levle: info", want: []string{`"log_levle"`, "config.yaml:1", "did you mean log_level?"}},
		{name: "key with dashes", file: "log-level: info", want: []string{"did you mean log_level?"}},
		{name: "unknown key without a similar one", file: "zzzzzz: info", want: []string{"unknown key"}, never: "did you mean"},
		{name: "key twice", file: "workers: 2\nworkers: 3\n", want: []string{"duplicated", "line 1", "config.yaml:2"}},
		{name: "unknown variable", env: []string{"AIO_LISTN=x"}, want: []string{"environment AIO_LISTN", "did you mean AIO_LISTEN?"}},
		{name: "unknown flag", flags: map[string][]string{"lissten": {"x"}}, want: []string{"--lissten", "did you mean --listen?"}},
		{name: "not YAML", file: "a: [", want: []string{"not valid YAML", "line 1"}},
		{name: "not a mapping", file: "- a\n- b\n", want: []string{"key: value"}},
		{name: "two documents", file: "workers: 1\n---\nworkers: 2\n", want: []string{"more than one"}},
		{name: "merge key", file: "<<: {workers: 1}", want: []string{"unknown key"}},
		{name: "secret proxy is not quoted", file: "proxy: [hunter2]", want: []string{"proxy (file"}, never: "hunter2"},
		{name: "secret map is not quoted", file: "agent: hunter2", want: []string{"agent (file"}, never: "hunter2"},
		{name: "faulty layer below a good one", env: []string{"AIO_WORKERS=x"},
			flags: map[string][]string{"workers": {"2"}}, want: []string{"AIO_WORKERS"}},
		{
			name: "all at once", env: []string{"AIO_WORKERS=x", "AIO_NOPE=1"}, file: "ratio: 2\nnothing: 1\n",
			flags: map[string][]string{"ttl": {"2h"}},
			want:  []string{"5 errors", "workers (", "ratio (", "nothing", "ttl (flag --ttl)", "AIO_NOPE"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			src := Source{Environ: tt.env, Flags: tt.flags, Prefix: "AIO_"}
			if tt.file != "" {
				src.File = write(t, tt.file)
			}
			got := sample{Listen: "untouched"}
			report, err := Load(&got, src)
			var all *Error
			if !errors.As(err, &all) || report != nil {
				t.Fatalf("got %v, want an *Error and no report", err)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error lacks %q:\n%v", part, err)
				}
			}
			if tt.never != "" && strings.Contains(err.Error(), tt.never) {
				t.Errorf("error contains %q:\n%v", tt.never, err)
			}
			if d := cmp.Diff(sample{Listen: "untouched"}, got); d != "" {
				t.Errorf("struct was changed:\n%s", d)
			}
		})
	}
}

func TestForeignVariablesAreIgnored(t *testing.T) {
	t.Parallel()
	var got sample
	_, err := Load(&got, Source{
		Prefix: "AIO_",
		Ignore: []string{"AIO_THEIRS"},
		Environ: []string{
			"PATH=/bin", "AIO_API_URL=http://x", "AIO_CONFIG=/x", "AIO_SERVER_USERS=*", "AIO_THEIRS=1",
			// Variables that a cluster sets for services with the names aio and aio-web.
			"AIO_SERVICE_HOST=10.0.0.1", "AIO_SERVICE_PORT=80", "AIO_SERVICE_PORT_HTTP=80", "AIO_PORT=tcp://10.0.0.1:80",
			"AIO_PORT_80_TCP=tcp://10.0.0.1:80", "AIO_PORT_80_TCP_PROTO=tcp", "AIO_PORT_80_TCP_PORT=80", "AIO_PORT_80_TCP_ADDR=10.0.0.1",
			"AIO_WEB_SERVICE_HOST=10.0.0.2", "AIO_WEB_PORT=tcp://10.0.0.2:80",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Load(&got, Source{Prefix: "AIO_", Environ: []string{"AIO_PORT=80"}}); err == nil {
		t.Error("AIO_PORT=80: got no error, want it rejected, because no cluster sets such a value")
	}
}

func TestFileIsFound(t *testing.T) {
	t.Parallel()
	if got := File("aio", "/flag", []string{"AIO_CONFIG=/env"}); got != "/flag" {
		t.Errorf("flag: got %q, want /flag", got)
	}
	if got := File("aio", "", []string{"AIO_CONFIG=/env"}); got != "/env" {
		t.Errorf("variable: got %q, want /env", got)
	}
	if got := File("no-such-program", "", nil); got != "" {
		t.Errorf("neither: got %q, want none", got)
	}
	missing := filepath.Join(t.TempDir(), "missing.yaml")
	if _, err := Load(&sample{}, Source{File: missing}); err == nil || !strings.Contains(err.Error(), missing) ||
		!strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing file: got %v, want its path and no such file", err)
	}
	large := write(t, "listen: x\n#"+strings.Repeat("x", maxFile))
	if _, err := Load(&sample{}, Source{File: large}); err == nil || !strings.Contains(err.Error(), "maximum of 1MiB") {
		t.Errorf("large file: got %v, want the maximum", err)
	}
	if _, err := Load(&sample{}, Source{File: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("directory: got %v, want cannot be read", err)
	}
}

func TestSecretsAreHiddenAndScrubbed(t *testing.T) {
	t.Parallel()
	environ := []string{"PATH=/bin", "AIO_TOKEN=hunter2", "AIO_PROXY=http://me:hunter2@proxy:80", "AGENT_KEY=hunter2",
		"AIO_TOKENS=kept", "AIO_LISTEN=x"}
	var got sample
	report, err := Load(&got, Source{Environ: environ})
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]string{}
	for _, r := range report.Rows {
		values[r.Key] = r.Value
		if strings.Contains(r.Value, "hunter2") {
			t.Errorf("%s shows its secret: %s", r.Key, r.Value)
		}
	}
	if values["token"] != "•••" || values["proxy"] != "http://•••@proxy:80" || values["agent"] != "•••" {
		t.Errorf("got %v, want token, proxy and agent hidden", values)
	}
	want := []string{"PATH=/bin", "AGENT_KEY=hunter2", "AIO_TOKENS=kept", "AIO_LISTEN=x"}
	if d := cmp.Diff(want, Scrub(environ, &sample{})); d != "" {
		t.Error(d)
	}
	if s := withoutUser("me:p@ss@host:80"); s != "•••@host:80" {
		t.Errorf("URL without a scheme: got %s, want •••@host:80", s)
	}
}

func TestFieldsDescribeTheStruct(t *testing.T) {
	t.Parallel()
	fields := Fields(&sample{})
	if len(fields) != 14 {
		t.Fatalf("got %d fields, want 14", len(fields))
	}
	f := fields[1]
	if f.Key != "log_level" || f.Flag != "log-level" || f.Type != String || f.Default != "info" || len(f.Enum) != 2 || len(f.Env) != 2 {
		t.Errorf("got %+v, want log_level with two variables and two values", f)
	}
}

// TestDocs: settings are documented in their order.
func TestDocs(t *testing.T) {
	t.Parallel()
	for name, dst := range map[string]Documented{"aio": &Aio{}, "cove": &Cove{}} {
		var got, want []string
		for _, pair := range dst.Docs() {
			got = append(got, pair[0])
		}
		for _, f := range Fields(dst) {
			want = append(want, f.Key)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: keys (-want +got):\n%s", name, d)
		}
	}
}

func TestMalformedStructsPanic(t *testing.T) {
	t.Parallel()
	tests := map[string]any{
		"no pointer": sample{},
		"nil":        nil,
		"no key":     &struct{ A string }{},
		"no doc": &struct {
			A string `key:"a"`
		}{},
		"upper-case": &struct {
			A string `key:"A" doc:"d"`
		}{},
		"wrong type": &struct {
			A []byte `key:"a" doc:"d"`
		}{},
		"wrong secret": &struct {
			A string `key:"a" doc:"d" secret:"yes"`
		}{},
		"wrong limit": &struct {
			A int `key:"a" doc:"d" minimum:"x"`
		}{},
		"prefix no map": &struct {
			A string `key:"a" doc:"d" env:"A_*"`
		}{},
		"unexported": &struct {
			a string `key:"a" doc:"d"`
		}{},
		"same key": &struct {
			A string `key:"a" doc:"d"`
			B string `key:"a" doc:"d"`
		}{},
		"same variable": &struct {
			A string `key:"a" env:"X" doc:"d"`
			B string `key:"b" env:"X" doc:"d"`
		}{},
		"unknown tag": &struct {
			A string `key:"a" doc:"d" enums:"x"`
		}{},
		"bad default": &struct {
			A int `key:"a" doc:"d" default:"x"`
		}{},
	}
	for name, dst := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				if recover() == nil {
					t.Error("got no panic, want one")
				}
			}()
			_, _ = Load(dst, Source{})
		})
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("workers: 3\n", "AIO_ARGS=--a 'b'", "x")
	f.Add("hosts: [a, {b: c}]\n", "AIO_MAP=a=b,c", "5MiB")
	f.Add("a: &a [*a]\n", "AIO_TTL_SECONDS=1h", "-1")
	f.Add("? [x]\n: y\n", "AIO_", "\x00")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, file, variable, flag string) {
		path := filepath.Join(dir, "f.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		var got sample
		report, err := Load(&got, Source{File: path, Environ: []string{variable}, Prefix: "AIO_",
			Flags: map[string][]string{"limit": {flag}, "args": {flag}, "ttl": {flag}}})
		if (report == nil) == (err == nil) {
			t.Fatalf("got report %v and error %v, want exactly one", report, err)
		}
		if err == nil && (got.Workers < 1 || got.Workers > 8 || got.TTL < time.Second || got.TTL > time.Hour || got.Limit < 1<<10) {
			t.Fatalf("got %+v, want values within the limits", got)
		}
	})
}

func TestSecretsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	given := map[string][]string{"token": {"x"}, "agent": {"AGENT_KEY=x"}, "proxy": {"http://me:x@proxy:80"}, "hosts": {"a@b"}}
	var got []string
	for _, f := range Fields(&sample{}) {
		if f.Exposes(given[f.Flag]) {
			got = append(got, f.Flag)
		}
	}
	if d := cmp.Diff([]string{"token", "proxy", "agent"}, got); d != "" {
		t.Error(d)
	}
	for _, f := range Fields(&Aio{}) {
		if f.Key == "proxy_server" && f.Exposes([]string{"proxy:3128"}) || f.Key == "jwt_public_key" && f.Exposes([]string{"LS0t"}) {
			t.Errorf("%s: got a secret, want none", f.Key)
		}
	}
}
