package audit

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Entry is one recorded action. Texts longer than 512 bytes are truncated.
type Entry struct {
	Tenant string `json:"tenant,omitempty"` // of the caller
	KeyID  string `json:"key,omitempty"`    // of the key, never the key
	Role   string `json:"role,omitempty"`

	Op      string `json:"op,omitempty"`     // name of an operation,
	Method  string `json:"method,omitempty"` // or the method
	Path    string `json:"path,omitempty"`   // and path of a proxied request, without query and fragment
	Sandbox string `json:"sandbox,omitempty"`
	Name    string `json:"name,omitempty"`

	Status int    `json:"status,omitempty"` // the result
	Code   string `json:"code,omitempty"`   // of an error, never its text
	In     int64  `json:"in,omitempty"`     // bytes; negative: unknown
	Out    int64  `json:"out,omitempty"`
	TookUS int64  `json:"took_us,omitempty"`
}

// Kinds of lines about the log itself.
const (
	KindLost = "lost" // Count entries could not be written
	// Count bytes after the last complete line were removed. Text starts with them; if they do not fit, the
	// file torn-<Seq> contains all of them.
	KindTorn = "torn"
)

// Line is a line of the log.
type Line struct {
	Seq   uint64    `json:"seq"`
	Prev  string    `json:"prev"`
	Time  time.Time `json:"time"` // when the line was written, after the action
	Kind  string    `json:"kind,omitempty"`
	Count uint64    `json:"count,omitempty"`
	Text  string    `json:"text,omitempty"`
	Entry
	Hash string `json:"hash"` // must be the last field, because it covers the preceding ones
}

// Mark identifies a line. Stored elsewhere, it proves later that the line existed.
type Mark struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// position is the end of a line in the log.
type position struct {
	Mark
	File   uint64 `json:"file"`            // its first sequence number
	Start  int64  `json:"start,omitempty"` // of the line in the file
	Offset int64  `json:"offset"`
}

const (
	maxText = 512
	// maxLine is the maximum length of a line with escaped texts of maximum length.
	maxLine = 64 << 10
)

// bounded returns a truncated copy of the entry that references no memory of a request.
func (e Entry) bounded() Entry {
	if i := strings.IndexAny(e.Path, "?#"); i >= 0 {
		e.Path = e.Path[:i]
	}
	for _, s := range [...]*string{&e.Tenant, &e.KeyID, &e.Role, &e.Op, &e.Method, &e.Path, &e.Sandbox, &e.Name, &e.Code} {
		if len(*s) > maxText {
			const more = "…"
			*s = strings.ToValidUTF8((*s)[:maxText-len(more)], "") + more
		}
	}
	e.Path, e.Name = strings.Clone(e.Path), strings.Clone(e.Name)
	e.In, e.Out = max(e.In, 0), max(e.Out, 0)
	return e
}

// genesis is the hash before the first line.
var genesis = strings.Repeat("0", 2*sha256.Size)

// key makes the hashes HMACs; without one they are plain SHA-256.
type key []byte

// digest returns the hash of some bytes in hexadecimal.
func (k key) digest(b []byte) string {
	if len(k) == 0 {
		sum := sha256.Sum256(b)
		return hex.EncodeToString(sum[:])
	}
	h := hmac.New(sha256.New, k)
	h.Write(b)
	return hex.EncodeToString(h.Sum(nil))
}

// The hash covers the bytes of a line before its own field, so that the text is compared and not its parsed
// form.
const (
	lineHash = `,"hash":"`
	lineEnd  = `"}`
)

// check compares a line, without its newline, with its own hash. It returns the fields that link the line to
// its neighbors, and all fields of a line about the log itself.
func (k key) check(b []byte) (Line, error) {
	content := b[:max(0, len(b)-len(lineHash+lineEnd)-len(genesis))]
	sum := k.digest(content)
	if !hmac.Equal(b[len(content):], []byte(lineHash+sum+lineEnd)) {
		return Line{}, errors.New("the hash does not match the content")
	}
	// Quotes in values are escaped, so no value can look like a field.
	if i := bytes.Index(content, []byte(`,"time":"`)); i >= 0 && !bytes.Contains(content, []byte(`,"kind":"`)) {
		b = slices.Concat(content[:i], []byte(lineHash+sum+lineEnd))
	}
	return parse(b)
}

// parse reads a line, without its newline, but does not check it.
func parse(b []byte) (l Line, err error) {
	if err = json.Unmarshal(b, &l); err != nil {
		err = fmt.Errorf("parse a line of the audit log: %w", err)
	}
	return l, err
}

// appendLine adds a line to those that end at a position and returns the position after it.
func (k key) appendLine(buf *bytes.Buffer, at position, now time.Time, line Line) position {
	line.Seq, line.Prev, line.Time, line.Hash = at.Seq+1, at.Hash, now, ""
	start := buf.Len()
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(line); err != nil {
		panic(err) // no field of a line can fail
	}
	buf.Truncate(buf.Len() - len(lineEnd+"\n"))
	sum := k.digest(buf.Bytes()[start : buf.Len()-len(lineHash)])
	buf.WriteString(sum + lineEnd + "\n")
	return position{Mark{line.Seq, sum}, at.File, at.Offset, at.Offset + int64(buf.Len()-start)}
}
