package node

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cells run in this order in one session, and share variables.
var cells = []struct{ name, code, want string }{
	{"value", "1 + 1", "= 2"},
	{"empty", "", ""},
	{"comment", "// nothing", ""},
	{"declaration", "const x = 41", ""},
	{"variable", "x + 1", "= 42"},
	{"last value", "_ + 1", "= 43"},
	{"constant again", "const x = 1; x", "= 1"},
	{"let again", "let y = 1; y", "= 1"},
	{"let and again", "let y = 2; y", "= 2"},
	{"class again", "class A { a() { return 1 } }", ""},
	{"class and again", "class A { a() { return 2 } }\nnew A().a()", "= 2"},
	{"function again", "function f() { return 1 }\nfunction f() { return 2 }\nf()", "= 2"},
	{"var", "var v = 1; globalThis.v", "= 1"},
	{"undefined", "undefined", ""},
	{"null", "null", "= null"},
	{"text", "'it''s'.length, `it's`", `error SyntaxError: Unexpected string`},
	{"text in quotes", "`it's`", `= "it's"`},
	{"minus zero", "-0", "= -0"},
	{"big integer", "2n ** 100n", "= 1267650600228229401496703205376n"},
	{"symbol", "Symbol('s')", "= Symbol(s)"},
	{"object", "({ a: 1, b: { c: [1, 2] } })", "= { a: 1, b: { c: [ 1, 2 ] } }"},
	{"deep object", "[1, [2, [3, [4]]]]", "= [ 1, [ 2, [ 3, [Array] ] ] ]"},
	{"map", "new Map([['k', new Set([1])]])", "= Map(1) { 'k' => Set(1) { 1 } }"},
	{"date", "new Date(0)", "= 1970-01-01T00:00:00.000Z"},
	{"class value", "A", "= [class A]"},
	{"function value", "x => x", "= [Function (anonymous)]"},
	{"last of many", "1; 'a'; if (x) { 'yes' }", "= 'yes'"},
	{"no semicolons", "const p = 1\nconst q = 2\np + q", "= 3"},
	{"destructuring", "const { a, ...rest } = { a: 1, b: 2 }; rest", "= { b: 2 }"},
	{"private fields", "class P { #n = 3; get n() { return this.#n } }\nnew P().n", "= 3"},
	{"console", "console.log('a', 1, { b: [] })", "stdout a 1 { b: [] }⏎"},
	{"console formats", "console.log('%s is %d', 'n', 4)", "stdout n is 4⏎"},
	{"both streams in order", "console.log('a'); console.error('b'); console.warn('c'); console.info('d'); 5",
		"stdout a⏎\nstderr b⏎c⏎\nstdout d⏎\n= 5"},
	{"console group", "console.group('g'); console.log('in'); console.groupEnd(); console.log('out')", "stdout g⏎  in⏎out⏎"},
	{"console table", "console.table([{ a: 1 }])", "stdout ┌─────────┬───┐⏎│ (index) │ a │⏎├─────────┼───┤⏎│ 0       │ 1 │⏎└─────────┴───┘⏎"},
	{"console assert", "console.assert(false, 'wrong')", "stderr Assertion failed: wrong⏎"},
	{"write", "process.stdout.write('no newline')", "stdout no newline\n= true"},
	{"write bytes", "process.stdout.write(Buffer.from([0x61, 0xff, 0x62])), void 0", "stdout a\ufffdb"},
	{"split characters", "for (const b of Buffer.from('ä€🎉')) process.stdout.write(Buffer.from([b]))\nvoid 0", "stdout ä€🎉"},
	{"piped", "await new Promise(r => require('stream').Readable.from(['a', 'b']).on('end', " +
		"r).pipe(process.stdout)); console.log('c')", "stdout abc⏎"},
	{"unicode", "console.log('äöü € 漢字 🎉'); '漢'", "stdout äöü € 漢字 🎉⏎\n= '漢'"},
	{"await", "await new Promise(r => setTimeout(r, 5, 'late'))", "= 'late'"},
	{"await declares", "const w = await Promise.resolve(7)", ""},
	{"awaited variable", "w", "= 7"},
	{"for await", "for await (const n of (async function* () { yield 1; yield 2 })()) console.log(n)", "stdout 1⏎2⏎"},
	{"promise is awaited", "async function main() { await null; console.log('in main'); return 8 }\nmain()", "stdout in main⏎\n= 8"},
	{"promise of nothing", "Promise.resolve()", ""},
	{"error", "throw new TypeError('bad')", "error TypeError: bad"},
	{"error after output", "console.log('before'); null.x", "stdout before⏎\nerror TypeError: Cannot read properties of null (reading 'x')"},
	{"error keeps variables", "x", "= 1"},
	{"unknown name", "nope", "error ReferenceError: nope is not defined"},
	{"own error", "class Oops extends Error { name = 'Oops' }\nthrow new Oops('o')", "error Oops: o"},
	{"thrown number", "throw 42", "error Error: 42"},
	{"thrown nothing", "throw null", "error Error: null"},
	{"thrown object", "throw { code: 1 }", "error Error: { code: 1 }"},
	{"rejected", "await Promise.reject(new RangeError('r'))", "error RangeError: r"},
	{"rejected value", "(async () => { throw new Error('inside') })()", "error Error: inside"},
	{"syntax error", "foo bar", "error SyntaxError: Unexpected identifier 'bar'"},
	{"unfinished", "1 +", "error SyntaxError: Unexpected end of input"},
	{"return", "return 1", "error SyntaxError: Illegal return statement"},
	{"strict", "'use strict'; undeclared = 1", "error ReferenceError: undeclared is not defined"},
	{"caught", "try { nope } catch (e) { console.log(e.stack) }", "stdout ReferenceError: nope is not defined⏎    at CELL:1:7⏎"},
	{"shown error", "console.log(new Error('e'))", "stdout Error: e⏎    at CELL:1:13⏎"},
	{"error of a module", "try { require('fs').readFileSync('/none') } catch (e) { console.log(e instanceof Error, " +
		"e.code) }", "stdout true ENOENT⏎"},
	{"array of a module", "require('fs').readdirSync('/') instanceof Array", "= true"},
	{"unhandled rejection", "Promise.reject(new Error('alone')); 6", "error Error: alone\n= 6"},
	{"thrown in a timer", "setTimeout(() => { throw new Error('late') }, 1); await new Promise(r => setTimeout(r, " +
		"30)); 'on'", "error Error: late\n= 'on'"},
	{"emitted error", "process.nextTick(() => new (require('events'))().emit('error', new Error('emitted'))); " +
		"await null; 1", "error Error: emitted\n= 1"},
	{"own handler", "process.once('uncaughtException', e => console.log('mine', e.message)); setTimeout(() => { " +
		"throw new Error('x') }, 1); await new Promise(r => setTimeout(r, 30))", "stdout mine x⏎"},
	{"builtins", "[typeof fetch, typeof Buffer, typeof structuredClone, typeof path.join]",
		"= [ 'function', 'function', 'function', 'function' ]"},
	{"require", "const os = require('os'); typeof os.cpus", "= 'function'"},
	{"require a file", "require('./lib/mod').double(4)", "= 8"},
	{"require JSON", "require('./data.json')", "= { n: 5 }"},
	{"require a package", "require('pkg')", "= 'a package'"},
	{"require a missing file", "try { require('./none') } catch (e) { e.code }", "= 'MODULE_NOT_FOUND'"},
	{"import()", "const m = await import('./mod.mjs'); [m.default, m.named]", "= [ 'default', 'named' ]"},
	{"import() of a missing file", "await import('./none.mjs').catch(e => e.code)", "= 'ERR_MODULE_NOT_FOUND'"},
	{"import() of a package", "(await import('pkg')).default", "= 'a package'"},
	{"import default", "import d from './mod.mjs'; d", "= 'default'"},
	{"import names", "import { named, named as other, default as def } from './mod.mjs'\n[named, other, def]",
		"= [ 'named', 'named', 'default' ]"},
	{"import both", "import d, { named } from \"./mod.mjs\"; import * as all from './mod.mjs'\n[d, named, " +
		"Object.keys(all)]", "= [ 'default', 'named', [ 'default', 'named' ] ]"},
	{"import over lines", "import {\n  named,\n} from './mod.mjs'\nthrow new Error(named)", "error Error: named"},
	{"import for its effect", "import './mod.mjs'", ""},
	{"import builtin", "import fs, { existsSync } from 'node:fs'; existsSync('/') && fs.existsSync('/')", "= true"},
	{"import JSON", "import data from './data.json' with { type: 'json' }\ndata.n", "= 5"},
	{"import.meta", "import.meta.dirname === process.cwd()", "= true"},
	{"import as text", "const t = 'import(1)'; `import(${2}) ${`import '${3}'`}` + t + /import(4)/.source",
		"= \"import(2) import '3'import(1)import(4)\""},
	{"import as a name", "const imports = { import: 5, imported: 6 }; imports.import", "= 5"},
	{"import in a comment", "/* import 'x' */ 5 // import('y')", "= 5"},
	{"divisions", "const half = n => n / 2; import('./mod.mjs'); half(8) / 2 / 1", "= 2"},
	{"regular expressions", "if (true) /'/.test('a'); [/[/'\"]/.test('\"'), (await import('./mod.mjs')).named]", "= [ true, 'named' ]"},
	{"child's output in order", "console.log('a'); require('child_process').execSync('echo b', { stdio: 'inherit' " +
		"}); console.log('c')", "stdout a⏎b⏎c⏎"},
	{"child's output captured", "require('child_process').execSync('echo out').toString()", "= 'out\\n'"},
	{"child", "await new Promise(r => require('child_process').spawn('sh', ['-c', 'echo child'], { stdio: " +
		"'inherit' }).on('close', r))", "stdout child⏎\n= 0"},
	{"forked child", "await new Promise(r => require('child_process').fork('./lib/child.js').on('message', r))", "= { hello: 'child' }"},
	{"thread", "await new Promise(r => new (require('worker_threads').Worker)('console.log(\"in thread\")', { " +
		"eval: true }).on('exit', r))", "stdout in thread⏎\n= 0"},
	{"descriptor", "require('fs').writeSync(1, 'raw\\n'); console.log('cooked')", "stdout raw⏎cooked⏎"},
	{"timer outlives the cell", "globalThis.ticks = 0; globalThis.go = false; { const timer = setInterval(() => { " +
		"if (!go) return; clearInterval(timer); ticks++; console.log('tick') }, 5) } ticks", "= 0"},
	{"its output is the next cell's", "go = true; while (!ticks) await new Promise(r => setTimeout(r, 5)); ticks", "stdout tick⏎\n= 1"},
	{"own stack format", "const keep = Error.prepareStackTrace; Error.prepareStackTrace = (e, s) => s.length > 0; " +
		"const ok = new Error().stack; Error.prepareStackTrace = keep; ok", "= true"},
	{"inspected", "({ [Symbol.for('nodejs.util.inspect.custom')]: () => 'mine' })", "= mine"},
	{"inspection fails", "({ [Symbol.for('nodejs.util.inspect.custom')]() { throw new Error('no') } })", "error Error: no"},
	{"underscore assigned", "_ = 5; 6", "= 6"},
	{"underscore stays", "_", "= 5"},
	{"directory", "require('fs').mkdirSync('sub', { recursive: true }); process.chdir('sub'); path.basename(process.cwd())", "= 'sub'"},
	{"long code", "const long = '" + strings.Repeat("x", 3<<20) + "'; import('./mod.mjs'); long.length", "= 3145728"},
	{"directory stays", "const where = path.basename(process.cwd()); process.chdir('..'); where", "= 'sub'"},
}

// workspace fills a folder with modules.
func workspace(t testing.TB, dir string) {
	t.Helper()
	for name, text := range map[string]string{
		"lib/mod.js":                    "exports.double = n => 2 * n",
		"lib/child.js":                  "process.send({ hello: 'child' })",
		"mod.mjs":                       "export default 'default'; export const named = 'named'",
		"data.json":                     `{"n": 5}`,
		"node_modules/pkg/package.json": `{"name": "pkg", "version": "1.2.3", "main": "main.js"}`,
		"node_modules/pkg/main.js":      "module.exports = 'a package'",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestCells(t *testing.T) {
	t.Parallel()
	s := newService(t)
	workspace(t, s.Workspace)
	number := regexp.MustCompile(`\bcell\d+:`)
	for i, c := range cells {
		out := runIn(t, s, "s", c.code)
		got := number.ReplaceAllString(summarize(out.Outputs), "CELL:")
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		bad := strings.HasPrefix(got, "error ") || strings.Contains(got, "\nerror ")
		if (out.Status == "error") != bad || (out.ExitCode == 1) != bad || *out.ExecutionCount != i+1 ||
			out.Code != c.code || *out.SessionID != "s" {
			t.Errorf(`%s: got %+v, want an error with exit code 1: %v, execution count %d, code %q and session "s"`,
				c.name, out, bad, i+1, c.code)
		}
		if strings.Contains(out.Stderr, "cove:") || strings.Contains(out.Stderr, "node:inspector") ||
			strings.Contains(out.Stderr, "imp\u00f8rt") {
			t.Errorf(`%s: got stderr %q, want it without "cove:", "node:inspector" and "impørt"`, c.name, out.Stderr)
		}
	}
}

func TestTracebacks(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for code, want := range map[string]string{
		"function f() { throw new Error('deep') }\n\nf()": "Error: deep\n    at f (cell:1:22)\n    at cell:3:1\n",
		"foo bar":  "cell:1\nfoo bar\n    ^\n\nSyntaxError: Unexpected identifier 'bar'\n",
		"{\n  a":   "cell:2\n  a\n   ^\n\nSyntaxError: Unexpected end of input\n",
		"throw 42": "Uncaught 42\n",
		"const e = new Error('why'); e.code = 'E1'; e.stack = 'Error: why'; throw e": "[Error: why] { code: 'E1' }\n",
	} {
		out := execute(t, s, ExecuteIn{Code: code})
		if out.Stderr != want || out.ExitCode != 1 || out.Status != "error" {
			t.Errorf(`%s: got %q, %+v, want stderr %q, exit code 1 and status "error"`, code, out.Stderr, out, want)
		}
		if got := strings.Join(*out.Outputs[0].Traceback, "\n") + "\n"; got != want {
			t.Errorf("%s: got traceback %q, want %v", code, got, want)
		}
	}
}

func TestCallsWithoutSession(t *testing.T) {
	t.Parallel()
	s := newService(t)
	workspace(t, s.Workspace)
	for name, c := range map[string]struct {
		in   ExecuteIn
		want string
		exit int
	}{
		"value":             {ExecuteIn{Code: "const x = 20; x + 1"}, "= 21", 0},
		"no variables":      {ExecuteIn{Code: "typeof x"}, "= 'undefined'", 0},
		"await":             {ExecuteIn{Code: "await Promise.resolve(3)"}, "= 3", 0},
		"main":              {ExecuteIn{Code: "if (require.main === module) console.log('main', process.argv.length)"}, "stdout main 1⏎", 0},
		"waits for timers":  {ExecuteIn{Code: "setTimeout(() => console.log('late'), 20); 'first'"}, "= 'first'\nstdout late⏎", 0},
		"waits for promise": {ExecuteIn{Code: "(async () => { await new Promise(r => setTimeout(r, 20)); return 'done' })()"}, "= 'done'", 0},
		"error": {ExecuteIn{Code: "setTimeout(() => console.log('never'), 20); console.log('a'); throw " +
			"new Error('e')"}, "stdout a⏎\nerror Error: e", 1},
		"handled error": {ExecuteIn{Code: "process.on('uncaughtException', e => console.log('handled', " +
			"e.message)); throw new Error('e')"}, "stdout handled e⏎", 0},
		"late error":   {ExecuteIn{Code: "setTimeout(() => { throw new Error('e') }, 1); void 0"}, "error Error: e", 1},
		"exit":         {ExecuteIn{Code: "console.log('a'); process.exit(3)"}, "stdout a⏎", 3},
		"exit code":    {ExecuteIn{Code: "process.exitCode = 4; 'v'"}, "= 'v'", 4},
		"exit handler": {ExecuteIn{Code: "process.on('exit', c => console.log('bye', c)); 1"}, "= 1\nstdout bye 0⏎", 0},
		"never settles": {ExecuteIn{Code: "await new Promise(() => {})"},
			"error Error: the code awaits a promise that never settles", 13},
		"pending value": {ExecuteIn{Code: "new Promise(() => {})"}, "= Promise { <pending> }", 0},
		"killed": {ExecuteIn{Code: "process.kill(process.pid, 'SIGKILL'); await new Promise(r => " +
			"setTimeout(r, 10000))"},
			"error ProcessDied: the process was killed by SIGKILL; unless it was sent deliberately, the process ran out of memory", 137},
		"aborted": {ExecuteIn{Code: "process.kill(process.pid, 'SIGSEGV'); await new Promise(r => " +
			"setTimeout(r, 10000))"}, "error ProcessDied: the process was killed by SIGSEGV", 139},
		"stdin": {ExecuteIn{Code: "for await (const l of " +
			"require('readline').createInterface(process.stdin)) console.log('got', l)", Stdin: new("a\nb\n")}, "stdout got a⏎got b⏎", 0},
		"stdin descriptor": {ExecuteIn{Code: "require('fs').readFileSync(0, 'utf8')", Stdin: new("ä")}, "= 'ä'", 0},
		"no stdin":         {ExecuteIn{Code: "require('fs').readFileSync(0, 'utf8')"}, "= ''", 0},
		"files": {ExecuteIn{Code: "import { b } from './b.mjs'\n[require('./lib/a').a, b, " +
			"require('fs').readFileSync('c.txt', 'utf8'), require('pkg')]",
			Files: &map[string]string{"lib/a.js": "exports.a = 1", "b.mjs": "export const b = 2", "c.txt": "3"}}, "= [ 1, 2, '3', 'a package' ]", 0},
		"files and cwd": {ExecuteIn{Code: "[require('./a').a, require('fs').existsSync('data.json'), __dirname " +
			"!== process.cwd()]", Files: &map[string]string{"a.js": "exports.a = 1"}, Cwd: new(".")}, "= [ 1, true, true ]", 0},
		"cwd": {ExecuteIn{Code: "path.basename(process.cwd()) + require('./mod').double(1)", Cwd: new("lib")}, "= 'lib2'", 0},
		"fork": {ExecuteIn{Code: "require('child_process').fork('./lib/child.js').on('message', m => " +
			"console.log(m)); void 0"}, "stdout { hello: 'child' }⏎", 0},
		"null everywhere": {ExecuteIn{Code: "1", SessionID: new("")}, "= 1", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := execute(t, s, c.in)
			got := summarize(out.Outputs)
			if diff := cmp.Diff(c.want, got); diff != "" || out.ExitCode != c.exit || out.SessionID != nil || out.ExecutionCount != nil {
				t.Errorf("got %s\n%+v, want no difference, exit code %d, no session ID and no execution count", diff, out, c.exit)
			}
			if want := map[bool]string{true: "ok", false: "error"}[c.exit == 0]; out.Status != want {
				t.Errorf("got status %s, want %s", out.Status, want)
			}
		})
	}
}
