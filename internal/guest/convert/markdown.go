package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/document"
	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
	"github.com/cove-sandbox/cove/internal/pyerr"
)

// markdown converts a document by its kind.
func (s *Service) markdown(ctx context.Context, src *source) (string, error) {
	kind, err := src.kind()
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	switch kind {
	case ".html":
		return s.html(ctx, src)
	case ".md", ".txt", ".xml":
		return s.text(ctx, src)
	case ".json":
		return s.json(ctx, src)
	case ".pdf", ".docx", ".pptx", ".xlsx", ".xls", ".epub":
		return s.office(ctx, src, kind)
	case ".csv", ".tsv", ".ipynb", ".png", ".jpg", ".gif", ".webp", ".bmp", ".tiff":
		return s.read(ctx, src, kind)
	}
	return "", op.Errorf(op.Invalid, "%s is of no kind that can be converted; it may be HTML, PDF, DOCX, PPTX, XLSX, CSV, JSON, a notebook, an image or text", src.title())
}

func (s *source) title() string {
	if s.name != "" && s.name != "." && s.name != "/" {
		return s.name
	}
	return "the document"
}

// read converts with our own reader, which goes by the file's extension.
func (s *Service) read(ctx context.Context, src *source, kind string) (string, error) {
	path := src.path
	if strings.ToLower(filepath.Ext(path)) != kind {
		dir, err := os.MkdirTemp("", "convert-*")
		if err != nil {
			return "", fmt.Errorf("name the document: %w", err)
		}
		defer os.RemoveAll(dir)
		path = filepath.Join(dir, "document"+kind)
		if err := os.Symlink(src.path, path); err != nil {
			return "", fmt.Errorf("name the document: %w", err)
		}
	}
	v, err := s.docs.View(ctx, path, document.Query{})
	if err != nil {
		return "", pyerr.From("convert", src.title(), err)
	}
	return strings.TrimPrefix(v.Text, "document"+kind+": "), nil
}

// load reads a document as UTF-8, whatever its encoding.
func (s *Service) load(ctx context.Context, src *source) (string, error) {
	f, err := os.Open(src.path)
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, s.cfg.MaxBytes))
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	if b = bytes.TrimPrefix(b, []byte("\xEF\xBB\xBF")); utf8.Valid(b) {
		return string(b), nil
	}
	return s.reader(ctx, src, "-text")
}

func (s *Service) text(ctx context.Context, src *source) (string, error) {
	text, err := s.load(ctx, src)
	if err != nil {
		return "", err
	}
	if strings.ContainsRune(text, 0) {
		return "", op.Errorf(op.Invalid, "%s is not text; download it instead", src.title())
	}
	return text, nil
}

func (s *Service) json(ctx context.Context, src *source) (string, error) {
	text, err := s.text(ctx, src)
	if err != nil {
		return "", err
	}
	var pretty bytes.Buffer
	if json.Indent(&pretty, []byte(text), "", "  ") == nil {
		text = pretty.String()
	}
	return fence(text, "json"), nil
}

// fence encloses code with more back quotes than it has in a row itself.
func fence(text, language string) string {
	marks := "```"
	for strings.Contains(text, marks) {
		marks += "`"
	}
	return marks + language + "\n" + strings.TrimRight(text, "\n") + "\n" + marks + "\n"
}

// maxHTML bounds a page: read, it takes many times its size.
const maxHTML = 16 << 20

// html converts a page.
func (s *Service) html(ctx context.Context, src *source) (string, error) {
	info, err := os.Stat(src.path)
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	if info.Size() > maxHTML {
		return "", tooLarge(src.title(), maxHTML)
	}
	var args []string
	if src.page != nil {
		args = []string{"-page", src.page.String()}
	}
	return s.reader(ctx, src, args...)
}

// reader has a page or a text read by aio-markdown, in a process of its own.
func (s *Service) reader(ctx context.Context, src *source, args ...string) (string, error) {
	if s.cfg.Markdown == "" || s.cfg.Runner == nil {
		return "", op.Errorf(op.Unavailable, "converting %s needs the program aio-markdown, which is not in the folder of aio; build it there", src.title())
	}
	f, err := os.Open(src.path)
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	defer f.Close()
	// A little more than is returned: the caller sees that it was cut.
	out := proc.NewCapture(s.cfg.MaxText+1, 0)
	res, err := s.cfg.Runner.Run(ctx, proc.Command{Path: s.cfg.Markdown, Args: append([]string{"-type", src.full}, args...), Stdin: f, Stdout: out, Limit: 64 << 10, Grace: -1})
	if err != nil {
		return "", fmt.Errorf("run aio-markdown: %w", err)
	}
	if res.Exit.Code != 0 {
		s.cfg.Log.Info("aio-markdown failed", "document", src.title(), "exit", res.Exit.String())
		return "", op.Errorf(op.Invalid, "%s cannot be converted: %s", src.title(), firstLine(string(res.Stderr)))
	}
	return strings.ToValidUTF8(string(out.Head()), ""), nil
}

// firstLine of what a program says is what went wrong; the rest is where.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return fmt.Sprintf("%.300s", line)
}
