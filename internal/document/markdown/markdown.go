// Package markdown converts web pages to Markdown and text of any encoding to UTF-8, and
// reads Excel files.
//
// It is the inside of aio-markdown, a program of its own: documents come from anywhere,
// so what reads them must be bounded and killable, and the libraries it needs would
// slow down the start of a sandbox's server. Nothing else may link it.
package markdown

import (
	"bytes"
	"encoding/json"
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

	"github.com/cove-sandbox/cove/internal/document/workbook"
)

// maxMemory is the address space of one conversion.
const maxMemory = 4 << 30

// Main is the program: it reads a document and writes the result. It returns the exit
// code: 1 if the document cannot be read, with the reason as the only line of errs.
func Main(args []string, in io.Reader, out, errs io.Writer) int {
	flags := flag.NewFlagSet("aio-markdown", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprintln(errs, "aio-markdown reads HTML and writes Markdown. It is called by aio.")
		flags.PrintDefaults()
	}
	media := flags.String("type", "", "declared content type of the document")
	from := flags.String("page", "", "URL of the document; of an article, only the main text is kept")
	text := flags.Bool("text", false, "convert plain text to UTF-8 instead")
	book := flags.Bool("workbook", false, "read the part of an Excel file that a JSON query on stdin names, and write it as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: maxMemory, Max: maxMemory})
	unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
	var err error
	if *book {
		err = runWorkbook(in, out)
	} else {
		err = run(in, out, *media, *from, *text)
	}
	if err != nil {
		fmt.Fprintln(errs, err)
		return 1
	}
	return 0
}

// runWorkbook answers a query. A library that panics on a damaged file counts as an error.
func runWorkbook(in io.Reader, out io.Writer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	var q workbook.Query
	if err := json.NewDecoder(in).Decode(&q); err != nil {
		return fmt.Errorf("invalid query: %w", err)
	}
	book, err := readWorkbook(q)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(book)
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

// decode converts text of any encoding to UTF-8.
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
		return "", fmt.Errorf("its encoding cannot be read: %w", err)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}

// convert turns a page into Markdown: of an article on the web only the main text,
// of everything else all of it.
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
