package text

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/line"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// ReadIn names a file and a range of its lines.
type ReadIn struct {
	File      string `json:"file" doc:"Path of the file"`
	StartLine *int   `json:"start_line" doc:"First line, from 0; negative numbers count from the end"`
	EndLine   *int   `json:"end_line" doc:"Line to stop before; negative numbers count from the end; null reads to the end"`
	Sudo      bool   `json:"sudo" default:"false" nullable:"true" doc:"Read as root"`
}

// ReadOut is the text.
type ReadOut struct {
	Content   string `json:"content" doc:"The text; for a range, without the final line break"`
	File      string `json:"file" doc:"Absolute path"`
	LineCount int    `json:"line_count" doc:"Number of lines in content"`
}

// Read returns the text of a file, with only the range in memory. Its messages are those that
// clients of the public image know.
func (s *Service) Read(ctx context.Context, in ReadIn) (ReadOut, error) {
	out, err := s.read(ctx, in)
	if err != nil {
		return ReadOut{}, pyerr.AsPython("Failed to read file", err)
	}
	op.Say(ctx, "File read successfully")
	return out, nil
}

func (s *Service) read(ctx context.Context, in ReadIn) (ReadOut, error) {
	path, err := s.files.Resolve("read", in.File)
	if err != nil {
		return ReadOut{}, err
	}
	src, err := s.files.Open(ctx, "read", path, in.Sudo)
	if err != nil {
		return ReadOut{}, err
	}
	defer src.Close()
	text, err := s.readRange(src, in.StartLine, in.EndLine)
	if err == nil {
		err = src.Close()
	}
	if err != nil {
		return ReadOut{}, pyerr.From("read", path, err)
	}
	if err := access.CheckText("read", path, text); err != nil {
		return ReadOut{}, err
	}
	content := string(text)
	return ReadOut{Content: content, File: path, LineCount: line.Count(content)}, nil
}
