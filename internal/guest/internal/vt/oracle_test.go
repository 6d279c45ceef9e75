package vt

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// randomStream returns text, movements and edits that all terminals interpret equally.
func randomStream(r *rand.Rand, cols, rows, n int) string {
	arg := func() int { return r.IntN(max(cols, rows) + 2) }
	// Terminals differ while the cursor waits after the last column, so move it first.
	column := func() string { return fmt.Sprintf("\x1b[%dG", 1+r.IntN(cols)) }
	ops := []func() string{
		func() string { return "abcdefghijklmnopqrstuvwxyz"[:1+r.IntN(26)] },
		func() string { return fmt.Sprint(r.IntN(1000)) },
		func() string { return "e\u0301" },
		func() string { return " " },
		func() string { return "\t" },
		func() string { return "\r\n" },
		func() string { return column() + "\n" },
		func() string { return "\r" },
		func() string { return fmt.Sprintf("\x1b[%dG\b", 2+r.IntN(cols-1)) },
		func() string { return column() + "\x1bD" },
		func() string { return column() + "\x1bM" },
		func() string { return "\x1bE" },
		func() string { return column() + fmt.Sprintf("\x1b7\x1b[%d;%dHsaved\x1b8", arg(), arg()) },
		func() string { return fmt.Sprintf("\x1b[%d;%dH", arg(), arg()) },
		func() string { return column() + fmt.Sprintf("\x1b[%d%c", arg(), "ABCDEFGd"[r.IntN(8)]) },
		func() string { return column() + fmt.Sprintf("\x1b[%d%c", r.IntN(5), "PXST"[r.IntN(4)]) },
		func() string { return fmt.Sprintf("\x1b[%dG\x1b[%d@", 1+r.IntN(cols/2), r.IntN(5)) },
		func() string {
			return fmt.Sprintf("\x1b[2;5r\x1b[%dH\x1b[%d%c\r", 2+r.IntN(4), r.IntN(5), "LM"[r.IntN(2)])
		},
		func() string { return fmt.Sprintf("\x1b[%d%c", r.IntN(3), "JK"[r.IntN(2)]) },
		func() string { return fmt.Sprintf("\rx\x1b[%db", r.IntN(8)) },
		func() string {
			top := 1 + r.IntN(rows-1)
			return fmt.Sprintf("\x1b[%d;%dr", top, top+1+r.IntN(rows-top))
		},
		func() string { return "\x1b[r" },
		func() string { return "\x1b[1;31m" },
		func() string { return column() + "\x1b[?1049hfull screen\r\n\x1b[5;5Hx\x1b[?1049l" },
		func() string { return "\r\x1b[4hinsert\x1b[4l" },
		func() string { return fmt.Sprintf("\x1b[?6h\x1b[%dd\x1b[%dGy\x1b[?6l", arg(), arg()) },
		func() string { return column() + "\x1b[?7l0123456789abcdefghijklmnopqrst\x1b[?7h\r" },
	}
	var b strings.Builder
	for range n {
		b.WriteString(ops[r.IntN(len(ops))]())
	}
	return b.String()
}

// tmux is another terminal emulator. The test writes to the device of its pane.
type tmux struct {
	t      *testing.T
	socket string
	pane   *os.File
}

func startTmux(t *testing.T, cols, rows int) *tmux {
	testenv.Need(t, "tmux")
	m := &tmux{t: t, socket: filepath.Join(t.TempDir(), "s")}
	m.run("-f", "/dev/null", "new-session", "-d", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows), "cat",
		";", "set", "-g", "status", "off", ";", "set", "-g", "window-size", "manual",
		";", "resize-window", "-x", strconv.Itoa(cols), "-y", strconv.Itoa(rows))
	t.Cleanup(func() { m.run("kill-server") })
	pane, err := os.OpenFile(strings.TrimSpace(m.run("display", "-p", "#{pane_tty}")), os.O_WRONLY|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pane.Close() })
	m.pane = pane
	tio, err := unix.IoctlGetTermios(int(pane.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Oflag &^= unix.OPOST
	if err := unix.IoctlSetTermios(int(pane.Fd()), unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	return m
}

func (m *tmux) run(args ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "tmux", append([]string{"-u", "-S", m.socket}, args...)...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// show resets the terminal, writes the stream and returns the screen. A title at the end of
// the stream shows that tmux has interpreted it.
func (m *tmux) show(seed uint64, stream string) (screen []string, at string) {
	m.t.Helper()
	title := fmt.Sprint("seed", seed)
	if _, err := m.pane.WriteString("\x1b[?1049l\x1bc" + stream + "\x1b]2;" + title + "\x1b\\"); err != nil {
		m.t.Fatal(err)
	}
	for range 1000 {
		out := m.run("display", "-p", "#{pane_title} #{cursor_x},#{cursor_y}", ";", "capture-pane", "-p")
		first, rest, _ := strings.Cut(out, "\n")
		if at, ok := strings.CutPrefix(first, title+" "); ok {
			screen = strings.Split(strings.TrimSuffix(rest, "\n"), "\n")
			for i := range screen {
				screen[i] = strings.TrimRight(screen[i], " ")
			}
			return screen, at
		}
	}
	m.t.Fatal("tmux did not reach the end of the stream")
	return nil, ""
}

// TestScreenAgreesWithTmux compares with tmux on random streams.
func TestScreenAgreesWithTmux(t *testing.T) {
	t.Parallel()
	const cols, rows, seeds = 23, 7, 150
	m := startTmux(t, cols, rows)
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		stream := randomStream(r, cols, rows, r.IntN(60))
		vt := New(cols, rows, Options{})
		vt.Write([]byte(stream))
		want, wantAt := m.show(seed, stream)
		at, _ := vt.Cursor()
		if vt.wrap {
			at.Col++ // tmux reports the column after the last one
		}
		if got := vt.Screen(); !slices.Equal(got, want) || fmt.Sprintf("%d,%d", at.Col, at.Row) != wantAt {
			t.Fatalf("seed %d:\n stream %q\n got  %q at %v\n want %q at %v", seed, stream, got, at, want, wantAt)
		}
	}
}
