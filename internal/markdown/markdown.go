// Package markdown turns web pages into Markdown, and text of any encoding into UTF-8.
//
// It is the inside of a program of its own, aio-markdown: pages come from anywhere,
// so what reads them can be bounded and killed; and what it takes to read them would
// be a seventh of the time in which a sandbox's server starts. Nothing else may
// link it.
package markdown

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/url"
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
	"golang.org/x/sys/unix"
)

// maxMemory is the address space of one conversion.
const maxMemory = 4 << 30

// Main is the program: it reads a document and writes what became of it. It returns
// the exit code; what is wrong with the document is the only line of errors.
func Main(args []string, in io.Reader, out, errs io.Writer) int {
	flags := flag.NewFlagSet("aio-markdown", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprintln(errs, "aio-markdown reads HTML and writes Markdown. aio calls it.")
		flags.PrintDefaults()
	}
	media := flags.String("type", "", "content type, as declared with the document")
	from := flags.String("page", "", "address that the document came from: of an article there, only the article is kept")
	text := flags.Bool("text", false, "the document is text and stays so; it only becomes UTF-8")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: maxMemory, Max: maxMemory})
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	if err := run(in, out, *media, *from, *text); err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	return 0
}

func run(in io.Reader, out io.Writer, media, from string, plain bool) error {
	b, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	text, err := decode(b, media)
	if err != nil {
		return err
	}
	if !plain {
		var page *url.URL
		if from != "" {
			if page, err = url.Parse(from); err != nil {
				return err
			}
		}
		if text, err = convert(text, page); err != nil {
			return err
		}
	}
	_, err = io.WriteString(out, text)
	return err
}

// decode brings text of any encoding to UTF-8.
func decode(b []byte, media string) (string, error) {
	b = bytes.TrimPrefix(b, []byte("\xEF\xBB\xBF"))
	if utf8.Valid(b) {
		return string(b), nil
	}
	r, err := charset.NewReader(bytes.NewReader(b), media)
	if err == nil {
		b, err = io.ReadAll(r)
	}
	if err != nil {
		return "", fmt.Errorf("it is in an encoding that cannot be read: %w", err)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}

// convert turns a page into Markdown: of an article on the web what is to be read,
// of everything else all there is.
func convert(text string, page *url.URL) (string, error) {
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("it cannot be read as HTML: %w", err)
	}
	title := findTitle(root)
	if page != nil && readability.CheckDocument(root) {
		article, err := readability.FromDocument(root, page)
		if err == nil && article.Node != nil {
			root = article.Node
			if article.Title != "" {
				title = article.Title
			}
		}
	}
	conv := converter.NewConverter(converter.WithPlugins(base.NewBasePlugin(), commonmark.NewCommonmarkPlugin(),
		strikethrough.NewStrikethroughPlugin(), table.NewTablePlugin()))
	b, err := conv.ConvertNode(root, converter.WithDomain(domain(page)))
	if err != nil {
		return "", fmt.Errorf("it cannot be converted: %w", err)
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
