package toolcatalog

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// URIs of resources of the browser.
const (
	consoleURI       = "console://logs"
	screenshotScheme = "screenshot://"
	downloadScheme   = "download://"
)

// Pages are the resources of the browser: its console, named screenshots and downloads.
type Pages struct {
	Table  func() *op.Table
	Album  *Album
	Active func() bool // whether the browser runs; reading does not start it
}

// Offers describes the console and the URI templates of the others.
func (p Pages) Offers() []toolset.Resource {
	if !fromTable(p.Table).has(routeConsole, routeDownloads) {
		return nil
	}
	return []toolset.Resource{
		{URI: consoleURI, Name: "console", Title: "Console of the page", Type: "text/plain",
			Doc: "Console output of the active page."},
		{URI: screenshotScheme + "{+name}", Name: "screenshot", Title: "A screenshot", Type: "image/png",
			Doc: "A screenshot that browser_screenshot took under this name."},
		{URI: downloadScheme + "{+name}", Name: "download", Title: "A download", Doc: "A file that the browser has downloaded, by its name."},
	}
}

// List returns the screenshots and downloads.
func (p Pages) List(ctx context.Context) ([]toolset.Resource, error) {
	var all []toolset.Resource
	for _, name := range p.Album.names() {
		all = append(all, toolset.Resource{URI: screenshotScheme + url.PathEscape(name), Name: name,
			Title: "Screenshot " + name, Type: "image/png"})
	}
	list, err := p.downloads(ctx)
	for _, d := range list {
		if d.Resource != "" {
			all = append(all, toolset.Resource{URI: d.Resource, Name: d.Filename, Title: "Download " + d.Filename,
				Doc: "Downloaded from " + d.URL, Type: mediaType(d.Filename)})
		}
	}
	return all, err
}

// downloads lists the downloads of the browser; none if it does not run.
func (p Pages) downloads(ctx context.Context) ([]download, error) {
	if !p.Active() {
		return nil, nil
	}
	out, err := browser{routes: fromTable(p.Table)}.downloads(ctx, op.None{})
	return out.List, err
}

// Read returns a resource of at most limit bytes.
func (p Pages) Read(ctx context.Context, uri string, limit int64) (data []byte, media string, err error) {
	if uri == consoleURI {
		text, err := p.console(ctx)
		return []byte(lastBytes(text, int(limit))), "text/plain", err
	}
	escaped, ok := strings.CutPrefix(uri, screenshotScheme)
	if ok {
		name, err := url.PathUnescape(escaped)
		if err != nil {
			return nil, "", op.Errorf(op.NotFound, "invalid percent-encoding in %q", uri)
		}
		picture, err := p.Album.read(name, limit)
		return picture.Data, picture.Type, err
	}
	list, err := p.downloads(ctx)
	if err != nil {
		return nil, "", err
	}
	for i := len(list) - 1; i >= 0; i-- { // the newest with this name
		if list[i].Resource == uri {
			return Files{Table: p.Table}.Read(ctx, list[i].Path, limit)
		}
	}
	return nil, "", op.Errorf(op.NotFound, "no such download: %q; browser_get_download_list lists them", uri)
}

// console returns the console of the active page as lines.
func (p Pages) console(ctx context.Context) (string, error) {
	if !p.Active() {
		return "", nil
	}
	out, err := fromTable(p.Table).call(ctx, routeConsole, map[string]any{})
	list, _ := out.([]any)
	var text strings.Builder
	for _, item := range list {
		e := toObject(item)
		fmt.Fprintf(&text, "[%s] %s", e.text("type"), e.text("text"))
		if at := e.text("url"); at != "" {
			fmt.Fprintf(&text, " (%s:%d)", at, e.number("line"))
		}
		text.WriteByte('\n')
	}
	return text.String(), err
}

// lastBytes returns the end of a text: complete lines of at most limit bytes.
func lastBytes(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	_, rest, _ := strings.Cut(text[len(text)-limit:], "\n")
	return rest
}

// downloadURI returns the URI of a downloaded file.
func downloadURI(path string) string { return downloadScheme + url.PathEscape(filepath.Base(path)) }
