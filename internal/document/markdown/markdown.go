// Package markdown converts web pages to Markdown and text of any encoding to UTF-8, and
// reads Excel files.
//
// It implements the program aio-markdown. Documents are untrusted, so the process that reads them
// has limits and can be killed. Its libraries would also slow down the start of aio, so no other
// program may link this package.
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

	"github.com/cove-sandbox/cove/internal/document/office"
)

// maxMemory limits the address space of one conversion.
const maxMemory = 4 << 30

// Main runs the program: it reads a document, writes the result and returns the exit code. If the
// document cannot be read, the code is 1 and errs has one line, the reason.
func Main(args []string, in io.Reader, out, errs io.Writer) int {
	flags := flag.NewFlagSet("aio-markdown", flag.ContinueOnError)
	flags.SetOutput(errs)
	flags.Usage = func() {
		fmt.Fprintln(errs, "aio-markdown reads HTML and writes Markdown. It is called by aio.")
		flags.PrintDefaults()
	}
	media := flags.String("type", "", "declared content type of the document")
	from := flags.String("page", "", "URL of the document; for an article, only the main text is kept")
	text := flags.Bool("text", false, "convert plain text to UTF-8 instead")
	book := flags.Bool("workbook", false, "read a JSON query from stdin, and write that part of an Excel file as JSON")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	_ = unix.Setrlimit(unix.RLIMIT_AS, &unix.Rlimit{Cur: maxMemory, Max: maxMemory}) // fails only if a lower limit applies
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
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

// runWorkbook executes a query. A panic of the library on a damaged file becomes an error.
func runWorkbook(in io.Reader, out io.Writer) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged: %v", p)
		}
	}()
	var q office.Query
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
		return "", fmt.Errorf("unsupported text encoding: %w", err)
	}
	return strings.ToValidUTF8(string(b), "\uFFFD"), nil
}

// convert converts a page to Markdown: only the main text of an article on the web, otherwise
// everything.
func convert(text string, page *url.URL) (string, error) {
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		return "", fmt.Errorf("the document cannot be read as HTML: %w", err)
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
		return "", fmt.Errorf("the document cannot be converted: %w", err)
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
