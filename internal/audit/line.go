package audit

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Entry is one thing that somebody did. Values longer than 512 bytes are cut; empty
// ones are left out of the line.
type Entry struct {
	Tenant string // who
	KeyID  string // of the key, never the key
	Role   string

	Op      string // what: an operation's name,
	Method  string // or a proxied request's method
	Path    string // and path pattern; what follows a ? or # is dropped
	Sandbox string // the id
	Name    string

	Status int    // the result
	Code   string // of an error, never its text
	In     int64  // bytes; negative: not known
	Out    int64
	Took   time.Duration

	Durable bool // Append returns when the entry is on disk
}

// Kinds of the lines that the log writes about itself.
const (
	KindLost = "lost" // Count entries could not be written
	KindTorn = "torn" // Count bytes that a crash left half written were taken out; Text begins with them, and a file torn-<Seq> has them all if they are many
)

// Line is a line of the log as it is read back.
type Line struct {
	Seq     uint64    `json:"seq"`
	Prev    string    `json:"prev"`
	Time    time.Time `json:"time"` // when the line was written: the end of what it tells
	Kind    string    `json:"kind,omitempty"`
	Count   uint64    `json:"count,omitempty"`
	Text    string    `json:"text,omitempty"`
	Tenant  string    `json:"tenant,omitempty"`
	KeyID   string    `json:"key,omitempty"`
	Role    string    `json:"role,omitempty"`
	Op      string    `json:"op,omitempty"`
	Method  string    `json:"method,omitempty"`
	Path    string    `json:"path,omitempty"`
	Sandbox string    `json:"sandbox,omitempty"`
	Name    string    `json:"name,omitempty"`
	Status  int       `json:"status,omitempty"`
	Code    string    `json:"code,omitempty"`
	In      int64     `json:"in,omitempty"`
	Out     int64     `json:"out,omitempty"`
	TookUS  int64     `json:"took_us,omitempty"`
	Hash    string    `json:"hash"`
}

// Mark names a line: what one notes elsewhere to know later that it was there.
type Mark struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

const (
	maxText = 512
	// maxLine bounds a line: every text cut, every byte of it escaped.
	maxLine = 64 << 10
)

// appendTo writes the entry's part of a line, written out by hand because it is on
// the way of every call into a sandbox.
func (e Entry) appendTo(b []byte) []byte {
	path := e.Path
	if i := strings.IndexAny(path, "?#"); i >= 0 {
		path = path[:i]
	}
	b = appendText(b, `,"tenant":`, e.Tenant)
	b = appendText(b, `,"key":`, e.KeyID)
	b = appendText(b, `,"role":`, e.Role)
	b = appendText(b, `,"op":`, e.Op)
	b = appendText(b, `,"method":`, e.Method)
	b = appendText(b, `,"path":`, path)
	b = appendText(b, `,"sandbox":`, e.Sandbox)
	b = appendText(b, `,"name":`, e.Name)
	b = appendNumber(b, `,"status":`, int64(e.Status))
	b = appendText(b, `,"code":`, e.Code)
	b = appendNumber(b, `,"in":`, e.In)
	b = appendNumber(b, `,"out":`, e.Out)
	return appendNumber(b, `,"took_us":`, e.Took.Microseconds())
}

// ownLine is the part of a line that the log writes about itself.
func ownLine(kind string, count uint64, text string) []byte {
	b := appendText(nil, `,"kind":`, kind)
	b = appendNumber(b, `,"count":`, int64(count))
	return appendText(b, `,"text":`, text)
}

func appendNumber(b []byte, name string, n int64) []byte {
	if n <= 0 {
		return b
	}
	return strconv.AppendInt(append(b, name...), n, 10)
}

func appendText(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	if len(s) > maxText {
		s = s[:maxText]
		for len(s) > 0 && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
		s = s[:max(len(s)-1, 0)] + "…"
	}
	b = append(append(b, name...), '"')
	for i := 0; i < len(s); {
		c := s[i]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c == 0x7f:
			const digits = "0123456789abcdef"
			b = append(b, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		case c < utf8.RuneSelf:
			b = append(b, c)
		default:
			r, n := utf8.DecodeRuneInString(s[i:])
			b = utf8.AppendRune(b, r) // what is no UTF-8 becomes U+FFFD
			i += n
			continue
		}
		i++
	}
	return append(b, '"')
}

// digest is a SHA-256 or HMAC in hexadecimal, as it stands in a line.
type digest [2 * sha256.Size]byte

// genesis is what the first line of all follows.
var genesis = digest([]byte(strings.Repeat("0", 2*sha256.Size)))

func (d digest) String() string { return string(d[:]) }

// chain computes hashes, for one goroutine.
type chain struct {
	h   hash.Hash
	sum []byte
}

func newChain(key []byte) chain {
	if len(key) == 0 {
		return chain{h: sha256.New()}
	}
	return chain{h: hmac.New(sha256.New, key)}
}

func (c *chain) digest(b []byte) (d digest) {
	c.h.Reset()
	c.h.Write(b)
	c.sum = c.h.Sum(c.sum[:0])
	hex.Encode(d[:], c.sum)
	return d
}

// The hash covers every byte of a line before its own field, so what is compared is
// the text itself, not somebody's reading of it.
const (
	lineBegin = `{"seq":`
	linePrev  = `,"prev":"`
	lineTime  = `","time":"`
	lineHash  = `,"hash":"`
	lineEnd   = `"}`
	lineTail  = len(lineHash) + len(digest{}) + len(lineEnd)
)

// appendLine adds a whole line with its newline, and returns its hash.
func (c *chain) appendLine(b []byte, seq uint64, prev digest, now time.Time, body []byte) ([]byte, digest) {
	start := len(b)
	b = strconv.AppendUint(append(b, lineBegin...), seq, 10)
	b = append(append(append(b, linePrev...), prev[:]...), lineTime...)
	b = append(now.UTC().AppendFormat(b, time.RFC3339Nano), '"')
	b = append(b, body...)
	sum := c.digest(b[start:])
	b = append(append(append(b, lineHash...), sum[:]...), lineEnd...)
	return append(b, '\n'), sum
}

// link is what ties a line to its neighbours.
type link struct {
	seq       uint64
	prev, sum digest
}

var errLine = errors.New("its hash does not fit its content")

// open checks a line, without its newline, against its own hash.
func (c *chain) open(line []byte) (link, error) {
	k, tail := link{}, len(line)-lineTail
	if tail < 0 || !bytes.HasPrefix(line[tail:], []byte(lineHash)) || !bytes.HasSuffix(line, []byte(lineEnd)) {
		return k, errors.New("it is no line of this log")
	}
	k.sum = digest(line[tail+len(lineHash) : len(line)-len(lineEnd)])
	if want := c.digest(line[:tail]); !hmac.Equal(want[:], k.sum[:]) {
		return k, errLine
	}
	rest, ok := bytes.CutPrefix(line[:tail], []byte(lineBegin))
	number, rest, found := bytes.Cut(rest, []byte(linePrev))
	seq, err := strconv.ParseUint(string(number), 10, 64)
	if !ok || !found || err != nil || len(rest) < len(k.prev) {
		return k, errors.New("it has no sequence number or no hash of the line before it")
	}
	k.seq, k.prev = seq, digest(rest[:len(k.prev)])
	return k, nil
}

// parse reads a line, without its newline, but does not check it.
func parse(line []byte) (Line, error) {
	var l Line
	if err := json.Unmarshal(line, &l); err != nil {
		return l, fmt.Errorf("read a line of the audit log: %w", err)
	}
	return l, nil
}

// isOwn tells whether a line is about the log itself. Quotes in values are escaped, so
// no value can look like this.
func isOwn(line []byte) bool { return bytes.Contains(line, []byte(`,"kind":"`)) }
