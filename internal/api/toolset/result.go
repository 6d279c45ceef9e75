package toolset

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// Limit is the maximum number of characters of text in a result: about 8,000 tokens.
	Limit = 30_000
	// maxImages is the maximum number of bytes of images in a result. As base64 in one event
	// they are well below 1 MiB, at which some clients fail.
	maxImages = 640 << 10
	// maxFields is the number of fields of an object that are never omitted. Schemas have fewer.
	maxFields = 64
	// maxBlob bounds the bytes that are read of a raw output.
	maxBlob = 256 << 20
)

// Result is the result of a tool: a text for a model, or data that is both the text and the
// structured content.
type Result struct {
	Text       string
	Images     []Image
	Files      []File          // contain the rest
	Structured json.RawMessage // an object, or nil
	Failed     bool
	// More describes how to continue if the text is truncated. By default, the whole text is
	// stored in a file.
	More string
	// Raw is the result of another server's tool, which is sent unmodified.
	Raw any
}

// SchemaOp describes the output as text: an operation with this output has no structured result.
func (Result) SchemaOp() *jsonschema.Schema { return &jsonschema.Schema{Type: "string"} }

// Image is a picture.
type Image struct {
	Type string // media type
	Data []byte
}

// File is a file in the sandbox that contains a result or a part of one.
type File struct {
	Path string
	Type string
	Size int64
}

// URI returns the address of the file as a resource.
func (f File) URI() string { return (&url.URL{Scheme: "file", Path: f.Path}).String() }

// Rawer is an output that is a result of another server's tool.
type Rawer interface{ ToolResult() any }

// Texter is an output whose text for a model differs from its JSON, which is then only the
// structured content.
type Texter interface{ ToolText() string }

// Store stores a result that is too long, and returns the path of the file.
type Store func(name string, r io.Reader) (path string, size int64, err error)

type storeKey struct{}

// WithStore returns a context whose results can be stored.
func WithStore(ctx context.Context, s Store) context.Context {
	return context.WithValue(ctx, storeKey{}, s)
}

func storeOf(ctx context.Context) Store {
	s, ok := ctx.Value(storeKey{}).(Store)
	if !ok || s == nil {
		return func(string, io.Reader) (string, int64, error) {
			return "", 0, op.Errorf(op.TooLarge, "the result is too large")
		}
	}
	return s
}

// shape converts an output to a result within the limits.
func (t Tool) shape(ctx context.Context, out any, in map[string]any) (Result, error) {
	r, err := t.render(ctx, out, in)
	if err != nil || r.Raw != nil {
		return r, err
	}
	if hint := op.CallOf(ctx).Hint; hint != "" && t.Render == nil {
		r.Text = strings.TrimRight(r.Text, "\n") + "\n[" + hint + "]"
	}
	return r.fit(ctx, t.Name), nil
}

func (t Tool) render(ctx context.Context, out any, in map[string]any) (Result, error) {
	switch v := out.(type) {
	case Result:
		return v, nil
	case Rawer:
		return Result{Raw: v.ToolResult()}, nil
	case *op.Blob:
		return shapeBlob(ctx, v)
	case string:
		return Result{Text: v}, nil
	}
	b, err := op.JSON(out)
	if err != nil {
		return Result{}, err
	}
	if t.Render != nil {
		tree, err := decodeJSON(b)
		if err != nil {
			return Result{}, err
		}
		return t.Render(tree, in), nil
	}
	if texter, ok := out.(Texter); ok {
		return Result{Text: texter.ToolText(), Structured: t.structure(b)}, nil
	}
	return t.shapeData(ctx, b)
}

// structure returns data in the form of the tool's schema; nil without a schema.
func (t Tool) structure(b []byte) json.RawMessage {
	switch {
	case t.form.output() == nil:
		return nil
	case t.form.wrapped():
		return json.RawMessage(`{"` + resultField + `":` + string(b) + `}`)
	}
	return b
}

func decodeJSON(b []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	var tree any
	err := dec.Decode(&tree)
	return tree, err
}

// shapeData returns a result with data, as text and as structured content. If the data is too
// long, its lists and texts are truncated, and all of it is stored in a file.
func (t Tool) shapeData(ctx context.Context, b []byte) (Result, error) {
	const room = Limit / 2 // the data is sent twice
	if utf8.RuneCount(b) <= room {
		return Result{Text: string(b), Structured: t.structure(b)}, nil
	}
	note := "lists in this result are truncated; request less"
	var files []File
	if path, size, err := storeOf(ctx)(t.Name+".json", bytes.NewReader(b)); err == nil {
		note = fmt.Sprintf("lists in this result are truncated; the whole result is in %s", path)
		files = []File{{Path: path, Type: "application/json", Size: size}}
	}
	tree, err := decodeJSON(b)
	if err != nil {
		return Result{}, err
	}
	for limit := 256; ; limit /= 2 {
		short, err := op.JSON(shorten(tree, limit))
		if err != nil {
			return Result{}, err
		}
		if utf8.RuneCount(short) <= room || limit == 0 {
			return Result{Text: string(short) + "\n[" + note + "]", Structured: t.structure(short), Files: files}, nil
		}
	}
}

// shorten keeps the first items of every list, and the beginning of every text.
func shorten(v any, limit int) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, 0, min(len(v), limit))
		for _, item := range v[:min(len(v), limit)] {
			out = append(out, shorten(item, limit))
		}
		return out
	case map[string]any:
		keys := slices.Sorted(maps.Keys(v))
		out := make(map[string]any, len(v))
		for _, k := range keys[:min(len(keys), 4*limit+maxFields)] {
			out[k] = shorten(v[k], limit)
		}
		return out
	case string:
		head, cut := cutAfter(v, 16*limit)
		if cut {
			return head + "…"
		}
	}
	return v
}

// cutAfter returns the first n characters.
func cutAfter(s string, n int) (head string, cut bool) {
	if len(s) <= n {
		return s, false
	}
	count := 0
	for i := range s {
		if count == n {
			return s[:i], true
		}
		count++
	}
	return s, false
}

// cutBefore returns the last n characters.
func cutBefore(s string, n int) string {
	i := len(s)
	for ; n > 0 && i > 0; n-- {
		_, size := utf8.DecodeLastRuneInString(s[:i])
		i -= size
	}
	return s[i:]
}

// fit keeps a result within the limits. It keeps the beginning and the end of a text that is too
// long.
func (r Result) fit(ctx context.Context, name string) Result {
	r.Text = strings.ToValidUTF8(r.Text, "\uFFFD")
	if total := utf8.RuneCountInString(r.Text); total > Limit {
		more := r.More
		if more == "" {
			more = "request less"
			if path, size, err := storeOf(ctx)(name+".txt", strings.NewReader(r.Text)); err == nil {
				more = fmt.Sprintf("the whole text is in %s; read it with file_read, start_line and end_line", path)
				r.Files = append(r.Files, File{Path: path, Type: "text/plain", Size: size})
			}
		}
		const room = Limit - 400
		head, _ := cutAfter(r.Text, room*2/3)
		tail := cutBefore(r.Text, room/3)
		omitted := total - utf8.RuneCountInString(head) - utf8.RuneCountInString(tail)
		r.Text = fmt.Sprintf("%s\n[… %d of %d characters omitted; %s …]\n%s", head, omitted, total, more, tail)
	}
	return r.fitImages(ctx)
}

// fitImages stores images that exceed the limit.
func (r Result) fitImages(ctx context.Context) Result {
	room := maxImages
	var kept []Image
	for i, image := range r.Images {
		image = Shrink(image, room)
		if len(image.Data) <= room {
			room -= len(image.Data)
			kept = append(kept, image)
			continue
		}
		name := fmt.Sprintf("image-%d%s", i+1, extension(image.Type))
		path, size, err := storeOf(ctx)(name, bytes.NewReader(image.Data))
		if err != nil {
			r.Text += fmt.Sprintf("\n[an image of %d bytes was omitted]", len(image.Data))
			continue
		}
		r.Files = append(r.Files, File{Path: path, Type: image.Type, Size: size})
		r.Text += fmt.Sprintf("\n[an image of %d bytes is in %s]", len(image.Data), path)
	}
	r.Images = kept
	return r
}

func extension(media string) string {
	_, kind, _ := strings.Cut(media, "/")
	kind, _, _ = strings.Cut(kind, "+")
	return "." + kind
}

// shapeBlob returns a result with raw bytes: text as text, an image as an image, other content as
// a file.
func shapeBlob(ctx context.Context, b *op.Blob) (Result, error) {
	if b.Body == nil {
		return Result{}, nil
	}
	defer b.Body.Close()
	media, _, _ := strings.Cut(b.Type, ";")
	body := io.LimitReader(b.Body, maxBlob+1)
	switch {
	case strings.HasPrefix(media, "image/"):
		data, err := io.ReadAll(body)
		return Result{Images: []Image{{media, data}}}, err
	case strings.HasPrefix(media, "text/"), media == "application/json":
		data, err := io.ReadAll(body)
		if err != nil || utf8.Valid(data) {
			return Result{Text: string(data)}, err
		}
		body = bytes.NewReader(data)
	}
	name := b.Name
	if name == "" {
		name = "result" + extension(media)
	}
	path, size, err := storeOf(ctx)(name, body)
	if err != nil {
		return Result{}, err
	}
	return Result{Text: fmt.Sprintf("Saved %d bytes to %s", size, path), Files: []File{{path, media, size}}}, nil
}
