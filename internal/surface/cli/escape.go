package cli

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape returns a text that is safe to print. Control characters, and characters that are
// invisible or reorder others, become escapes such as \u001b; line breaks and tabs remain. Texts
// come from sandboxes, and a terminal executes control sequences in them. Escaped JSON is
// equivalent to the input.
func Escape(s string) string {
	if strings.IndexFunc(s, unsafeRune) < 0 {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		crlf := r == '\r' && strings.HasPrefix(s[i+1:], "\n")
		if !unsafeRune(r) || crlf || r == utf8.RuneError && strings.HasPrefix(s[i:], "\uFFFD") {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String()
}

// Line is Escape for text that must stay in one line and column.
func Line(s string) string {
	return strings.NewReplacer("\r\n", "⏎", "\n", "⏎", "\t", `\t`).Replace(Escape(s))
}

// unsafeRune reports whether a character must not reach a terminal. This includes invalid UTF-8,
// which some terminals interpret as control characters.
func unsafeRune(r rune) bool {
	return r != '\n' && r != '\t' && (r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp))
}

// Writer returns a writer that escapes text like Escape. Close writes the rest of an incomplete
// character; it does not close w.
func Writer(w io.Writer) io.WriteCloser { return &escaper{w: w} }

type escaper struct {
	w    io.Writer
	mu   sync.Mutex
	rest []byte // start of a character or line break
}

// Write implements io.Writer.
func (e *escaper) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	text := append(e.rest, b...)
	complete := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if tail := text[len(text)-n:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) || tail[0] == '\r' {
				complete -= n
			}
			break
		}
	}
	e.rest = append([]byte(nil), text[complete:]...)
	if _, err := io.WriteString(e.w, Escape(string(text[:complete]))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Close implements io.Closer.
func (e *escaper) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, err := io.WriteString(e.w, Escape(string(e.rest)))
	e.rest = nil
	return err
}
