package shell

import (
	"bytes"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
)

// cancel ends an unfinished control sequence of a program.
const cancel = "\x18"

// handleHook processes a message of the shell's hooks, which rc.bash describes. The
// scanner calls it with the lock held.
func (t *terminal) handleHook(body []byte) bool {
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
		t.mute = true
	case "S":
		if c := t.current; c == nil {
			t.startTypedCommand()
		}
		t.shown, t.mute = false, t.mute && t.next == ""
	case "R":
		if c := t.current; c != nil && c.key == key {
			t.startCommand()
		}
	case "E":
		if c := t.current; c != nil && c.key == key {
			code, dir, _ := strings.Cut(rest, ";")
			t.setDir(dir)
			t.finishCommand(c, parseInt(code))
		}
	case "P":
		t.onPrompt(key, rest)
	case "B":
		if !t.mute {
			t.onPromptShown(rest)
			t.mute = t.next != "" // the line editor reads the loading keys next
		}
	case "2":
		if c := t.current; c == nil || !c.hasStarted() {
			// Directly after P it is the first prompt, because of a bug of bash after set +o emacs.
			t.shown, t.more = !t.prompted.IsZero(), t.prompted.IsZero()
			t.prompted = time.Time{}
			t.notify()
		}
	default:
		return false
	}
	return true
}

// notify wakes goroutines that wait for a change of the shell's state.
func (t *terminal) notify() {
	t.entered = time.Time{}
	close(t.turn)
	t.turn = make(chan struct{})
}

// startTypedCommand records the start of a typed line, which is the text on the screen since
// the prompt.
func (t *terminal) startTypedCommand() {
	c := newCommand(strings.TrimSpace(trimText(t.display.screen.Text())))
	c.typed = true
	t.current = c
	t.startCommand()
}

// startCommand records the start of the current command. It may be called twice.
func (t *terminal) startCommand() {
	c := t.current
	c.ps1 = t.ps1
	if !c.hasStarted() {
		close(c.begun)
	}
	if t.mute {
		t.mute = false
		line := formatEcho(c.text)
		if strings.TrimSpace(trimText(t.display.screen.Text())) != "" { // a viewer was typing
			line = "\r\n" + t.ps1 + " " + line
		}
		if t.display.screen.BracketedPaste() { // the line editor's own reset was muted
			line += "\x1b[?2004l"
		}
		t.display.show([]byte(line))
	}
	t.shown, t.more, t.doubt = false, false, false
	t.changed = time.Now()
	_, _ = t.display.screen.Write([]byte(cancel))
	t.display.screen.Mark()
	t.notify()
}

// finishCommand records the end of the current command.
func (t *terminal) finishCommand(c *command, code int) {
	_, _ = t.display.screen.Write([]byte(cancel))
	text := t.display.screen.Text()
	if !c.hasStarted() {
		close(c.begun)
		text = vt.Text{}
	}
	c.output = shorten(text, maxOutput)
	if c.full {
		c.all = trimText(text)
	}
	if c.followers > 0 {
		c.kept = text
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
	t.ss.Touch()
	t.ss.addRecord(c.toRecord())
	if ran := t.ss.service.Ran; ran != nil && c.typed && c.text != "" {
		call, r := t.typist, Ran{Session: t.ss.ID, Command: c.text, Output: c.output, ExitCode: code, Began: c.made}
		t.ss.service.tasks.Go(func() { ran(call, r) }) // without the lock
	}
	close(c.done)
	t.notify()
}

// onPrompt records that the shell is about to show its prompt. The fields are the exit
// code, whether the last API command started, and the directory.
func (t *terminal) onPrompt(key, rest string) {
	fields := strings.SplitN(rest, ";", 3)
	if len(fields) < 3 {
		return
	}
	if c := t.current; c != nil && (c.hasStarted() || c.key == key && fields[1] == "1") {
		t.finishCommand(c, parseInt(fields[0]))
	}
	t.setDir(fields[2])
	t.mute, t.more = false, false
	t.prompts++
	t.prompted = time.Now()
	if t.display.screen.Alt() { // a full-screen program was killed
		t.display.log.write([]byte("\x1b[?1049l\x1b[!p"))
	}
	_, _ = t.display.screen.Write([]byte(cancel))
	t.display.screen.SoftReset()
	t.display.screen.Mark()
	t.notify()
}

// onPromptShown records that the prompt was shown. The fields are the exit code, the
// number of jobs, and whether the shell was about to show it.
func (t *terminal) onPromptShown(rest string) {
	fields := strings.SplitN(rest, ";", 3)
	if len(fields) < 3 {
		return
	}
	t.code, t.jobs = parseInt(fields[0]), parseInt(fields[1])
	if c := t.current; c != nil && c.hasStarted() {
		// Either the command prints the prompt, or the shell shows a prompt whose first hook
		// was removed.
		t.doubt = fields[2] != "1"
		if t.doubt {
			return
		}
		t.finishCommand(c, t.code)
	}
	t.prompted = time.Time{}
	t.ps1 = strings.Trim(trimText(t.display.screen.Text()), " \n")
	t.display.screen.Mark()
	t.shown, t.more = true, false
	t.notify()
}

// resolveDoubt ends a command whose end is in doubt if the line editor has the terminal. The
// lock is held.
func (t *terminal) resolveDoubt() {
	c := t.current
	if !t.doubt || c == nil || !c.hasStarted() {
		return
	}
	mode, err := t.tty.Mode()
	if err != nil || mode.Canonical {
		return
	}
	if group, err := t.tty.Foreground(); err != nil || group != t.p.PID() {
		return
	}
	t.finishCommand(c, t.code)
	t.shown = true
	t.display.screen.Mark()
	t.notify()
}

// setDir records the shell's directory. It is empty if it has control characters.
func (t *terminal) setDir(dir string) {
	if dir == "" {
		dir, _ = os.Readlink("/proc/" + strconv.Itoa(t.p.PID()) + "/cwd")
	}
	if dir != "" {
		t.dir = dir
	}
}

func parseInt(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// encodeCommand encodes a command for the file that the shell reads.
func encodeCommand(key string, c *command) []byte {
	var b bytes.Buffer
	for _, field := range []string{key, c.dir, c.flags, c.text} {
		b.WriteString(field)
		b.WriteByte(0)
	}
	return b.Bytes()
}
