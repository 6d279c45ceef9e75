package editor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// EditIn is one command of the editor.
type EditIn struct {
	Command        string  `json:"command" enum:"view,create,str_replace,insert,undo_edit" doc:"Command to run"`
	Path           string  `json:"path" doc:"Path of the file; view also accepts a folder"`
	FileText       *string `json:"file_text" doc:"create: content of the file"`
	OldStr         *string `json:"old_str" doc:"str_replace: exact text to replace; must be unique unless replace_mode is set"`
	NewStr         *string `json:"new_str" doc:"str_replace: replacement, empty to delete; insert: lines to insert"`
	InsertLine     *int    `json:"insert_line" doc:"insert: line to insert after; 0 is the beginning of the file"`
	ViewRange      []int   `json:"view_range" default:"[]" nullable:"true" doc:"view: first and last line, from 1; -1 is the end"`
	ReplaceMode    *string `json:"replace_mode" enum:"ALL,FIRST,LAST" doc:"str_replace: which of several occurrences to replace"`
	PageRange      []int   `json:"page_range" nullable:"true" doc:"view of PDF and Word: first and last page"`
	SheetName      *string `json:"sheet_name" doc:"view of Excel: name of the sheet"`
	RowRange       []int   `json:"row_range" nullable:"true" doc:"view of Excel, CSV and notebooks: first and last row or cell"`
	SlideRange     []int   `json:"slide_range" nullable:"true" doc:"view of PowerPoint: first and last slide"`
	EnableMetadata bool    `json:"enable_metadata" default:"false" nullable:"true" doc:"view: also return metadata, such as title and author"`
}

// EditOut is the result of a command.
type EditOut struct {
	Output     string         `json:"output" doc:"Result in readable form"`
	Content    string         `json:"content" doc:"The same as output"`
	Error      *string        `json:"error" doc:"Always null; errors are reported by the envelope"`
	Path       string         `json:"path" doc:"Absolute path"`
	PrevExist  bool           `json:"prev_exist" doc:"Whether the file existed before"`
	OldContent *string        `json:"old_content" doc:"Previous content; null if there was none or it is very long"`
	NewContent *string        `json:"new_content" doc:"New content; null if there is none or it is very long"`
	Metadata   map[string]any `json:"metadata" doc:"Metadata of the document"`
}

// maxEcho limits the content that a response repeats.
const maxEcho = 1 << 20

// Edit runs one command of the editor.
func (s *Service) Edit(ctx context.Context, in EditIn) (EditOut, error) {
	path, err := s.files.Resolve(in.Command, in.Path)
	if err != nil {
		return EditOut{}, err
	}
	var out EditOut
	switch in.Command {
	case "view":
		out, err = s.view(ctx, path, in)
	case "create":
		out, err = s.create(ctx, path, in)
	case "str_replace":
		out, err = s.strReplace(ctx, path, in)
	case "insert":
		out, err = s.insert(ctx, path, in)
	case "undo_edit":
		out, err = s.undo(ctx, path)
	}
	if err != nil {
		err = pyerr.From(in.Command, path, err)
		if errors.Is(err, fs.ErrNotExist) {
			// Clients of the public image match these words.
			err = pyerr.Say(err, "%s %s: the path does not exist; check it, or view its folder", in.Command, pathname.Show(path))
		}
		return EditOut{}, err
	}
	out.Path, out.Content = pathname.Show(path), out.Output
	return out, nil
}

// loadText loads a text file for editing.
func (s *Service) loadText(ctx context.Context, command, path string) (string, error) {
	b, err := s.files.Load(ctx, command, path, false)
	if err != nil {
		return "", err
	}
	if err := access.CheckText(command, path, b); err != nil {
		return "", err
	}
	return string(b), nil
}

// change replaces a file's content and saves the old content for undo.
func (s *Service) change(target string, old []byte, existed bool, content string) error {
	forget := func() {}
	if s.history != nil {
		var err error
		if forget, err = s.history.push(target, old, existed); err != nil {
			return fmt.Errorf("save the old content for undo: %w", err)
		}
	}
	if err := access.WriteFile(target, []byte(content)); err != nil {
		forget()
		return err
	}
	return nil
}

// echo returns content for the response, or nil if it is too long.
func echo(s string) *string {
	if len(s) > maxEcho {
		return nil
	}
	return &s
}

func (s *Service) create(ctx context.Context, path string, in EditIn) (out EditOut, err error) {
	if in.FileText == nil {
		return out, access.Refuse("create", path, "file_text is missing; send the content of the file, which may be empty")
	}
	err = s.files.WithLock(ctx, path, func(target string) error {
		old, err := s.files.Load(ctx, "create", target, false)
		out.PrevExist = err == nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := s.change(target, old, out.PrevExist, *in.FileText); err != nil {
			return err
		}
		out.NewContent = echo(*in.FileText)
		if out.Output = path + " was created."; out.PrevExist {
			out.Output = path + " existed and was overwritten; undo_edit restores the old content."
			if access.CheckText("create", path, old) == nil {
				out.OldContent = echo(string(old))
			}
		}
		return nil
	})
	if err == nil {
		op.Say(ctx, "%s", out.Output)
	}
	return out, err
}

func (s *Service) undo(ctx context.Context, path string) (out EditOut, err error) {
	if s.history == nil {
		return out, access.Refuse("undo_edit", path, "undo history is disabled; configure a state folder")
	}
	err = s.files.WithLock(ctx, path, func(target string) error {
		content, existed, forget, err := s.history.last(target)
		if errors.Is(err, errNoEdit) {
			return access.Refuse("undo_edit", path, "no edit of this file is left to undo")
		}
		if err != nil {
			return err
		}
		now, err := s.files.Load(ctx, "undo_edit", target, false)
		out.PrevExist = err == nil
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if access.CheckText("undo_edit", path, now) == nil && out.PrevExist {
			out.OldContent = echo(string(now))
		}
		if existed {
			err = access.WriteFile(target, content)
			out.Output = "The last edit of " + path + " was undone."
			if access.CheckText("undo_edit", path, content) == nil {
				out.NewContent = echo(string(content))
			}
		} else {
			if err = os.Remove(target); errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			out.Output = "The creation of " + path + " was undone: the file was deleted."
		}
		if err == nil {
			forget()
		}
		return err
	})
	if err == nil {
		op.Say(ctx, "%s", out.Output)
	}
	return out, err
}
