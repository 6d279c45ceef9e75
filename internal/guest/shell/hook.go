package shell

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/vt"
)

// cancel ends whatever sequence a program left unfinished.
const cancel = "\x18"

// hook obeys what the shell's hooks say, as rc.bash describes it. It is called by
// the scanner, with the lock held.
func (t *terminal) hook(body []byte) bool {
	kind, rest, _ := strings.Cut(string(body), ";")
	key, rest, _ := strings.Cut(rest, ";")
	switch {
	case key == t.key:
	case key == t.next && key != "": // the shell has read the command
		t.key, t.next = key, ""
		t.notify()
	default:
		return false
	}
	switch kind {
	case "L":
	case "S":
		if c := t.current; c == nil {
			t.typed()
		}
		t.shown, t.mute = false, t.mute && t.next == ""
	case "R":
		if c := t.current; c != nil && c.key == key {
			t.begin()
		}
	case "E":
		if c := t.current; c != nil && c.key == key {
			code, dir, _ := strings.Cut(rest, ";")
			t.moved(dir)
			t.finish(c, number(code))
		}
	case "P":
		t.prompt(key, rest)
	case "B":
		if !t.mute {
			t.await(rest)
		}
	case "2":
		if c := t.current; c == nil || !c.hasBegun() {
			// Directly after P it is bash's mistake for the first prompt, after set +o emacs.
			t.shown, t.more = !t.prompted.IsZero(), t.prompted.IsZero()
			t.prompted = time.Time{}
			t.notify()
		}
	default:
		return false
	}
	return true
}

// notify wakes those who wait for the shell's state to change.
func (t *terminal) notify() {
	t.entered = time.Time{}
	close(t.turn)
	t.turn = make(chan struct{})
}

// typed notes that a line begins to run that a person typed: what the screen shows
// since the prompt.
func (t *terminal) typed() {
	c := newCommand(strings.TrimSpace(allOf(t.screen.Text())))
	c.typed, c.ps1 = true, t.ps1
	t.current = c
	t.begin()
}

// begin notes that the current command begins to run. It may be told twice.
func (t *terminal) begin() {
	c := t.current
	if !c.hasBegun() {
		close(c.begun)
	}
	if t.mute {
		t.mute = false
		line := echo(c.text)
		if strings.TrimSpace(allOf(t.screen.Text())) != "" { // somebody was typing
			line = "\r\n" + t.ps1 + " " + line
		}
		if t.screen.BracketedPaste() { // the line editor's own goodbye was not shown
			line += "\x1b[?2004l"
		}
		t.show([]byte(line))
	}
	t.shown, t.more, t.doubt = false, false, false
	t.changed = time.Now()
	t.screen.Write([]byte(cancel))
	t.screen.Mark()
	t.notify()
}

// finish notes the end of the current command.
func (t *terminal) finish(c *command, code int) {
	t.screen.Write([]byte(cancel))
	text := t.screen.Text()
	if !c.hasBegun() {
		close(c.begun)
		text = vt.Text{}
	}
	c.output = shorten(text, maxOutput)
	if c.full {
		c.all = allOf(text)
	}
	c.exit, c.status = &code, completed
	if c.reason != "" {
		c.status = c.reason
	}
	if c.limit != nil && c.limit.Stop() {
		t.ss.service.tasks.Done()
	}
	t.current, t.doubt = nil, false
	t.ss.last = c
	t.ss.used = time.Now()
	t.ss.remember(c.record())
	close(c.done)
	t.notify()
}

// prompt notes that the shell is about to show its prompt: exit code, whether our
// last command began to run, directory.
func (t *terminal) prompt(key, rest string) {
	fields := strings.SplitN(rest, ";", 3)
	if len(fields) < 3 {
		return
	}
	if c := t.current; c != nil && (c.hasBegun() || c.key == key && fields[1] == "1") {
		t.finish(c, number(fields[0]))
	}
	t.moved(fields[2])
	t.mute, t.more = false, false
	t.prompts++
	t.prompted = time.Now()
	if t.screen.Alt() { // its program was killed
		t.log.write([]byte("\x1b[?1049l\x1b[!p"))
	}
	t.screen.Write([]byte(cancel))
	t.screen.SoftReset()
	t.screen.Mark()
	t.notify()
}

// await notes that the prompt was shown: exit code, number of jobs, whether the
// shell was about to.
func (t *terminal) await(rest string) {
	fields := strings.SplitN(rest, ";", 3)
	if len(fields) < 3 {
		return
	}
	t.code, t.jobs = number(fields[0]), number(fields[1])
	if c := t.current; c != nil && c.hasBegun() {
		// A command that prints the prompt, or the shell at a prompt that the hook
		// before it was taken from.
		t.doubt = fields[2] != "1"
		if t.doubt {
			return
		}
		t.finish(c, t.code)
	}
	t.prompted = time.Time{}
	t.ps1 = strings.Trim(allOf(t.screen.Text()), " \n")
	t.screen.Mark()
	t.shown, t.more = true, false
	t.notify()
}

// settle ends a command whose end was in doubt, once the line editor has the
// terminal. The lock is held.
func (t *terminal) settle() {
	c := t.current
	if !t.doubt || c == nil || !c.hasBegun() {
		return
	}
	mode, err := t.tty.Mode()
	if err != nil || mode.Canonical {
		return
	}
	if group, err := t.tty.Foreground(); err != nil || group != t.p.PID() {
		return
	}
	t.finish(c, t.code)
	t.shown = true
	t.screen.Mark()
	t.notify()
}

// moved notes the shell's directory. One with control characters is not told.
func (t *terminal) moved(dir string) {
	if dir == "" {
		dir, _ = os.Readlink("/proc/" + strconv.Itoa(t.p.PID()) + "/cwd")
	}
	if dir != "" {
		t.dir = dir
	}
}

func number(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// handOver is what the shell reads when it is asked to take a command.
func handOver(key string, c *command) []byte {
	var b bytes.Buffer
	for _, field := range []string{key, c.dir, c.flags, c.text} {
		b.WriteString(field)
		b.WriteByte(0)
	}
	return b.Bytes()
}
