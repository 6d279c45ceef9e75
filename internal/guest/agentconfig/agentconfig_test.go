package agentconfig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// files writes the files for the variables into a home directory, and returns all files there.
func files(t *testing.T, home string, env map[string]string) map[string]string {
	t.Helper()
	plan, err := Plan(Config{Home: home, State: filepath.Join(home, "state"), Env: env})
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.Write(); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	err = filepath.WalkDir(home, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(path, home+"/state/") {
			return err
		}
		b, err := os.ReadFile(path)
		got[strings.TrimPrefix(path, home+"/")] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestFiles(t *testing.T) {
	provider := func(base, key string) string {
		return "\n[model_providers.sandbox]\nname = \"sandbox\"\nbase_url = \"" + base + "\"\nenv_key = \"" + key +
			"\"\nwire_api = \"responses\"\n"
	}
	for name, c := range map[string]struct {
		env  map[string]string
		want map[string]string
	}{
		"no key, no files": {map[string]string{"CODEX_MODEL": "m", "OPENCODE_MODEL": "m"}, map[string]string{}},
		"codex": {map[string]string{"CODEX_API_KEY": "secret", "ARK_API_KEY": "x", "OPENAI_API_KEY": "y",
			"CODEX_MODEL": "m\"1", "CODEX_BASE_URL": "http://llm.example/v1"},
			map[string]string{".codex/config.toml": "model = \"m\\\"1\"\nmodel_provider = \"sandbox\"\n" +
				provider("http://llm.example/v1", "CODEX_API_KEY")}},
		"codex with a provider key": {map[string]string{"ARK_API_KEY": "x", "OPENAI_API_KEY": "y"},
			map[string]string{".codex/config.toml": "model_provider = \"sandbox\"\n" + provider(arkURL, "ARK_API_KEY")}},
		"whole codex files": {map[string]string{"CODEX_API_KEY": "secret", "CODEX_CONFIG_TOML": "model = 'mine'\n",
			"CODEX_MODEL_CATALOG_JSON": `{"models":[]}`},
			map[string]string{".codex/config.toml": "model = 'mine'\n", ".codex/model_catalog.json": `{"models":[]}`}},
		"whole opencode file": {map[string]string{"OPENCODE_JSON": `{"model":"a/b"}`, "OPENCODE_API_KEY": "k", "OPENCODE_MODEL": "m"},
			map[string]string{".config/opencode/config.json": `{"model":"a/b"}`}},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(c.want, files(t, t.TempDir(), c.env)); d != "" {
				t.Errorf("files (-want +got):\n%s", d)
			}
		})
	}
}

func TestOpenCodeProviders(t *testing.T) {
	for _, c := range []struct{ provider, base, npm, wantProvider, wantBase, wantNPM string }{
		{"", "", "", "ark", arkURL, "@ai-sdk/openai-compatible"},
		{"claude", "https://api.anthropic.com/v1", "", "claude", "https://api.anthropic.com/v1", "@ai-sdk/anthropic"},
		{"own", "http://llm.example", "my-package", "own", "http://llm.example", "my-package"},
	} {
		text := files(t, t.TempDir(), map[string]string{
			"OPENCODE_API_KEY": "hunter2", "OPENCODE_MODEL": "m", "OPENCODE_PROVIDER": c.provider,
			"OPENCODE_BASE_URL": c.base, "OPENCODE_PROVIDER_NPM": c.npm,
		})[".config/opencode/config.json"]
		var got struct {
			Model    string
			Provider map[string]struct {
				NPM     string
				Options struct{ BaseURL, APIKey string }
			}
		}
		if err := json.Unmarshal([]byte(text), &got); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		p := got.Provider[c.wantProvider]
		if got.Model != c.wantProvider+"/m" || p.NPM != c.wantNPM || p.Options.BaseURL != c.wantBase ||
			p.Options.APIKey != "{env:OPENCODE_API_KEY}" || strings.Contains(text, "hunter2") {
			t.Errorf("provider %q: got %s, want %s at %s with %s, and no key", c.provider, text, c.wantProvider, c.wantBase, c.wantNPM)
		}
	}
}

// TestChangedFilesAreKept: a file is replaced if Cove wrote it or a variable contains the whole file.
func TestChangedFilesAreKept(t *testing.T) {
	home, path := t.TempDir(), ".codex/config.toml"
	first := files(t, home, map[string]string{"CODEX_API_KEY": "k", "CODEX_MODEL": "one"})[path]
	second := files(t, home, map[string]string{"CODEX_API_KEY": "k", "CODEX_MODEL": "two"})[path]
	if !strings.Contains(first, `"one"`) || !strings.Contains(second, `"two"`) {
		t.Errorf("got %q, then %q, want the models one, then two", first, second)
	}
	if err := os.WriteFile(filepath.Join(home, path), []byte("own = 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := files(t, home, map[string]string{"CODEX_API_KEY": "k", "CODEX_MODEL": "three"})[path]; got != "own = 1\n" {
		t.Errorf("got %q, want the file that the user wrote", got)
	}
	if got := files(t, home, map[string]string{"CODEX_CONFIG_TOML": "model = 'x'\n"})[path]; got != "model = 'x'\n" {
		t.Errorf("got %q, want the file of the variable", got)
	}
}

func TestInvalidVariables(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"CODEX_CONFIG_TOML is not valid TOML: line 2":        {"CODEX_CONFIG_TOML": "a = 1\nkey = hunter2\n"},
		"CODEX_MODEL_CATALOG_JSON is not valid JSON":         {"CODEX_MODEL_CATALOG_JSON": "hunter2"},
		"OPENCODE_JSON is not a JSON object; correct it, or": {"OPENCODE_JSON": "[\"hunter2\"]"},
	} {
		if _, err := Plan(Config{Home: "/h", State: "/s", Env: env}); err == nil ||
			!strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want %q without the value", err, name)
		}
	}
}

var validTOML = []string{
	"", "# only a comment", "a = 1", "a=1\nb = 'x' # c\n", "a.b.\"c d\" = \"\"\n[a.e]\nf = [1, 2,\n 3, # c\n]\n",
	"[x]\n[x.y]\n[[z]]\na=1\n[[z]]\na=2\n",
	"t = 2024-01-02T03:04:05Z\nd = 2024-01-02\nc = 07:32:00\ns = 2024-01-02 03:04:05.5+01:00",
	"n = [0x1F, 0o7, 0b1, -1_000, 3.14e-2, +inf, nan, true]",
	"p = { x = 1, y.z = \"\\u00e9\" }\ne = {}", "m = \"\"\"\nline \\\n  more \"quoted\" \"\"\"\"\"",
	"l = '''\nraw \\ '' text'''", "[ a . b ]\nc=1",
	"a = {x = 1,}", // since TOML 1.1
}

var invalidTOML = []string{
	"a = ", "a", "= 1", "a = 1 b = 2", "a = hunter2", "a = \"x", "a = \"\\q\"", "[a", "[[a]", "a = [1 2]", "a = [1",
	"a = {x = 1", "a = 1\na = 2", "[a]\n[a]\n", "a = 1\na.b = 2", "'' = 1\n\"\" . a = 2",
	"a = 01", "a = 1__0", "a = .5", "a = 5.", "a = True", "a = 'x\ny'", "a = \"\x01\"", "# \x00", "a = '''x",
	"[a]\n[[a]]", "a b = 1", "a..b = 1", "[]", "[a]x = 1",
}

func TestTOML(t *testing.T) {
	for _, text := range validTOML {
		if err := checkTOML(text); err != nil {
			t.Errorf("%q: got %v, want no error", text, err)
		}
	}
	for _, text := range invalidTOML {
		if err := checkTOML(text); err == nil {
			t.Errorf("%q: got no error, want one", text)
		}
	}
}

func FuzzTOML(f *testing.F) {
	for _, text := range slices.Concat(validTOML, invalidTOML) {
		f.Add(text)
	}
	line := regexp.MustCompile(`^line [0-9]+$`)
	f.Fuzz(func(t *testing.T, text string) {
		if err := checkTOML(text); err != nil && !line.MatchString(err.Error()) {
			t.Errorf("%q: got %v, want an error that contains only the line", text, err)
		}
	})
}
