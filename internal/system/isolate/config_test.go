package isolate

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadExit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "exit")
	for text, want := range map[string]string{
		"": "", `{"Code":3}`: "exited with status 3", `{"Code":0,"Signal":"killed"}`: "killed by signal: killed",
		"panic: oh": "init failed: panic: oh",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		e, ok := ReadExit(path)
		if ok != (want != "") || ok && e.String() != want {
			t.Errorf("%q: got %q, %v, want %q", text, e, ok, want)
		}
	}
}

func TestCheck(t *testing.T) {
	good := func() *Config {
		f := os.Stdin
		return &Config{Argv: []string{"x"}, Root: []Overlay{{Target: "/"}}, Log: [2]*os.File{f, f}, Exit: f, Control: f}
	}
	if err := good().check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"no argv":         func(c *Config) { c.Argv = nil },
		"no root":         func(c *Config) { c.Root[0].Target = "/usr" },
		"no log":          func(c *Config) { c.Log[1] = nil },
		"relative target": func(c *Config) { c.Binds = []Bind{{Target: "x"}} },
		"climbing target": func(c *Config) { c.Tmpfs = []Tmpfs{{Target: "/x/.."}} },
	} {
		c := good()
		change(c)
		if c.check() == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}
