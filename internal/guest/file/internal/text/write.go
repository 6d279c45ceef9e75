package text

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// WriteIn is the content to write.
type WriteIn struct {
	File            string `json:"file" doc:"Path of the file; parent folders are created"`
	Content         string `json:"content" doc:"Content to write; encode binary data as base64"`
	Encoding        string `json:"encoding" enum:"utf-8,base64,raw" default:"utf-8" nullable:"true" doc:"Encoding of content; raw is utf-8"`
	Append          bool   `json:"append" default:"false" nullable:"true" doc:"Append instead of replacing the file"`
	LeadingNewline  bool   `json:"leading_newline" default:"false" nullable:"true" doc:"Write a line break before the content"`
	TrailingNewline bool   `json:"trailing_newline" default:"false" nullable:"true" doc:"Write a line break after the content"`
	Sudo            bool   `json:"sudo" default:"false" nullable:"true" doc:"Write as root"`
}

// WriteOut reports what was written.
type WriteOut struct {
	File         string `json:"file" doc:"Absolute path"`
	BytesWritten *int   `json:"bytes_written" doc:"Number of bytes, including added line breaks"`
}

// Write replaces a file or appends to it.
func (s *Service) Write(ctx context.Context, in WriteIn) (WriteOut, error) {
	path, err := s.files.Resolve("write", in.File)
	if err != nil {
		return WriteOut{}, err
	}
	content, err := decode(in)
	if err != nil {
		return WriteOut{}, pyerr.New("write", path, pyerr.Spec{Kind: pyerr.Decode, Class: "ValueError"}, "write %s: %w", path, err)
	}
	switch {
	case s.files.NeedsSudo(in.Sudo):
		err = s.files.WithLock(ctx, path, func(string) error { return s.files.WriteAsRoot(ctx, path, content, in.Append) })
	case in.Append:
		err = s.files.WithLock(ctx, path, func(target string) error { return access.Append(target, content) })
	default:
		err = s.files.WithLock(ctx, path, func(target string) error { return access.WriteFile(target, content) })
	}
	if err != nil {
		return WriteOut{}, pyerr.From("write", path, err)
	}
	return WriteOut{File: path, BytesWritten: new(len(content))}, nil
}

func decode(in WriteIn) ([]byte, error) {
	content := []byte(in.Content)
	if in.Encoding == "base64" {
		text := strings.Map(func(r rune) rune {
			if r == '\n' || r == '\r' || r == ' ' || r == '\t' {
				return -1
			}
			return r
		}, in.Content)
		var err error
		if content, err = base64.StdEncoding.DecodeString(text); err != nil {
			// Missing padding and the URL-safe alphabet are unambiguous.
			plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
			if content, err = base64.RawStdEncoding.DecodeString(plain); err != nil {
				return nil, fmt.Errorf("invalid base64 in content: %w", err)
			}
		}
	}
	if in.LeadingNewline {
		content = append([]byte{'\n'}, content...)
	}
	if in.TrailingNewline {
		content = append(content, '\n')
	}
	return content, nil
}
