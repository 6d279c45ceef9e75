package shell

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/guest/internal/vt"
)

// Statuses of a command. Running and noChange say why a wait ended before the command, which
// continues.
const (
	running     = "running"
	completed   = "completed"
	noChange    = "no_change_timeout"
	hardTimeout = "hard_timeout"
	terminated  = "terminated"
)

const (
	// maxOutput is the maximum number of characters of output in a record, and in a reply
	// unless the request disables truncation.
	maxOutput = 30_000
	// keptOutput is how many bytes of a command's output are kept, half from the start
	// and half from the end.
	keptOutput = 8 << 20
	// maxRecords and maxRecorded limit the records of a session.
	maxRecords  = 100
	maxRecorded = 512 << 10
)

// Record is one command on the console.
type Record struct {
	PS1     string `json:"ps1" doc:"The prompt before the command"`
	Command string `json:"command" doc:"The command line"`
	Output  string `json:"output" default:"" doc:"Output of the command"`
}

// command is a command line of the shell, sent by an API caller or typed by a viewer. It is
// guarded by its session's lock.
type command struct {
	made  time.Time
	text  string
	ps1   string
	typed bool // by a viewer
	full  bool // do not truncate the output
	dir   string
	flags string
	key   string // of the last attempt to pass it to the shell

	begun chan struct{} // closed when it has started
	done  chan struct{} // closed when it has ended

	followers int // number of streams that send its output

	reason string // hard_timeout or terminated if the service ends it
	limit  *time.Timer

	// Set at its end:
	status string
	exit   *int
	output string
	all    string  // if full
	kept   vt.Text // if it has followers
}

func newCommand(text string) *command {
	return &command{made: time.Now(), text: text, begun: make(chan struct{}), done: make(chan struct{}), status: running}
}

func (c *command) hasStarted() bool { return isClosed(c.begun) }
func (c *command) hasEnded() bool   { return isClosed(c.done) }

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (c *command) toRecord() Record { return Record{PS1: c.ps1, Command: c.text, Output: c.output} }

// addRecord appends a record and discards the oldest above the limits.
func (ss *Session) addRecord(r Record) {
	ss.records = append(ss.records, r)
	ss.recorded += len(r.Command) + len(r.Output)
	for len(ss.records) > maxRecords || ss.recorded > maxRecorded && len(ss.records) > 1 {
		ss.recorded -= len(ss.records[0].Command) + len(ss.records[0].Output)
		ss.records[0] = Record{}
		ss.records = ss.records[1:]
	}
}

// trimText returns a text without trailing newlines.
func trimText(x vt.Text) string { return strings.TrimRight(x.String(), "\n") }

// shorten returns at most limit characters of a text without trailing newlines. It replaces
// the middle with a note.
func shorten(x vt.Text, limit int) string {
	head, tail := x.Head, strings.TrimRight(x.Tail, "\n")
	total := x.Dropped + int64(utf8.RuneCountInString(head)) + int64(utf8.RuneCountInString(tail))
	if x.Dropped == 0 {
		head = strings.TrimRight(head, "\n")
		if total = int64(utf8.RuneCountInString(head)); total <= int64(limit) {
			return head
		}
		tail = head
	}
	head, tail = firstRunes(head, limit/2), lastRunes(tail, limit/2)
	missing := total - int64(utf8.RuneCountInString(head)) - int64(utf8.RuneCountInString(tail))
	nl := "\n"
	if strings.HasSuffix(head, "\n") {
		nl = ""
	}
	return fmt.Sprintf("%s%s[... %d characters omitted ...]\n%s", head, nl, missing, tail)
}

// firstRunes returns the first n characters, or fewer to end with a line.
func firstRunes(s string, n int) string {
	for i := range s {
		if n == 0 {
			s = s[:i]
			if nl := strings.LastIndexByte(s, '\n'); nl >= i-200 {
				s = s[:nl+1]
			}
			break
		}
		n--
	}
	return s
}

// lastRunes returns the last n characters, or fewer to start with a line.
func lastRunes(s string, n int) string {
	i := len(s)
	for ; n > 0 && i > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	if i == 0 {
		return s
	}
	if nl := strings.IndexByte(s[i:], '\n'); nl >= 0 && nl < 200 {
		i += nl + 1
	}
	return s[i:]
}

// maxEcho limits the bytes of a command that viewers see.
const maxEcho = 4 << 10

// formatEcho returns a command of an API caller as if it was typed.
func formatEcho(text string) string {
	var b strings.Builder
	for _, r := range text {
		if b.Len() > maxEcho {
			b.WriteString("…")
			break
		}
		switch {
		case r == '\n':
			b.WriteString("\r\n> ")
		case r == '\t':
			b.WriteByte('\t')
		case r < ' ' || r == 0x7f:
			b.WriteByte('^')
			b.WriteByte(byte(r) ^ 0x40)
		case r >= 0x80 && r <= 0x9f:
		default:
			b.WriteRune(r)
		}
	}
	return b.String() + "\r\n"
}
