package convert

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"codeberg.org/readeck/go-readability"
	"github.com/JohannesKaufmann/html-to-markdown/v2/converter"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/base"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/commonmark"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/strikethrough"
	"github.com/JohannesKaufmann/html-to-markdown/v2/plugin/table"
	"golang.org/x/net/html"
	"golang.org/x/net/html/charset"

	"github.com/cove-sandbox/cove/internal/document"
	"github.com/cove-sandbox/cove/internal/op"
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
		return s.html(src)
	case ".md", ".txt", ".xml":
		return s.text(src)
	case ".json":
		return s.json(src)
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
func (s *Service) load(src *source) (string, error) {
	f, err := os.Open(src.path)
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, s.cfg.MaxBytes))
	if err != nil {
		return "", pyerr.From("convert", src.path, err)
	}
	b = bytes.TrimPrefix(b, []byte("\xEF\xBB\xBF"))
	if utf8.Valid(b) {
		return string(b), nil
	}
	decoded, err := charset.NewReader(bytes.NewReader(b), src.full)
	if err == nil {
		b, err = io.ReadAll(decoded)
	}
	if err != nil {
		return "", op.Errorf(op.Invalid, "%s is in an encoding that cannot be read: %w", src.title(), err)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}

func (s *Service) text(src *source) (string, error) {
	text, err := s.load(src)
	if err != nil {
		return "", err
	}
	if strings.ContainsRune(text, 0) {
		return "", op.Errorf(op.Invalid, "%s is not text; download it instead", src.title())
	}
	return text, nil
}

func (s *Service) json(src *source) (string, error) {
	text, err := s.text(src)
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

// maxHTML bounds a page: parsing cannot be called off once it has begun.
const maxHTML = 16 << 20

// html converts a page: of an article on the web what is to be read, of
// everything else all there is.
func (s *Service) html(src *source) (string, error) {
	text, err := s.load(src)
	if err != nil {
		return "", err
	}
	if len(text) > maxHTML {
		return "", tooLarge(src.title(), maxHTML)
	}
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return "", op.Errorf(op.Invalid, "%s cannot be read as HTML: %w", src.title(), err)
	}
	title := findTitle(root)
	if src.page != nil && readability.CheckDocument(root) {
		article, err := readability.FromDocument(root, src.page)
		if err == nil && article.Node != nil {
			root = article.Node
			if article.Title != "" {
				title = article.Title
			}
		}
	}
	conv := converter.NewConverter(converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin(),
		strikethrough.NewStrikethroughPlugin(), table.NewTablePlugin()))
	b, err := conv.ConvertNode(root, converter.WithDomain(domain(src.page)))
	if err != nil {
		return "", op.Errorf(op.Invalid, "%s cannot be converted: %w", src.title(), err)
	}
	out := strings.TrimSpace(string(b)) + "\n"
	if title != "" && !strings.HasPrefix(out, "# ") {
		out = "# " + title + "\n\n" + out
	}
	return out, nil
}

func domain(u *url.URL) string {
	if u == nil {
		return ""
	}
	return u.Scheme + "://" + u.Host
}

func findTitle(n *html.Node) string {
	for d := range n.Descendants() {
		if d.Type == html.ElementNode && d.Data == "title" && d.FirstChild != nil {
			return strings.Join(strings.Fields(d.FirstChild.Data), " ")
		}
	}
	return ""
}
