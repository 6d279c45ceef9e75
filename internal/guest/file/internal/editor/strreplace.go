package editor

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
)

func (s *Service) strReplace(ctx context.Context, path string, in EditIn) (out EditOut, err error) {
	if in.OldStr == nil || *in.OldStr == "" {
		return out, access.Refuse("str_replace", path, "old_str is missing; send the text to replace, with enough context to be unique")
	}
	replacement := ""
	if in.NewStr != nil {
		replacement = *in.NewStr
	}
	mode := ""
	if in.ReplaceMode != nil {
		mode = *in.ReplaceMode
	}
	err = s.files.WithLock(ctx, path, func(target string) error {
		old, err := s.loadText(ctx, "str_replace", target)
		if err != nil {
			return err
		}
		find, put := lineEnds(old, *in.OldStr, replacement)
		at, err := occurrences(path, old, find, mode)
		if err != nil {
			return err
		}
		if find == put {
			return access.Refuse("str_replace", path, "old_str and new_str are the same; nothing was changed")
		}
		changed := substitute(old, find, put, at)
		if err := s.change(target, []byte(old), true, changed); err != nil {
			return err
		}
		first := strings.Count(old[:at[0]], "\n")
		out = EditOut{PrevExist: true, OldContent: echo(old), NewContent: echo(changed)}
		out.Output = fmt.Sprintf("%s was edited (%s). The lines around the first change are now:\n%s", path,
			times(len(at)), excerpt(changed, first, strings.Count(put, "\n")+1))
		return nil
	})
	return out, err
}

func times(n int) string {
	if n == 1 {
		return "1 replacement"
	}
	return fmt.Sprint(n, " replacements")
}

// lineEnds lets text with Unix line breaks match a file with Windows line breaks, since
// callers see lines, not their line breaks.
func lineEnds(content, find, put string) (string, string) {
	if strings.Contains(find, "\r") || !strings.Contains(content, "\r\n") {
		return find, put
	}
	if strings.Contains(find, "\n") && strings.Contains(content, find) {
		return find, put
	}
	crlf := func(s string) string { return strings.ReplaceAll(strings.ReplaceAll(s, "\r\n", "\n"), "\n", "\r\n") }
	return crlf(find), crlf(put)
}

// occurrences finds the offsets to replace. Without a mode there must be exactly one.
func occurrences(path, content, find, mode string) ([]int, error) {
	var at []int
	for from := 0; ; {
		i := strings.Index(content[from:], find)
		if i < 0 {
			break
		}
		at = append(at, from+i)
		from += i + len(find)
	}
	switch {
	case len(at) == 0:
		return nil, access.Refuse("str_replace", path,
			"no replacement was made: old_str did not appear in the file%s; view the file and copy the text exactly", nearMiss(content, find))
	case mode == "ALL":
		return at, nil
	case mode == "FIRST":
		return at[:1], nil
	case mode == "LAST":
		return at[len(at)-1:], nil
	case len(at) > 1:
		return nil, access.Refuse("str_replace", path,
			"old_str is not unique: it occurs %d times, on lines %s; add context to make it unique, or set "+
				"replace_mode to ALL, FIRST or LAST", len(at), lineList(content, at))
	}
	return at, nil
}

// nearMiss describes where the first line of the text occurs if white space is ignored.
func nearMiss(content, find string) string {
	first := strings.TrimSpace(find)
	if i := strings.IndexByte(first, '\n'); i >= 0 {
		first = strings.TrimSpace(first[:i])
	}
	if first == "" {
		return ""
	}
	if i := strings.Index(content, first); i >= 0 {
		return fmt.Sprintf(", but its first line was, on line %d: check indentation and line breaks", strings.Count(content[:i], "\n")+1)
	}
	return ""
}

func lineList(content string, at []int) string {
	var lines []string
	for _, i := range at[:min(len(at), 20)] {
		lines = append(lines, fmt.Sprint(strings.Count(content[:i], "\n")+1))
	}
	if len(at) > 20 {
		lines = append(lines, "…")
	}
	return strings.Join(lines, ", ")
}

func substitute(content, find, put string, at []int) string {
	var b strings.Builder
	b.Grow(len(content) + len(at)*(len(put)-len(find)))
	from := 0
	for _, i := range at {
		b.WriteString(content[from:i])
		b.WriteString(put)
		from = i + len(find)
	}
	b.WriteString(content[from:])
	return b.String()
}

// around is the number of lines that an excerpt shows before and after a change.
const around = 4

// excerpt numbers the changed lines and those around them. n is the first changed line, from 0.
func excerpt(content string, n, changed int) string {
	lines := strings.SplitAfter(content, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	from := max(0, n-around)
	to := min(len(lines), n+min(changed, 40)+around)
	if from >= to {
		return ""
	}
	return number(lines[from:to], from+1)
}

// number writes lines as cat -n does.
func number(lines []string, first int) string {
	var b strings.Builder
	for i, l := range lines {
		fmt.Fprintf(&b, "%6d\t%s\n", first+i, strings.TrimRight(l, "\r\n"))
	}
	return b.String()
}
