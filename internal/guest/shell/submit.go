package shell

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
)

const (
	// takeLimit is how long a shell may take to come to its prompt and begin a command.
	takeLimit = 30 * time.Second
	// handLimit is how long it may take to read the keys by which it is given one.
	handLimit = 5 * time.Second
	// interruptPause is how long a shell may take to give up half a command.
	interruptPause = time.Second
	// enterPause is how long it may take to do what Enter says.
	enterPause = time.Second
	// promptPause is how long after the end of a command its prompt is awaited; it
	// is never seen when the shell's stderr went elsewhere.
	promptPause = 50 * time.Millisecond
)

// The keys that hand a command to the line editor, and the line to type when the
// line editor is off.
const (
	loadKeys = "\x1b[7001~"
	loadLine = "\x15 \\__cove l; \\__cove s 2>/dev/null; ! \\eval \"$__cove_c\"; { \\__cove e \"${PIPESTATUS[0]}\" && \\:; } 2>/dev/null\r"
)

// run makes the session's shell run a command. Once the shell has taken it, the
// caller's going away changes nothing.
func (ss *session) run(ctx context.Context, c *command) (*terminal, error) {
	for range 3 {
		t, err := ss.shell(ctx)
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
			return nil, op.Errorf(op.Canceled, "the command was ended before it began")
		}
		if !errors.Is(err, errEnded) {
			return nil, err
		}
		<-t.done // it ended before it took the command: another one runs it
	}
	return nil, op.Errorf(op.Unavailable, "the shell of session %q ends as soon as it was started; look at ~/.bashrc", ss.id)
}

// claim makes c the one command of the shell.
func (t *terminal) claim(c *command) error {
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.settle()
	if other := t.current; other != nil {
		return op.Errorf(op.Conflict, "session %q is busy: %q still runs in it; wait for it (shell_wait), type into it (shell_write), end it (shell_kill), or use another session", t.ss.id, clip(other.text, 200))
	}
	t.current = c
	c.ps1 = t.ps1
	return nil
}

// clip is the beginning of a text, for messages.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// unclaim gives up a command that the shell did not take, and tells whether
// somebody wanted it ended.
func (t *terminal) unclaim(c *command) (ended bool) {
	os.Remove(t.path + ".cmd")
	t.ss.mu.Lock()
	defer t.ss.mu.Unlock()
	t.mute = false // but its key is still good: the shell may have read it a moment ago
	if t.current == c {
		t.current = nil
	}
	return c.reason != ""
}

// errEnded says that the shell has ended.
var errEnded = errors.New("the shell has ended")

// submit hands a command to the shell and returns when it runs. Only then is the
// terminal as the command shall find it: what is typed earlier would go to the
// line editor.
func (t *terminal) submit(ctx context.Context, c *command) error {
	wait, cancel := context.WithTimeout(ctx, takeLimit)
	defer cancel()
	for {
		if err := t.ready(wait); err != nil {
			return t.explain(ctx, err)
		}
		if taken, err := t.hand(wait, c); taken || err != nil {
			os.Remove(t.path + ".cmd")
			return t.explain(ctx, err)
		}
	}
}

func (t *terminal) explain(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, errEnded) {
		return err
	}
	if ctx.Err() != nil {
		return canceled(ctx)
	}
	return op.Errorf(op.Unavailable, "the shell of session %q takes no command: its prompt did not come within %v; shell_view shows what is there, shell_kill or DELETE /v1/shell/sessions/{id} ends it", t.ss.id, takeLimit)
}

// ready waits until the shell is at its prompt.
func (t *terminal) ready(ctx context.Context) error {
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
			// Half a command was typed; it would swallow ours. The shell may miss
			// this while somebody types on.
			interrupted = time.Now()
			if err := t.interrupt(time.Second); err != nil {
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

// atPrompt tells whether the shell waits for a command, and else when to ask again
// at the latest. The lock is held.
func (t *terminal) atPrompt() (bool, time.Duration) {
	switch {
	case t.more:
	case t.shown:
		// Somebody pressed Enter: what comes of it is not known yet.
		left := enterPause - time.Since(t.entered)
		return left <= 0, left
	case !t.prompted.IsZero():
		left := promptPause - time.Since(t.prompted)
		return left <= 0, left
	}
	return false, interruptPause
}

// hand gives a command to the shell at its prompt. Nobody else types meanwhile.
// False says that it is to be tried again.
func (t *terminal) hand(ctx context.Context, c *command) (taken bool, err error) {
	t.hands.Lock()
	defer t.hands.Unlock()
	keys := loadKeys
	if mode, err := t.tty.Mode(); err == nil && mode.Canonical {
		// The line editor is off, or the shell does something that we do not know of yet.
		keys = loadLine
		select {
		case <-time.After(promptPause):
		case <-t.done:
		}
		if mode, err := t.tty.Mode(); err != nil || !mode.Canonical {
			return false, nil
		}
	}
	if !t.postprocessed() && !strings.Contains(c.flags, "sane") {
		c.flags += " sane"
	}
	key := rand.Text()
	t.ss.mu.Lock()
	ready, _ := t.atPrompt()
	if ready {
		t.next, t.mute, c.key = key, true, key
	}
	prompts := t.prompts
	t.ss.mu.Unlock()
	if !ready {
		return false, nil
	}
	t.remember(key)
	if err := os.WriteFile(t.path+".cmd", handOver(key, c), 0o600); err != nil {
		return false, op.Errorf(op.Unavailable, "the command cannot be handed to the shell: %w", err)
	}
	if err := t.press(keys, time.Second); err != nil {
		return false, err
	}
	// From here on the command may run, whoever goes away.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*handLimit)
	defer cancel()
	taken, err = t.taken(ctx, c, prompts)
	if taken {
		return true, nil
	}
	if t.revoke(key) {
		t.ss.mu.Lock()
		defer t.ss.mu.Unlock()
		c.key = "" // that its line has come to its end says nothing of it
		return c.hasBegun(), err
	}
	// It was about to run.
	select {
	case <-c.begun:
	case <-t.done:
		if !c.hasBegun() {
			return false, errEnded
		}
	case <-time.After(enterPause): // what it said was lost
		t.ss.mu.Lock()
		defer t.ss.mu.Unlock()
		if t.current == c && !c.hasBegun() {
			t.begin()
		}
	}
	return true, nil
}

// revoke makes sure that the shell never runs the command that it was handed with
// a key. False says that it does already.
func (t *terminal) revoke(key string) bool {
	f, err := os.OpenFile(t.mark(key), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return !errors.Is(err, fs.ErrExist)
	}
	f.Close()
	select {
	case <-t.done: // and has cleared up
		os.Remove(f.Name())
	default:
	}
	return true
}

// mark is the file that says that the command of a key runs, or never shall.
func (t *terminal) mark(key string) string { return t.path + ".cmd." + key }

// keptMarks is how many commands back a line is remembered.
const keptMarks = 16

// remember keeps the mark of a key for a while: the line it belongs to may be part
// of a loop.
func (t *terminal) remember(key string) {
	t.marks = append(t.marks, key)
	if len(t.marks) > keptMarks {
		os.Remove(t.mark(t.marks[0]))
		t.marks = t.marks[1:]
	}
}

// taken waits until the shell runs the command. False says that something else got
// it or its keys: half a command that somebody was typing, or a program that was
// started at the same moment.
func (t *terminal) taken(ctx context.Context, c *command, prompts int) (bool, error) {
	lost := time.NewTimer(handLimit)
	defer lost.Stop()
	for {
		t.ss.mu.Lock()
		turn, elsewhere := t.turn, t.prompts != prompts || t.more
		read := t.next == "" // the command was; then only its prompt can follow
		t.ss.mu.Unlock()
		switch {
		case c.hasBegun():
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
			if c.hasBegun() {
				return true, nil
			}
			return false, errEnded
		case <-ctx.Done():
			if c.hasBegun() {
				return true, nil
			}
			return false, context.Cause(ctx)
		}
	}
}
