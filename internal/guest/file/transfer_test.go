package file

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/text"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/transfer"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func upload(s *sandbox, name string, r io.Reader, path string) (transfer.UploadOut, error) {
	in := transfer.UploadIn{File: &op.File{Name: name, Reader: r}}
	if path != "-" {
		in.Path = &path
	}
	return s.transfer.Upload(s.t.Context(), in)
}

func TestUpload(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	must(t, os.Mkdir(s.dir+"/dir", 0o755))
	for _, c := range []struct{ name, path, want string }{
		{"a.txt", "-", "a.txt"},
		{"a.txt", "", "a.txt"},
		{"../../evil.txt", "-", "evil.txt"},
		{`C:\folder\win.txt`, "-", "win.txt"},
		{"a.txt", "dir", "dir/a.txt"},
		{"a.txt", "new/", "new/a.txt"},
		{"a.txt", "deep/er/b.txt", "deep/er/b.txt"},
		{"größe 你好.txt", "-", "größe 你好.txt"},
	} {
		out, err := upload(s, c.name, strings.NewReader("content"), c.path)
		if err != nil || out.FilePath != s.dir+"/"+c.want || out.FileSize != 7 || !out.Success || s.get(c.want) != "content" {
			t.Errorf(`%+v: got %+v %v, want file path %q, file size 7, success and file content "content"`, c, out, err, s.dir+"/"+c.want)
		}
	}
	_, err := upload(s, "..", strings.NewReader("x"), "-")
	fails(t, err, pyerr.Target, "ValueError")
	broken := errors.New("connection lost")
	_, err = upload(s, "x", io.MultiReader(strings.NewReader("new"), iotest.ErrReader(broken)), "a.txt")
	if fails(t, err, pyerr.IO, ""); !errors.Is(err, broken) || s.get("a.txt") != "content" {
		t.Errorf(`got %v, %q, want %v and file a.txt with "content"`, err, s.get("a.txt"), broken)
	}
	noTemps(t, s.dir)
}

// serve responds as the REST surface does.
func serve(s *sandbox, path, policy string) *httptest.Server {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, err := s.transfer.Download(r.Context(), transfer.DownloadIn{Path: path, ChangePolicy: policy})
		if err != nil {
			status := http.StatusBadRequest
			if e, _ := op.AsError(err); e.Code == op.Conflict {
				status = http.StatusConflict
			}
			http.Error(w, err.Error(), status)
			return
		}
		defer b.Body.Close()
		w.Header().Set("ETag", b.ETag)
		http.ServeContent(w, r, "", b.ModTime, b.Body.(io.ReadSeeker))
	}))
	s.t.Cleanup(srv.Close)
	return srv
}

func fetch(t testing.TB, url string, header ...string) (int, string, http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	res, err := tr.RoundTrip(req)
	must(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, "truncated: " + err.Error(), res.Header
	}
	return res.StatusCode, string(b), res.Header
}

func TestDownload(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"ignore", "abort"} {
		s := newSandbox(t)
		s.put(map[string]string{"größe.txt": "0123456789"})
		srv := serve(s, "größe.txt", policy)
		status, body, header := fetch(t, srv.URL)
		if status != 200 || body != "0123456789" {
			t.Errorf(`got %d %q, want status 200 and body "0123456789"`, status, body)
		}
		tag := header.Get("ETag")
		if status, body, _ = fetch(t, srv.URL, "Range", "bytes=2-4"); status != 206 || body != "234" {
			t.Errorf(`got %d %q, want status 206 and body "234"`, status, body)
		}
		if status, body, _ = fetch(t, srv.URL, "If-None-Match", tag); status != 304 {
			t.Errorf("got %d %q, want status 304", status, body)
		}
		if status, body, _ = fetch(t, srv.URL, "Range", "bytes=2-4", "If-Range", `"other"`); status != 200 || len(body) != 10 {
			t.Errorf("got %d %q, want status 200 and 10 bytes", status, body)
		}
		want[text.WriteOut](s, "file_write", args{"file": "größe.txt", "content": "abcdefghij"})
		if status, body, _ = fetch(t, srv.URL, "If-None-Match", tag); status != 200 || body != "abcdefghij" {
			t.Errorf(`after a change: got %d %q, want status 200 and body "abcdefghij"`, status, body)
		}
		b := want[*op.Blob](s, "file_download", args{"path": "größe.txt"})
		if _, ok := b.Body.(*os.File); !ok || b.Name != "größe.txt" || b.Size != 10 || !strings.HasPrefix(b.Type, "text/plain") {
			t.Errorf(`got %+v, want the file "größe.txt" of 10 bytes as text/plain`, b)
		}
		must(t, b.Body.Close())
	}
	s := newSandbox(t)
	_, err := do[*op.Blob](s, "file_download", args{"path": "."})
	if fails(t, err, pyerr.Target, "IsADirectoryError"); !strings.Contains(err.Error(), "archive") {
		t.Error(err)
	}
}

func TestDownloadOfChangingFile(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	// The download of a large file fails in the middle.
	large := s.dir + "/large"
	must(t, os.WriteFile(large, nil, 0o644))
	must(t, os.Truncate(large, 64<<20+1))
	b := want[*op.Blob](s, "file_download", args{"path": large, "change_policy": "abort"})
	defer b.Body.Close()
	buf := make([]byte, 1000)
	if _, err := io.ReadFull(b.Body, buf); err != nil {
		t.Fatal(err)
	}
	must(t, os.Chtimes(large, time.Now(), time.Now().Add(time.Hour)))
	if _, err := io.ReadFull(b.Body, buf); err == nil {
		t.Error("after a change: got no error, want one")
	}
	// A replaced file has changed, too.
	b = want[*op.Blob](s, "file_download", args{"path": large, "change_policy": "abort"})
	defer b.Body.Close()
	want[text.WriteOut](s, "file_write", args{"file": large, "content": "small"})
	if _, err := io.ReadFull(b.Body, buf); err == nil {
		t.Error("after a replacement: got no error, want one")
	}
}

// The server must not send the file with sendfile, which does not detect the change.
func TestServedDownloadOfChangingFile(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	large := s.dir + "/large"
	must(t, os.WriteFile(large, nil, 0o644))
	must(t, os.Truncate(large, 65<<20))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get(serve(s, large, "abort").URL)
	must(t, err)
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	must(t, os.Chtimes(large, time.Now(), time.Now().Add(time.Hour)))
	if n, err := io.Copy(io.Discard, res.Body); err == nil {
		t.Errorf("got %d more bytes and no error, want an incomplete response", n)
	}
}

func TestArchiveAndUnpack(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"tar.gz", "zip"} {
		s := newSandbox(t)
		s.put(map[string]string{"pro/a.txt": "one", "pro/sub/größe.txt": strings.Repeat("two", 50_000)})
		b := want[*op.Blob](s, "file_archive", args{"path": "pro", "format": format})
		packed, err := io.ReadAll(b.Body)
		must(t, err)
		must(t, b.Body.Close())
		if b.Name != "pro."+format || b.Size != -1 || b.Header["X-Archive-Entries"] != "4" {
			t.Errorf(`got %+v, want name %q, size -1 and X-Archive-Entries "4"`, b, "pro."+format)
		}
		out, err := s.transfer.Unpack(t.Context(), transfer.UnpackIn{File: &op.File{Reader: bytes.NewReader(packed)},
			Path: new("to/here"), Overwrite: true, Strip: 1})
		if err != nil || out.Files != 2 || out.Format != format || s.get("to/here/sub/größe.txt") != strings.Repeat("two", 50_000) {
			t.Errorf("got %+v %v, want 2 files, format %q and the packed content", out, err, format)
		}
		_, err = s.transfer.Unpack(t.Context(), transfer.UnpackIn{File: &op.File{Reader: bytes.NewReader(packed)},
			Path: new("to/here"), Strip: 1})
		fails(t, err, pyerr.Exists, "FileExistsError")
		_, err = s.transfer.Unpack(t.Context(), transfer.UnpackIn{File: &op.File{Reader: strings.NewReader("no archive")}})
		fails(t, err, pyerr.Decode, "ValueError")
		noTemps(t, s.cfg.State)
	}
	s := newSandbox(t)
	_, err := do[*op.Blob](s, "file_archive", args{"path": "none"})
	fails(t, err, pyerr.NotFound, "FileNotFoundError")
	_, err = do[*op.Blob](s, "file_archive", args{"path": "/dev/null"})
	fails(t, err, pyerr.Target, "")
	small := newSandbox(t, func(c *Config) { c.Unpack.Bytes = 10 })
	small.put(map[string]string{"d/f": "longer than ten"})
	b := want[*op.Blob](small, "file_archive", args{"path": "d"})
	_, err = small.transfer.Unpack(t.Context(), transfer.UnpackIn{File: &op.File{Reader: b.Body}, Path: new("to")})
	fails(t, err, pyerr.Target, "")
	must(t, b.Body.Close())
}

// An archive that no client reads to its end does not stay open.
func TestAbandonedArchive(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.put(map[string]string{"d/f": strings.Repeat("x", 1<<20)})
	b := want[*op.Blob](s, "file_archive", args{"path": "d"})
	must(t, b.Body.Close())
	b = want[*op.Blob](s, "file_archive", args{"path": "d"})
	must(t, s.Close()) // ends the second archive, which no client reads
	if _, err := io.ReadAll(b.Body); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
}
