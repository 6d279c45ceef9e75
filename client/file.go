package client

import (
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"time"
)

// File is a file in a sandbox, open for reading.
type File struct {
	io.ReadCloser
	Name    string // last element of the requested path, never a name from the response
	Size    int64  // -1 if unknown
	ModTime time.Time
}

// Download opens a file of the sandbox.
func (g *Guest) Download(ctx context.Context, name string) (*File, error) {
	return g.open(ctx, "/v1/file/download?"+url.Values{"path": {name}}.Encode(), path.Base(name))
}

// Archive streams a file or folder of the sandbox as a tar.gz file.
func (g *Guest) Archive(ctx context.Context, name string) (*File, error) {
	return g.open(ctx, "/v1/file/archive?"+url.Values{"path": {name}, "format": {"tar.gz"}}.Encode(), path.Base(name)+".tar.gz")
}

func (g *Guest) open(ctx context.Context, path, name string) (*File, error) {
	// The length of a compressed body would differ from the file size.
	res, err := g.send(ctx, http.MethodGet, path, nil, http.Header{"Accept-Encoding": {"identity"}}) //nolint:bodyclose // the File closes it
	if err != nil {
		return nil, err
	}
	return file(res, name), nil
}

// file returns the file of a reply; closing it closes the reply.
func file(res *http.Response, name string) *File {
	f := &File{ReadCloser: res.Body, Name: name, Size: res.ContentLength}
	if t, err := http.ParseTime(res.Header.Get("Last-Modified")); err == nil {
		f.ModTime = t
	}
	return f
}

// Upload writes a file into the sandbox, completely or not at all, and returns its path
// and size. If the target is a folder or ends in a slash, the file gets that name in it.
func (g *Guest) Upload(ctx context.Context, target, name string, r io.Reader) (string, int64, error) {
	var out struct {
		Path string `json:"file_path"`
		Size int64  `json:"file_size"`
	}
	err := g.form(ctx, "/v1/file/upload", map[string]string{"path": target}, name, r, &out)
	return out.Path, out.Size, err
}

// Unpack unpacks an archive (tar, compressed tar, or zip) into a folder of the sandbox. It strips the
// given number of leading folders from each name.
func (g *Guest) Unpack(ctx context.Context, target string, r io.Reader, strip int) (files int, err error) {
	var out struct {
		Files int `json:"files"`
	}
	err = g.form(ctx, "/v1/file/unpack", map[string]string{"path": target, "strip_components": strconv.Itoa(strip)}, "archive", r, &out)
	return out.Files, err
}

// form streams a file as a form, after other fields.
func (g *Guest) form(ctx context.Context, path string, fields map[string]string, name string, r io.Reader, out any) error {
	// Wake a suspended sandbox first: data that was read from the file cannot be sent again.
	if err := g.awake(ctx); err != nil {
		return err
	}
	body, w := io.Pipe()
	defer body.Close()
	form := multipart.NewWriter(w)
	go func() {
		var err error
		for k, v := range fields {
			err = errors.Join(err, form.WriteField(k, v))
		}
		var part io.Writer
		if err == nil {
			part, err = form.CreateFormFile("file", name)
		}
		if err == nil {
			_, err = io.Copy(part, r)
		}
		if err == nil {
			err = form.Close()
		}
		w.CloseWithError(err)
	}()
	res, err := g.once(ctx, http.MethodPost, path, body, http.Header{"Content-Type": {form.FormDataContentType()}})
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return decode(res, out)
}

// awake returns when the sandbox responds.
func (g *Guest) awake(ctx context.Context) error {
	res, err := g.send(ctx, http.MethodGet, "/healthz", nil, nil)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
