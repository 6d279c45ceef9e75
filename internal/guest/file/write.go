package file

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// WriteIn is the content to write.
type WriteIn struct {
	File            string `json:"file" doc:"Path of the file; parent folders are created"`
	Content         string `json:"content" doc:"Content to write"`
	Encoding        string `json:"encoding" enum:"utf-8,base64,raw" default:"utf-8" nullable:"true" doc:"Encoding of content: utf-8 and raw are plain text, base64 is for binary data"`
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
	path, err := s.resolve("write", in.File)
	if err != nil {
		return WriteOut{}, err
	}
	content, err := decode(in)
	if err != nil {
		return WriteOut{}, pyerr.New("write", path, pyerr.Spec{Kind: pyerr.Decode, Class: "ValueError"}, "write %s: %w", path, err)
	}
	switch {
	case in.Sudo && !s.isRoot:
		err = s.withLock(ctx, path, func(string) error { return s.sudoWrite(ctx, path, content, in.Append) })
	case in.Append:
		err = s.withLock(ctx, path, func(target string) error { return appendTo(target, content) })
	default:
		err = s.withLock(ctx, path, func(target string) error { return writeFile(target, content) })
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

// writeFile replaces a file atomically and creates its parent folders.
func writeFile(target string, content []byte) error {
	return replace(target, func(f *os.File) error {
		_, err := f.Write(content)
		return err
	})
}

func replace(target string, fill func(*os.File) error) error {
	if err := makeParents(target); err != nil {
		return err
	}
	return atomicfile.Replace(target, atomicfile.Options{}, fill)
}

// appendTo appends to a file in one write, which the kernel does not interleave with
// others. If the disk is full, it truncates the file to its old size.
func appendTo(target string, content []byte) error {
	if err := makeParents(target); err != nil {
		return err
	}
	if info, err := os.Lstat(target); err == nil && !info.Mode().IsRegular() {
		return atomicfile.Irregular(target, info.Mode())
	}
	f, err := os.OpenFile(target, os.O_WRONLY|os.O_CREATE|os.O_APPEND|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0o666)
	if err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		if _, err = f.Write(content); err != nil {
			_ = f.Truncate(size) // the first error is the one to report
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}
