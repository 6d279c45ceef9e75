package file

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/atomicfile"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// WriteIn is what to write.
type WriteIn struct {
	File            string `json:"file" doc:"Path of the file; folders on the way are made"`
	Content         string `json:"content" doc:"What to write"`
	Encoding        string `json:"encoding" enum:"utf-8,base64,raw" default:"utf-8" nullable:"true" doc:"How content is written down: utf-8 and raw are the text itself, base64 is for bytes"`
	Append          bool   `json:"append" default:"false" nullable:"true" doc:"Add to the end instead of replacing"`
	LeadingNewline  bool   `json:"leading_newline" default:"false" nullable:"true" doc:"Put a line break before the content"`
	TrailingNewline bool   `json:"trailing_newline" default:"false" nullable:"true" doc:"Put a line break behind the content"`
	Sudo            bool   `json:"sudo" default:"false" nullable:"true" doc:"Write as root"`
}

// WriteOut tells what was written.
type WriteOut struct {
	File         string `json:"file" doc:"Absolute path"`
	BytesWritten *int   `json:"bytes_written" doc:"Bytes, with the line breaks that were asked for"`
}

// Write replaces a file or adds to it.
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
		err = s.locked(ctx, path, func(string) error { return s.sudoWrite(ctx, path, content, in.Append) })
	case in.Append:
		err = s.locked(ctx, path, func(target string) error { return appendTo(target, content) })
	default:
		err = s.locked(ctx, path, func(target string) error { return store(target, content) })
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
			// What has no padding, or the alphabet for URLs, is clear all the same.
			plain := strings.NewReplacer("-", "+", "_", "/").Replace(strings.TrimRight(text, "="))
			if content, err = base64.RawStdEncoding.DecodeString(plain); err != nil {
				return nil, fmt.Errorf("the content is not base64: %w", err)
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

// locked runs change while no other operation changes the same file. It gets the
// file that the path leads to.
func (s *Service) locked(ctx context.Context, path string, change func(target string) error) error {
	target, err := atomicfile.Follow(path)
	if err != nil {
		return err
	}
	release, err := s.locks.take(ctx, target)
	if err != nil {
		return err
	}
	defer release()
	return change(target)
}

// store puts content in the place of a file and makes the folders on the way.
func store(target string, content []byte) error {
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

func makeParents(path string) error {
	return os.MkdirAll(filepath.Dir(path), 0o777)
}

// appendTo adds to a file in one write, which the kernel does not mix with those
// of others. When it fits only in part the file is cut back to what it was.
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
			_ = f.Truncate(size) // the first error is the one to tell
		}
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// ReplaceIn is a text and what to put in its place.
type ReplaceIn struct {
	File   string `json:"file" doc:"Path of the file"`
	OldStr string `json:"old_str" doc:"Text to look for, exactly"`
	NewStr string `json:"new_str" doc:"Text to put in its place"`
	Sudo   bool   `json:"sudo" default:"false" nullable:"true" doc:"Work as root"`
}

// ReplaceOut tells how often.
type ReplaceOut struct {
	File          string `json:"file" doc:"Absolute path"`
	ReplacedCount int    `json:"replaced_count" doc:"How many occurrences were replaced"`
}

// Replace replaces all occurrences of a text.
func (s *Service) Replace(ctx context.Context, in ReplaceIn) (ReplaceOut, error) {
	path, err := s.resolve("replace", in.File)
	if err != nil {
		return ReplaceOut{}, err
	}
	if in.OldStr == "" {
		return ReplaceOut{}, pyerr.New("replace", path, pyerr.Spec{Kind: pyerr.Target}, "replace %s: old_str is empty; say which text to replace", path)
	}
	count := 0
	err = s.locked(ctx, path, func(target string) error {
		old, err := s.load(ctx, "replace", path, in.Sudo)
		if err != nil {
			return err
		}
		if count = bytes.Count(old, []byte(in.OldStr)); count == 0 {
			return nil
		}
		changed := bytes.ReplaceAll(old, []byte(in.OldStr), []byte(in.NewStr))
		if in.Sudo && !s.isRoot {
			return s.sudoWrite(ctx, path, changed, false)
		}
		return store(target, changed)
	})
	if err != nil {
		return ReplaceOut{}, pyerr.From("replace", path, err)
	}
	if count == 0 {
		op.Say(ctx, "%s does not hold the text; nothing was changed", path)
	}
	return ReplaceOut{File: path, ReplacedCount: count}, nil
}

// load reads a whole file.
func (s *Service) load(ctx context.Context, operation, path string, sudo bool) ([]byte, error) {
	src, err := s.open(ctx, operation, path, sudo)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	b, err := s.readAll(src)
	if err == nil {
		err = src.Close()
	}
	if errors.Is(err, syscall.EFBIG) {
		err = fmt.Errorf("it has more than %d MiB, too much to edit here; use sed in a shell: %w", s.cfg.MaxRead>>20, syscall.EFBIG)
	}
	return b, pyerr.From(operation, path, err)
}
