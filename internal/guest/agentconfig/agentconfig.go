// Package agentconfig writes the configuration files of the coding agents Codex and OpenCode from the variables that the
// public sandbox image defines for them.
//
// It owns the files that it has written and replaces them at each start. It replaces a file that the user wrote or changed
// only if a variable contains the whole file. It never writes API keys: the files refer to the variables that contain them.
package agentconfig

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// Config of the files.
type Config struct {
	Home  string
	State string            // directory for checksums of the written files
	Env   map[string]string // variables of the agents: CODEX_*, OPENCODE_* and API keys of providers
}

// file is one file to write.
type file struct {
	path    string
	content []byte
	whole   bool // a variable contains the whole file, which replaces an existing one
}

// Files is a list of files to write.
type Files struct {
	state string
	list  []file
}

// Plan validates the variables and returns the files to write. It writes nothing.
func Plan(c Config) (Files, error) {
	f := Files{state: filepath.Join(c.State, "agent")}
	for _, plan := range []func(Config) ([]file, error){planCodex, planOpenCode} {
		list, err := plan(c)
		if err != nil {
			return Files{}, err
		}
		f.list = append(f.list, list...)
	}
	return f, nil
}

// codexKeys are the variables for the API key of Codex, in order of preference.
var codexKeys = []string{"CODEX_API_KEY", "ARK_API_KEY", "OPENAI_API_KEY"}

func planCodex(c Config) ([]file, error) {
	dir := filepath.Join(c.Home, ".codex")
	if own := c.Env["CODEX_HOME"]; filepath.IsAbs(own) {
		dir = own
	}
	var list []file
	catalog := filepath.Join(dir, "model_catalog.json")
	text, whole := c.Env["CODEX_MODEL_CATALOG_JSON"], c.Env["CODEX_CONFIG_TOML"]
	if text != "" {
		if !json.Valid([]byte(text)) {
			return nil, errors.New("CODEX_MODEL_CATALOG_JSON is not valid JSON; correct it, or unset it to use the catalog of Codex")
		}
		list = append(list, file{catalog, []byte(text), true})
	}
	config := filepath.Join(dir, "config.toml")
	if whole != "" {
		if err := checkTOML(whole); err != nil {
			return nil, fmt.Errorf("CODEX_CONFIG_TOML is not valid TOML: %w; correct it, or unset it and set CODEX_MODEL and CODEX_BASE_URL", err)
		}
		return append(list, file{config, []byte(whole), true}), nil
	}
	key := ""
	for _, name := range codexKeys {
		if key == "" && c.Env[name] != "" {
			key = name
		}
	}
	if key == "" {
		return list, nil
	}
	var b strings.Builder
	set := func(name, value string) {
		if value != "" {
			fmt.Fprintf(&b, "%s = %s\n", name, quote(value))
		}
	}
	set("model", c.Env["CODEX_MODEL"])
	set("model_provider", "sandbox")
	if text != "" {
		set("model_catalog_json", catalog)
	}
	base := c.Env["CODEX_BASE_URL"]
	switch {
	case base != "":
	case key == "ARK_API_KEY":
		base = arkURL
	default:
		base = "https://api.openai.com/v1"
	}
	b.WriteString("\n[model_providers.sandbox]\n")
	set("name", "sandbox")
	set("base_url", base)
	set("env_key", key)
	set("wire_api", "responses")
	return append(list, file{config, []byte(b.String()), false}), nil
}

// checkTOML returns the line of the first error in a TOML document. It does not quote the document, which may contain keys.
func checkTOML(text string) error {
	var tree map[string]any
	err := toml.Unmarshal([]byte(text), &tree)
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		line, _ := e.Position()
		return fmt.Errorf("line %d", line)
	}
	return err
}

// quote returns a TOML string, which has the syntax of a JSON string.
func quote(s string) string {
	b, _ := json.Marshal(strings.ReplaceAll(strings.ToValidUTF8(s, ""), "\x7f", "")) // a string has no errors
	return string(b)
}

// arkURL is the address of the default provider of the public image.
const arkURL = "https://ark.cn-beijing.volces.com/api/v3"

func planOpenCode(c Config) ([]file, error) {
	path := filepath.Join(c.Home, ".config", "opencode", "config.json")
	if whole := c.Env["OPENCODE_JSON"]; whole != "" {
		var tree map[string]any
		if err := json.Unmarshal([]byte(whole), &tree); err != nil {
			return nil, errors.New("OPENCODE_JSON is not a JSON object; correct it, or unset it and set OPENCODE_API_KEY and OPENCODE_MODEL")
		}
		return []file{{path, []byte(whole), true}}, nil
	}
	model := c.Env["OPENCODE_MODEL"]
	if c.Env["OPENCODE_API_KEY"] == "" || model == "" {
		return nil, nil
	}
	provider := c.Env["OPENCODE_PROVIDER"]
	if provider == "" {
		provider = "ark"
	}
	model = strings.TrimPrefix(model, provider+"/")
	base := c.Env["OPENCODE_BASE_URL"]
	if base == "" && provider == "ark" {
		base = arkURL
	}
	options := map[string]any{"apiKey": "{env:OPENCODE_API_KEY}"}
	if base != "" {
		options["baseURL"] = base
	}
	pkg := c.Env["OPENCODE_PROVIDER_NPM"]
	if pkg == "" {
		pkg = "@ai-sdk/openai-compatible"
		if strings.Contains(strings.ToLower(base), "anthropic") {
			pkg = "@ai-sdk/anthropic"
		}
	}
	content, err := json.MarshalIndent(map[string]any{
		"$schema": "https://opencode.ai/config.json",
		"model":   provider + "/" + model,
		"provider": map[string]any{provider: map[string]any{
			"npm": pkg, "name": provider, "options": options, "models": map[string]any{model: map[string]any{"name": model}},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of OpenCode: %w", err)
	}
	return []file{{path, append(content, '\n'), false}}, nil
}

// Write writes the files. It does not change files that the user wrote or changed, unless a variable contains the whole
// file.
func (f Files) Write() error {
	var errs []error
	for _, one := range f.list {
		if err := f.write(one); err != nil {
			errs = append(errs, fmt.Errorf("write %q: %w", one.path, err))
		}
	}
	return errors.Join(errs...)
}

func (f Files) write(one file) error {
	checksum := filepath.Join(f.state, filepath.Base(filepath.Dir(one.path))+"-"+filepath.Base(one.path)+".sum")
	old, err := os.ReadFile(one.path)
	switch {
	case err == nil && string(old) == string(one.content):
		return nil
	case err == nil && !one.whole:
		if sum, _ := os.ReadFile(checksum); string(sum) != digest(old) {
			return nil // the user has written or changed it
		}
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return err
	}
	for _, w := range []struct {
		path string
		data []byte
	}{{one.path, one.content}, {checksum, []byte(digest(one.content))}} {
		if err := os.MkdirAll(filepath.Dir(w.path), 0o700); err != nil {
			return err
		}
		err := atomicfile.Replace(w.path, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
			_, err := f.Write(w.data)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
