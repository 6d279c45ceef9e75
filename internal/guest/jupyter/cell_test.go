package jupyter

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image/png"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// cells run in this order in one session, and share variables.
var cells = []struct{ name, code, want string }{
	{"value", "1 + 1", "= 2"},
	{"empty", "", ""},
	{"comment", "# nothing", ""},
	{"assignment", "x = 41", ""},
	{"variable", "x + 1", "= 42"},
	{"last result", "_ + 1", "= 43"},
	{"None", "None", ""},
	{"text", "'it\\'s'", `= "it's"`},
	{"long integer", "2 ** 100", "= 1267650600228229401496703205376"},
	{"list", "[i * i for i in range(5)]", "= [0, 1, 4, 9, 16]"},
	{"dictionary", "{'a': [1, 2], 'b': None}", "= {'a': [1, 2], 'b': None}"},
	{"print", "print('a'); print('b', end='')", "stdout a⏎b"},
	{"print and value", "print('a'); 7", "stdout a⏎\n= 7"},
	{"semicolon", "7;", ""},
	{"both streams", "import sys\nprint('o', flush=True); print('e', file=sys.stderr)", "stdout o⏎\nstderr e⏎"},
	{"unicode", "print('äöü € 漢字 🎉'); '漢'", "stdout äöü € 漢字 🎉⏎\n= '漢'"},
	{"function", "def f(n):\n    return n * 2\nf(21)", "= 42"},
	{"class", "class A:\n    def __repr__(self): return 'an A'\nA()", "= an A"},
	{"import", "import math\nmath.floor(math.pi)", "= 3"},
	{"error", "1/0", "error ZeroDivisionError: division by zero"},
	{"error after output", "print('before')\nraise ValueError('bad')", "stdout before⏎\nerror ValueError: bad"},
	{"error keeps variables", "x", "= 41"},
	{"unknown name", "nope", "error NameError: name 'nope' is not defined"},
	{"syntax error", "def f(:", "error SyntaxError: invalid syntax (FILE, line 1)"},
	{"own error", "class Oops(Exception): pass\nraise Oops('x')", "error Oops: x"},
	{"error in error", "try:\n    1/0\nexcept ZeroDivisionError:\n    raise KeyError('k')", "error KeyError: 'k'"},
	{"await", "import asyncio\nawait asyncio.sleep(0.01, 'done')", "= 'done'"},
	{"shell line", "!echo hi", "stdout hi⏎"},
	{"shell into a variable", "l = !printf 'a\\nb'\nlist(l)", "= ['a', 'b']"},
	{"cell magic", "%%bash\necho from bash", "stdout from bash⏎"},
	{"capture magic", "%%capture c\nprint('hidden')", ""},
	{"captured", "c.stdout", "= 'hidden\\n'"},
	{"program in order", "import os\nprint('a'); os.system('echo b'); print('c')", "stdout a⏎b⏎c⏎"},
	{"input", "input('name? ')", "error StdinNotImplementedError: input is not available: the code runs without a terminal; " +
		"set the value in the code"},
	{"html", "from IPython.display import *\nHTML('<b>x</b>')", "= <IPython.core.display.HTML object> +text/html"},
	{"latex", "display(Latex('$x$'))", "show <IPython.core.display.Latex object> +text/latex"},
	{"markdown", "display(Markdown('# x'))", "show <IPython.core.display.Markdown object> +text/markdown"},
	{"two displays", "display(1, 'two')", "show 1\nshow 'two'"},
	{"clear", "print('a'); clear_output(); print('b')", "stdout b⏎"},
	{"display update", "h = display('a', display_id=True); print('x'); h.update('b')", "show 'b'\nstdout x⏎"},
	{"progress", "for i in range(3): print(f'\\r{i}', end='', flush=True)", "stdout 2"},
	{"logging", "import logging; logging.warning('watch out')", "stderr WARNING:root:watch out⏎"},
	{"thread", "import threading\nt = threading.Thread(target=lambda: print('in thread')); t.start(); t.join()", "stdout in thread⏎"},
	{"pandas", "import pandas as pd\npd.DataFrame({'a': [1, 2]})", "= a⏎0  1⏎1  2 +text/html"},
	{"numpy", "import numpy as np\nnp.arange(6).reshape(2, 3)", "= array([[0, 1, 2],⏎       [3, 4, 5]])"},
	{"system exit", "sys.exit(3)", "error SystemExit: 3"},
	{"alive", "x", "= 41"},
}

func cellTable(t *testing.T, s *Service, id string) {
	for _, c := range cells {
		out := runIn(t, s, id, c.code)
		got := summarize(out.Outputs)
		if i := strings.Index(got, "invalid syntax ("); i >= 0 {
			got = got[:i] + "invalid syntax (FILE" + got[strings.Index(got, ", line"):]
		}
		if i := strings.Index(got, "\nstderr "); c.name == "system exit" && i >= 0 {
			got = got[:i] // a warning of IPython
		}
		got = strings.Replace(got, "=    a⏎", "= a⏎", 1)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		bad := strings.HasPrefix(got, "error ") || strings.Contains(got, "\nerror ")
		if (out.Status == "error") != bad || out.KernelName != "python3" || *out.SessionID != id || out.Code != c.code || *out.MsgID == "" {
			t.Errorf(`%s: got %+v, want an error: %v, kernel "python3", session %q, code %q and a message ID`,
				c.name, out, bad, id, c.code)
		}
		for _, o := range out.Outputs {
			if o.Type == "error" && (len(*o.Traceback) == 0 || strings.ContainsRune(strings.Join(*o.Traceback, ""), 0x1b)) {
				t.Errorf("%s: got traceback %q, want some lines without escapes", c.name, *o.Traceback)
			}
			if o.Type == "execute_result" && *o.ExecutionCount != *out.ExecutionCount {
				t.Errorf("%s: got count %d, want %d", c.name, *o.ExecutionCount, *out.ExecutionCount)
			}
		}
	}
}

func figureIsPNG(t *testing.T, s *Service, id string) {
	runIn(t, s, id, "import matplotlib.font_manager") // prints a note if it is slow
	out := runIn(t, s, id, "import matplotlib.pyplot as plt, pandas as pd\npd.DataFrame({'a': [1, 3, 2]}).plot()\nplt.show()")
	if got := summarize(out.Outputs); got != "show <Figure size 640x480 with 1 Axes> +image/png" {
		t.Fatalf(`got %v, want "show <Figure size 640x480 with 1 Axes> +image/png"`, got)
	}
	b, err := base64.StdEncoding.DecodeString((*out.Outputs[0].Data)["image/png"].(string))
	if err != nil {
		t.Fatal(err)
	}
	if i, err := png.Decode(bytes.NewReader(b)); err != nil || i.Bounds().Dx() < 100 {
		t.Error(err)
	}
}

func TestOutputsHaveAllFields(t *testing.T) {
	t.Parallel()
	s := newService(t)
	out := execute(t, s, ExecuteIn{Code: "print('a')"})
	b, err := json.Marshal(out.Outputs)
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"output_type":"stream","name":"stdout","text":"a\n","data":null,"metadata":null,` +
		`"execution_count":null,"ename":null,"evalue":null,"traceback":null}]`
	if string(b) != want || out.SessionID != nil || *out.ExecutionCount != 1 {
		t.Errorf("got %s\n%+v, want %q, no session ID and execution count 1", b, out, want)
	}
}
