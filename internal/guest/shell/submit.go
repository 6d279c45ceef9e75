package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// takeLimit is how long a shell may take to show its prompt and to start a command.
	takeLimit = 30 * time.Second
	// readLimit is how long it may take to read the keys that load a command.
	readLimit = 5 * time.Second
	// interruptPause is how long a shell may take to discard an incomplete command.
	interruptPause = time.Second
	// enterPause is how long it may take to react to Enter.
	enterPause = time.Second
	// promptPause is how long to wait for the prompt once the line editor may have the
	// terminal. If stderr of the shell was redirected, the prompt is never shown.
	promptPause = 50 * time.Millisecond
	// promptLimit is how long to wait for the prompt while the line editor does not have the
	// terminal: it is off, or the shell still computes the prompt.
	promptLimit = 2 * time.Second
)

// The keys that load a command into the line editor, and the line to type if the line editor
// is off.
const (
	loadKeys = "\x1b[7001~"
	loadLine = "\x15 \\__cove l; \\__cove s 2>/dev/null; ! \\eval \"$__cove_c\"; { \\__cove e \"${PIPESTATUS[0]}\" && \\:; } 2>/dev/null\r"
)

// run runs a command in the session's shell. Once the shell has accepted it, the command runs
// even if the request is canceled.
func (ss *Session) run(ctx context.Context, c *command) (*terminal, error) {
	for range 3 {
		t, err := ss.ensureShell(ctx)
		if err != nil {
			return nil, err
		}
		if err := t.claim(c); err != nil {
			return nil, err
		}
		err = t.submit(ctx, c)
		if err == nil {
			return t, nil
		}
		if ended := t.unclaim(c); ended {
			return nil, op.Errorf(op.Canceled, "the command was terminated before it started")
		}
		if !errors.Is(err, errEnded) {
			return nil, err
		}
		<-t.done // the shell ended before it accepted the command: use another one
	}
	return nil, op.Errorf(op.Unavailable, "the shell of session %q exits immediately after its start; check ~/.bashrc", ss.ID)
}

// claim makes c the current command of the shell if none runs.
func (t *terminal) claim(c *command) error {
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.resolveDoubt()
	if other := t.current; other != nil {
		return op.Errorf(op.Conflict, "session %q is busy: %q is still running; wait for it (shell_wait), type "+
			"into it (shell_write), end it (shell_kill), or use another session", t.ss.ID, clip(other.text, 200))
	}
	t.current = c
	c.ps1 = t.ps1
	return nil
}

// clip shortens a text for messages.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// unclaim releases a command that the shell did not accept, and reports whether a caller
// wanted to end it.
func (t *terminal) unclaim(c *command) (ended bool) {
	os.Remove(t.path + ".cmd")
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.mute = false // its key stays valid: the shell may have read it already
	if t.current == c {
		t.current = nil
	}
	return c.reason != ""
}

// errEnded is the error of a shell that has ended.
var errEnded = errors.New("the shell has ended")

// submit passes a command to the shell and returns when it runs. Input typed earlier would
// reach the line editor.
func (t *terminal) submit(ctx context.Context, c *command) error {
	wait, cancel := context.WithTimeout(ctx, takeLimit)
	defer cancel()
	for {
		if err := t.waitForPrompt(wait); err != nil {
			return t.submitError(ctx, err)
		}
		if taken, err := t.passCommand(wait, c); taken || err != nil {
			os.Remove(t.path + ".cmd")
			return t.submitError(ctx, err)
		}
	}
}

func (t *terminal) submitError(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, errEnded) {
		return err
	}
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	if _, ok := op.AsError(err); ok {
		return err
	}
	return op.Errorf(op.Unavailable,
		"the shell of session %q did not show its prompt within %v; check it with shell_view, or end it with "+
			"shell_kill or DELETE /v1/shell/sessions/{id}", t.ss.ID, takeLimit)
}

// waitForPrompt waits until the shell is at its prompt.
func (t *terminal) waitForPrompt(ctx context.Context) error {
	var interrupted time.Time
	for {
		t.ss.mu.Lock()
		ready, again := t.atPrompt()
		more, turn := t.more, t.turn
		t.ss.mu.Unlock()
		switch {
		case ready:
			return nil
		case more && time.Since(interrupted) >= interruptPause:
			// A viewer typed an incomplete command, which would absorb this one. The shell may
			// miss the interrupt if the viewer continues to type.
			interrupted = time.Now()
			if err := t.input.interrupt(readLimit); err != nil {
				return err
			}
			again = interruptPause
		}
		timer := time.NewTimer(again)
		select {
		case <-turn:
		case <-timer.C:
		case <-t.done:
			return errEnded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		timer.Stop()
	}
}

// atPrompt reports whether the shell waits for a command, and if not, the maximum time until
// the next check. The lock is held.
func (t *terminal) atPrompt() (bool, time.Duration) {
	switch {
	case t.more:
	case t.shown:
		// Enter was pressed, and the shell has not reacted yet.
		left := enterPause - time.Since(t.entered)
		return left <= 0, left
	case !t.prompted.IsZero():
		age := time.Since(t.prompted)
		if mode, err := t.tty.Mode(); age >= promptPause && age < promptLimit && (err != nil || mode.Canonical) {
			return false, promptPause
		}
		return age >= promptPause, promptPause - age
	}
	return false, interruptPause
}

// passCommand passes a command to the shell at its prompt. No viewer can type meanwhile. False
// means: try again.
func (t *terminal) passCommand(ctx context.Context, c *command) (taken bool, err error) {
	t.submitLock.Lock()
	defer t.submitLock.Unlock()
	keys := loadKeys
	if mode, err := t.tty.Mode(); err == nil && mode.Canonical {
		// The line editor is off, or the shell does something unknown.
		keys = loadLine
		select {
		case <-time.After(promptPause):
		case <-t.done:
		}
		if mode, err := t.tty.Mode(); err != nil || !mode.Canonical {
			return false, nil
		}
	}
	if !t.input.translatesNewlines() && !strings.Contains(c.flags, "sane") {
		c.flags += " sane"
	}
	key := rand.Text()
	t.ss.mu.Lock()
	ready, _ := t.atPrompt()
	if ready {
		// A pending prompt is shown first. The kernel's echo is not shown.
		t.next, t.mute, c.key = key, t.shown || keys == loadLine, key
	}
	prompts := t.prompts
	t.ss.mu.Unlock()
	if !ready {
		return false, nil
	}
	t.marks.remember(key)
	if err := os.WriteFile(t.path+".cmd", encodeCommand(key, c), 0o600); err != nil {
		return false, op.Errorf(op.Unavailable, "pass the command to the shell: %w", err)
	}
	if err := t.input.typeKeys(keys, readLimit); err != nil {
		return false, err
	}
	// From here the command may run, even if the request is canceled.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*readLimit)
	defer cancel()
	taken, err = t.waitUntilTaken(ctx, c, prompts)
	if taken {
		return true, nil
	}
	if t.marks.revoke(key, t.done) {
		t.ss.mu.Lock()
		defer t.ss.mu.Unlock()
		c.key = "" // hooks of its line no longer concern it
		return c.hasStarted(), err
	}
	// It was about to run.
	select {
	case <-c.begun:
	case <-t.done:
		if !c.hasStarted() {
			return false, errEnded
		}
	case <-time.After(enterPause): // the message of its hook was lost
		t.ss.mu.Lock()
		defer t.ss.mu.Unlock()
		if t.current == c && !c.hasStarted() {
			t.startCommand()
		}
	}
	return true, nil
}

// waitUntilTaken waits until the shell runs the command. False means that its keys went to
// an incomplete typed command, or to a program that was started at the same moment.
func (t *terminal) waitUntilTaken(ctx context.Context, c *command, prompts int) (bool, error) {
	lost := time.NewTimer(readLimit)
	defer lost.Stop()
	for {
		t.ss.mu.Lock()
		turn, elsewhere := t.turn, t.prompts != prompts || t.more
		read := t.next == "" // the command was read; only its prompt can follow
		t.ss.mu.Unlock()
		switch {
		case c.hasStarted():
			return true, nil
		case elsewhere && read:
			return false, nil
		}
		select {
		case <-turn:
		case <-lost.C:
			if !read {
				return false, nil
			}
		case <-t.done:
			if c.hasStarted() {
				return true, nil
			}
			return false, errEnded
		case <-ctx.Done():
			if c.hasStarted() {
				return true, nil
			}
			return false, context.Cause(ctx)
		}
	}
}
