package editor

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/line"
)

func (s *Service) insert(ctx context.Context, path string, in EditIn) (out EditOut, err error) {
	if in.InsertLine == nil {
		return out, access.Refuse("insert", path, "insert_line is missing; send the line to insert after, 0 for the beginning")
	}
	if in.NewStr == nil {
		return out, access.Refuse("insert", path, "new_str is missing; send the lines to insert")
	}
	err = s.files.WithLock(ctx, path, func(target string) error {
		old, err := s.loadText(ctx, "insert", target)
		if err != nil {
			return err
		}
		changed, ok := insertLines(old, *in.InsertLine, *in.NewStr)
		if !ok {
			return access.Refuse("insert", path, "insert_line %d is out of range: the file has lines 1 to %d, and 0 is "+
				"the beginning", *in.InsertLine, line.Count(old))
		}
		if err := s.change(target, []byte(old), true, changed); err != nil {
			return err
		}
		out = EditOut{PrevExist: true, OldContent: echo(old), NewContent: echo(changed)}
		out.Output = fmt.Sprintf("%s was edited. The lines around the change are now:\n%s", path,
			excerpt(changed, *in.InsertLine, line.Count(*in.NewStr)))
		return nil
	})
	return out, err
}

// insertLines inserts text after the nth line, separated by the file's kind of line break.
// A file without a final line break stays without one.
func insertLines(content string, n int, text string) (string, bool) {
	if n < 0 || n > line.Count(content) {
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
