package kernel

import (
	"bytes"
	"encoding/base64"
	"image/png"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// brief formats outputs one per line, for readable tables.
func brief(outputs []Output) string {
	var lines []string
	for _, o := range outputs {
		switch o.Type {
		case Stream:
			lines = append(lines, o.Name+" "+strings.ReplaceAll(o.Text, "\n", "⏎"))
		case Error:
			lines = append(lines, "error "+o.EName+": "+o.EValue)
		default:
			text, _ := o.Data["text/plain"].(string)
			for _, media := range []string{"text/html", "text/latex", "text/markdown", "application/json", "image/png"} {
				if _, ok := o.Data[media]; ok {
					text += " +" + media
				}
			}
			lines = append(lines, strings.TrimSuffix(o.Type, "_data")+" "+strings.ReplaceAll(text, "\n", "⏎"))
		}
	}
	return strings.Join(lines, "\n")
}

// cells run in this order in one kernel, and share variables.
var cells = []struct{ name, code, want string }{
	{"value", "1 + 1", "execute_result 2"},
	{"nothing", "x = 41", ""},
	{"empty", "", ""},
	{"comment", "# nothing", ""},
	{"variable", "x + 1", "execute_result 42"},
	{"None", "None", ""},
	{"last result", "_ + 1", "execute_result 43"},
	{"semicolon", "x;", ""},
	{"print", "print('a'); print('b')", "stdout a⏎b⏎"},
	{"print and value", "print('a'); 7", "stdout a⏎\nexecute_result 7"},
	{"no newline", "print('a', end='')", "stdout a"},
	{"both streams", "import sys\nprint('o'); sys.stdout.flush(); print('e', file=sys.stderr)", "stdout o⏎\nstderr e⏎"},
	{"unicode", "print('äöü € 漢字 🎉')", "stdout äöü € 漢字 🎉⏎"},
	{"lone surrogate", "print('a\\ud800b'.encode('utf-8', 'replace').decode())", "stdout a?b⏎"},
	{"carriage return", "for i in range(3): print(f'\\r{i}', end='', flush=True)", "stdout 2"},
	{"error", "1/0", "error ZeroDivisionError: division by zero"},
	{"error after output", "print('before')\nraise ValueError('bad')", "stdout before⏎\nerror ValueError: bad"},
	{"error keeps variables", "x", "execute_result 41"},
	{"syntax error", "def f(:", "error SyntaxError: invalid syntax (FILE, line 1)"},
	{"name error", "nope", "error NameError: name 'nope' is not defined"},
	{"own exception", "class Oops(Exception): pass\nraise Oops('x', 1)", "error Oops: ('x', 1)"},
	{"system exit", "import sys\nsys.exit(3)", "REGEXP error SystemExit: 3\nstderr .*To exit: use 'exit'.*"},
	{"alive after system exit", "x", "execute_result 41"},
	{"function", "def f(n):\n    return n * 2\nf(21)", "execute_result 42"},
	{"import", "import math\nmath.floor(math.pi)", "execute_result 3"},
	{"await", "import asyncio\nawait asyncio.sleep(0.01)\n'done'", "execute_result 'done'"},
	{"async task", "async def g(): return 5\nawait asyncio.gather(g(), g())", "execute_result [5, 5]"},
	{"thread", "import threading\nt = threading.Thread(target=lambda: print('in thread')); t.start(); t.join()", "stdout in thread⏎"},
	{"os.system", "import os\nprint('a'); os.system('echo b'); print('d')", "stdout a⏎b⏎d⏎"},
	{"os.system to stderr", "_ = os.system('echo c >&2')", "stderr c⏎"}, // alone: the order of two streams is undefined
	{"subprocess", "import subprocess\nprint(1); subprocess.run(['echo', '2']); print(3)", "stdout 1⏎2⏎3⏎"},
	{"subprocess to sys.stdout", "subprocess.run(['echo', 'x'], stdout=sys.stdout).returncode", "stdout x⏎\nexecute_result 0"},
	{"subprocess prints letters", "_ = os.system('for i in $(seq 400); do printf ä€; done')", "stdout " + strings.Repeat("ä€", 400)},
	{"descriptor", "_ = os.write(1, b'raw\\n')", "stdout raw⏎"},
	{"multiprocessing", "import multiprocessing as mp\nwith mp.get_context('fork').Pool(2) as p: r = p.map(abs, " +
		"[-1, -2])\nr", "execute_result [1, 2]"},
	{"output of a forked process",
		"import os, sys\npid = os.fork()\nif pid == 0:\n    print('child', flush=True)\n    os._exit(0)\n_ = " +
			"os.waitpid(pid, 0)", "stdout child⏎"},
	{"no port is open", "import os, socket\nown = {os.readlink(f'/proc/self/fd/{fd}') for fd in " +
		"os.listdir('/proc/self/fd') if os.path.islink(f'/proc/self/fd/{fd}')}\n" +
		"lines = [l.split() for name in ('tcp', 'tcp6') for l in open(f'/proc/self/net/{name}')]\n[l[1] for l in " +
		"lines if l[3] == '0A' and f'socket:[{l[9]}]' in own]", "execute_result []"},
	{"shell", "!echo hi", "stdout hi⏎"},
	{"shell to stderr", "!echo oops >&2", "stderr oops⏎"},
	{"shell and input", "!cat; echo over", "stdout over⏎"},
	{"shell into a variable", "l = !printf 'a\\nb'\nlist(l)", "execute_result ['a', 'b']"},
	{"shell with a variable", "!echo {x}", "stdout 41⏎"},
	{"cell magic", "%%bash\necho from bash", "stdout from bash⏎"},
	{"line magic", "%time x", "REGEXP (?s)stdout CPU times.*execute_result 41"},
	{"capture magic", "%%capture c\nprint('hidden')", ""},
	{"captured", "c.stdout", "execute_result 'hidden\\n'"},
	{"unknown magic", "%nope", "REGEXP stderr UsageError: .*%nope.*"},
	{"pip", "%pip --version", "REGEXP stdout pip .*\\.venv.*"},
	{"environment", "!which python", "REGEXP stdout .*\\.venv/bin/python⏎"},
	{"help", "len?", "REGEXP display Signature: len.*number of items.*"},
	{"input", "input('name? ')", "error StdinNotImplementedError: " + noInput},
	{"getpass", "import getpass\ngetpass.getpass()", "error StdinNotImplementedError: " + noInput},
	{"display", "from IPython.display import *\ndisplay('a', 'b')", "display 'a'\ndisplay 'b'"},
	{"html", "HTML('<b>x</b>')", "execute_result <IPython.core.display.HTML object> +text/html"},
	{"latex", "display(Latex('$x$'))", "display <IPython.core.display.Latex object> +text/latex"},
	{"markdown", "display(Markdown('# x'))", "display <IPython.core.display.Markdown object> +text/markdown"},
	{"json", "display(JSON({'a': [1, 2]}))", "display <IPython.core.display.JSON object> +application/json"},
	{"clear", "print('a'); clear_output(); print('b')", "stdout b⏎"},
	{"clear waits", "for i in range(3):\n    clear_output(wait=True); print(i)", "stdout 2⏎"},
	{"display update", "h = display('a', display_id=True); print('x'); h.update('b')", "display 'b'\nstdout x⏎"},
	{"display update later", "h.update('c'); h.update('d')", "display 'd'"},
	{"order", "print('a'); display('b'); os.system('echo c'); display('d'); print('e')",
		"stdout a⏎\ndisplay 'b'\nstdout c⏎\ndisplay 'd'\nstdout e⏎"},
	{"own stdout", "import io\nkeep = sys.stdout; sys.stdout = io.StringIO(); print('lost'); _ = os.system('echo " +
		"kept'); s = sys.stdout; sys.stdout = keep\ns.getvalue()", "stdout kept⏎\nexecute_result 'lost\\n'"},
	{"pandas", "import pandas as pd\npd.DataFrame({'a': [1, 2]})", "execute_result    a⏎0  1⏎1  2 +text/html"},
	{"long int", "10**30", "execute_result 1000000000000000000000000000000"},
	{"warning", "import warnings; warnings.warn('careful')", "REGEXP stderr .*UserWarning: careful.*"},
	{"logging", "import logging; logging.warning('watch out')", "stderr WARNING:root:watch out⏎"},
	{"exception in exception", "try:\n    1/0\nexcept ZeroDivisionError:\n    raise KeyError('k')", "error KeyError: 'k'"},
	{"count", "len(In) > 50 and In[1]", "execute_result '1 + 1'"},
}

func TestCells(t *testing.T) {
	t.Parallel()
	k := start(t)
	if i := k.Info(); i.Language != "python" || i.Implementation != "ipython" || i.LanguageVersion == "" || i.Version == "" {
		t.Errorf(`got info %+v, want language "python", implementation "ipython", a language version and a version`, i)
	}
	count, file := 0, regexp.MustCompile(`\(\w+\.py, `)
	for _, c := range cells {
		reply, outputs := run(t, k, c.code)
		if c.code != "" && !strings.HasPrefix(c.code, "#") {
			count++
		}
		if c.code != "" && reply.ExecutionCount < count {
			t.Errorf("%s: got count %d, want %d", c.name, reply.ExecutionCount, count)
		}
		got := file.ReplaceAllString(brief(outputs), "(FILE, ")
		if pattern, ok := strings.CutPrefix(c.want, "REGEXP "); ok {
			if !regexp.MustCompile("^" + pattern + "$").MatchString(got) {
				t.Errorf("%s: got %s, want a match of %q", c.name, got, pattern)
			}
		} else if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		failed := strings.Contains(got, "error ") || strings.Contains(got, "UsageError")
		if (reply.Status == "error") != failed || reply.Dropped != 0 || reply.Exit {
			t.Errorf("%s: got reply %+v, want an error: %v, nothing dropped and no exit", c.name, reply, failed)
		}
		for _, o := range outputs {
			if o.Type == Error && !strings.Contains(strings.Join(o.Traceback, "\n"), o.EName) ||
				strings.ContainsRune(strings.Join(o.Traceback, ""), 0x1b) {
				t.Errorf("%s: got traceback %q, want %q in it and no escapes", c.name, o.Traceback, o.EName)
			}
		}
	}
}

func TestFigureIsAPNG(t *testing.T) {
	t.Parallel()
	k := start(t)
	_, outputs := run(t, k, "import matplotlib.pyplot as plt\nplt.plot([1, 2, 3]);")
	if len(outputs) == 0 || outputs[len(outputs)-1].Type != DisplayData {
		t.Fatalf("got %s, want at least 1 output and last type %q", brief(outputs), DisplayData)
	}
	text, _ := outputs[len(outputs)-1].Data["image/png"].(string)
	b, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(b)); err != nil {
		t.Error(err)
	}
}
