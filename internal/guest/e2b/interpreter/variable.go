package interpreter

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// variables returns code that sets variables for one execution, and code that restores them. Bash has keepState instead.
func variables(language string, env map[string]string) (before, after string) {
	if len(env) == 0 {
		return "", ""
	}
	switch language {
	case "python":
		return "__import__('builtins')._cove_env = (lambda os, new: ({k: os.environ.get(k) for k in new}, " +
				"os.environ.update(new))[0])(__import__('os'), __import__('json').loads(" + encode(encode(env)) + "));",
			"(lambda os, old: [os.environ.pop(k, None) if v is None else os.environ.__setitem__(k, v) for k, v in " +
				"old.items()])(__import__('os'), __import__('builtins').__dict__.pop('_cove_env', {}));"
	case "javascript", "typescript":
		text := encode(encode(env))
		return "void (globalThis.__coveEnv = {...process.env}, Object.assign(process.env, JSON.parse(" + text + ")))",
			"void (Object.keys(JSON.parse(" + text +
				")).forEach(k => k in globalThis.__coveEnv ? process.env[k] = globalThis.__coveEnv[k] : delete " +
				"process.env[k]), delete globalThis.__coveEnv)"
	case "r":
		return "local({ names <- c(" + list(env, "%[1]s") + "); options(cove.env = Sys.getenv(names, unset = NA, names = TRUE)); " +
				"Sys.setenv(" + list(env, "%[1]s = %[2]s") + ") })",
			"local({ old <- as.list(getOption(\"cove.env\")); options(cove.env = NULL); " +
				"Sys.unsetenv(names(old)); old <- old[!is.na(old)]; if (length(old)) do.call(Sys.setenv, old) })"
	case "java": // clients read them as properties, because Java cannot change its environment
		return `{ var old = new java.util.HashMap<Object, Object>(); System.getProperties().put("cove.env", old); ` +
				`for (String[] p : new String[][] {` + list(env, "{%[1]s, %[2]s}") + `}) old.put(p[0], System.getProperties().put(p[0], p[1])); }`,
			`((java.util.Map<?, ?>) System.getProperties().remove("cove.env")).forEach((k, v) -> ` +
				`{ if (v == null) System.getProperties().remove(k); else System.getProperties().put(k, v); });`
	}
	return "", ""
}

// list formats the names and values of variables as a list.
func list(env map[string]string, format string) string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(env)) {
		all = append(all, fmt.Sprintf(format, encode(name), encode(env[name])))
	}
	return strings.Join(all, ", ")
}

// encode returns JSON. A string of JSON is one in Python, JavaScript, R and Java, too.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // strings and maps of strings are always encodable
	}
	return string(b)
}
