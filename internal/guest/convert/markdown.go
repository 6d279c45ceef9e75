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

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// markdown converts a document according to its kind.
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
	return "", op.Errorf(op.Invalid,
		"%s has an unsupported format; supported are HTML, PDF, DOCX, PPTX, XLSX, CSV, JSON, notebooks, images and text", src.title())
}

func (s *source) title() string {
	if s.name != "" && s.name != "." && s.name != "/" {
		return s.name
	}
	return "the document"
}

// read converts with package document, which depends on the file's extension.
func (s *Service) read(ctx context.Context, src *source, kind string) (string, error) {
	path := src.path
	if strings.ToLower(filepath.Ext(path)) != kind {
		dir, err := os.MkdirTemp("", "convert-*")
		if err != nil {
			return "", fmt.Errorf("link the document: %w", err)
		}
		defer os.RemoveAll(dir)
		path = filepath.Join(dir, "document"+kind)
		if err := os.Symlink(src.path, path); err != nil {
			return "", fmt.Errorf("link the document: %w", err)
		}
	}
	v, err := s.docs.View(ctx, path, document.Query{})
	if err != nil {
		return "", pyerr.From("convert", src.title(), err)
	}
	return strings.TrimPrefix(v.Text, "document"+kind+": "), nil
}

// load reads a document of any encoding as UTF-8.
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
	return s.runHelper(ctx, src, "-text")
}

func (s *Service) text(ctx context.Context, src *source) (string, error) {
	text, err := s.load(ctx, src)
	if err != nil {
		return "", err
	}
	if strings.ContainsRune(text, 0) {
		return "", op.Errorf(op.Invalid, "%s is binary; download it instead", src.title())
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

// fence encloses code in more backquotes than it contains consecutively.
func fence(text, language string) string {
	marks := "```"
	for strings.Contains(text, marks) {
		marks += "`"
	}
	return marks + language + "\n" + strings.TrimRight(text, "\n") + "\n" + marks + "\n"
}

// maxHTML limits a page, since parsing it requires many times its size.
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
	return s.runHelper(ctx, src, args...)
}

// runHelper converts a page or a text with aio-markdown.
func (s *Service) runHelper(ctx context.Context, src *source, args ...string) (string, error) {
	f, err := os.Open(src.path)
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	defer f.Close()
	// One byte beyond the limit shows that the text is truncated.
	out, err := s.docs.Helper.Run(ctx, "convert "+src.title(),
		document.Job{Args: append([]string{"-type", src.full}, args...), Stdin: f, MaxOutput: s.cfg.MaxText + 1})
	return strings.ToValidUTF8(string(out), ""), err
}
