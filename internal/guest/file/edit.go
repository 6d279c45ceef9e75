package file

import (
	"context"
	"fmt"
	"strings"
)

func (s *Service) strReplace(ctx context.Context, path string, in EditIn) (out EditOut, err error) {
	if in.OldStr == nil || *in.OldStr == "" {
		return out, refuse("str_replace", path, "old_str is missing; send the text to replace, with enough around it to be unique")
	}
	replacement := ""
	if in.NewStr != nil {
		replacement = *in.NewStr
	}
	mode := ""
	if in.ReplaceMode != nil {
		mode = *in.ReplaceMode
	}
	err = s.locked(ctx, path, func(target string) error {
		old, err := s.text(ctx, "str_replace", target)
		if err != nil {
			return err
		}
		find, put := lineEnds(old, *in.OldStr, replacement)
		at, err := occurrences(path, old, find, mode)
		if err != nil {
			return err
		}
		if find == put {
			return refuse("str_replace", path, "old_str and new_str are the same; nothing was changed")
		}
		changed := substitute(old, find, put, at)
		if err := s.change(target, []byte(old), true, changed); err != nil {
			return err
		}
		first := strings.Count(old[:at[0]], "\n")
		out = EditOut{PrevExist: true, OldContent: echo(old), NewContent: echo(changed)}
		out.Output = fmt.Sprintf("%s was edited (%s). Around the first change it now reads:\n%s", path, times(len(at)), excerpt(changed, first, strings.Count(put, "\n")+1))
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

// lineEnds lets a text with plain line ends match a file with Windows ones: those
// who edit see lines, not what ends them.
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

// occurrences finds where to replace. Without a mode there must be one place.
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
		return nil, refuse("str_replace", path, "old_str does not occur in the file%s; view the file and copy the text exactly", nearMiss(content, find))
	case mode == "ALL":
		return at, nil
	case mode == "FIRST":
		return at[:1], nil
	case mode == "LAST":
		return at[len(at)-1:], nil
	case len(at) > 1:
		return nil, refuse("str_replace", path, "old_str occurs %d times, on lines %s; add text around it, or set replace_mode to ALL, FIRST or LAST", len(at), lineList(content, at))
	}
	return at, nil
}

// nearMiss says where the text would be found if white space did not count.
func nearMiss(content, find string) string {
	first := strings.TrimSpace(find)
	if i := strings.IndexByte(first, '\n'); i >= 0 {
		first = strings.TrimSpace(first[:i])
	}
	if first == "" {
		return ""
	}
	if i := strings.Index(content, first); i >= 0 {
		return fmt.Sprintf(", but its beginning does on line %d: check indentation and line breaks", strings.Count(content[:i], "\n")+1)
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

func (s *Service) insert(ctx context.Context, path string, in EditIn) (out EditOut, err error) {
	if in.InsertLine == nil {
		return out, refuse("insert", path, "insert_line is missing; say behind which line, 0 is the beginning")
	}
	if in.NewStr == nil {
		return out, refuse("insert", path, "new_str is missing; send the lines to insert")
	}
	err = s.locked(ctx, path, func(target string) error {
		old, err := s.text(ctx, "insert", target)
		if err != nil {
			return err
		}
		changed, ok := insertLines(old, *in.InsertLine, *in.NewStr)
		if !ok {
			return refuse("insert", path, "insert_line %d does not fit: the file has lines 1 to %d, and 0 is the beginning", *in.InsertLine, countLines(old))
		}
		if err := s.change(target, []byte(old), true, changed); err != nil {
			return err
		}
		out = EditOut{PrevExist: true, OldContent: echo(old), NewContent: echo(changed)}
		out.Output = fmt.Sprintf("%s was edited. Around the change it now reads:\n%s", path, excerpt(changed, *in.InsertLine, countLines(*in.NewStr)))
		return nil
	})
	return out, err
}

func countLines(s string) int {
	n := strings.Count(s, "\n")
	if s != "" && !strings.HasSuffix(s, "\n") {
		n++
	}
	return n
}

// insertLines puts text behind the nth line. It stays apart from its neighbours
// by line ends of the file's kind; a last line without one keeps the file so.
func insertLines(content string, n int, text string) (string, bool) {
	if n < 0 || n > countLines(content) {
		return "", false
	}
	end := "\n"
	if strings.Contains(content, "\r\n") {
		end = "\r\n"
		text = strings.ReplaceAll(strings.ReplaceAll(text, "\r\n", "\n"), "\n", end)
	}
	at := 0
	for range n {
		i := strings.IndexByte(content[at:], '\n')
		if i < 0 {
			at = len(content)
			break
		}
		at += i + 1
	}
	before, after := content[:at], content[at:]
	switch {
	case before != "" && !strings.HasSuffix(before, "\n"):
		return before + end + text, true
	case after != "" && !strings.HasSuffix(text, "\n"):
		text += end
	case after == "" && before != "" && !strings.HasSuffix(text, "\n"):
		text += end
	}
	return before + text + after, true
}

// around is how many lines an excerpt shows before and after a change.
const around = 4

// excerpt numbers the lines around those that changed, first of which is the
// nth from 0.
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
