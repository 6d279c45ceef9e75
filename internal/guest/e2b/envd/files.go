package envd

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// fault is the error of a request outside of the Connect protocol.
type fault struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func writeFault(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, fault{status, message})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our types are always encodable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(status)
	_, _ = w.Write(b) // an error means that the client has disconnected
}

// refuse responds with an error.
func refuse(w http.ResponseWriter, path string, err error) {
	e, ok := errors.AsType[*connect.Error](fileError(path, err))
	if !ok {
		e = &connect.Error{Code: connect.Internal, Message: err.Error()}
	}
	status := e.Code.HTTPStatus()
	switch e.Code {
	case connect.ResourceExhausted:
		status = http.StatusInsufficientStorage
	case connect.PermissionDenied, connect.AlreadyExists:
		status = http.StatusBadRequest
	}
	writeFault(w, status, e.Message)
}

// target returns the user and the path of a request for a file. The query may contain the user, as in signed URLs.
func (s *Service) target(r *http.Request) (account, string, error) {
	u, err := s.users.fromHeader(r.Header)
	if name := r.URL.Query().Get("username"); err == nil && name != "" {
		u, err = s.users.find(name)
	}
	if err != nil {
		return u, "", err
	}
	path, err := u.resolve(r.URL.Query().Get("path"))
	return u, path, err
}

func (s *Service) download(w http.ResponseWriter, r *http.Request) {
	u, path, err := s.target(r)
	if err != nil {
		refuse(w, path, err)
		return
	}
	var info entryOut
	if err := s.asUser(r.Context(), u, "stat", helpIn{Path: path}, &info); err != nil {
		refuse(w, path, err)
		return
	}
	if info.Entry.Type != kindFile {
		writeFault(w, http.StatusBadRequest, "path "+strconv.Quote(path)+" is not a file")
		return
	}
	h := w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": filepath.Base(path)}))
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "Accept-Encoding")
	if media := mime.TypeByExtension(filepath.Ext(path)); media != "" {
		h.Set("Content-Type", media)
	} else {
		h.Set("Content-Type", "application/octet-stream")
	}
	modified, err := time.Parse(time.RFC3339Nano, info.Entry.Modified)
	if err != nil {
		modified = time.Time{}
	}
	var f *os.File
	switch {
	case u.own:
		f, err = os.Open(path)
	case u.owner != root.owner:
		err = s.asOther(r.Context(), u, "open", helpIn{Path: path}, &none{})
	default:
		err = nil
	}
	if err != nil && isDenied(fileError(path, err)) && s.users.hasRoot() {
		u, err = root, nil
	}
	if err != nil {
		refuse(w, path, err)
		return
	}
	if f == nil {
		s.downloadAs(w, r, &otherFile{service: s, user: u, path: path, size: info.Entry.Size}, modified)
		return
	}
	defer f.Close()
	http.ServeContent(w, r, "", modified, f)
}

// downloadAs sends a file as another user.
func (s *Service) downloadAs(w http.ResponseWriter, r *http.Request, f *otherFile, modified time.Time) {
	defer f.Close()
	http.ServeContent(w, r, "", modified, f)
	if f.err != nil {
		panic(http.ErrAbortHandler) // a partial download must not look complete
	}
}

// otherFile is a file that a process of another user reads.
type otherFile struct {
	service *Service
	user    account
	path    string
	size    int64

	at     int64
	err    error    // of a read
	output *os.File // of the process; nil: none
	reader *proc.Process
}

// Seek sets the position of the next read.
func (f *otherFile) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += f.at
	case io.SeekEnd:
		offset += f.size
	}
	if offset < 0 {
		return f.at, errors.New("negative offset")
	}
	if offset != f.at {
		f.Close()
	}
	f.at = offset
	return offset, nil
}

// Read reads from the process, which it starts if necessary.
func (f *otherFile) Read(b []byte) (n int, err error) {
	if f.output == nil {
		err = f.start()
	}
	if err == nil {
		n, err = f.output.Read(b)
		f.at += int64(n)
	}
	if errors.Is(err, io.EOF) {
		<-f.reader.Done()
		if f.at < f.size || f.reader.Exit().Code != 0 {
			err = io.ErrUnexpectedEOF
		}
	}
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

func (f *otherFile) start() error {
	c, err := f.service.helper(f.user, "read", helpIn{Path: f.path, Offset: f.at})
	if err != nil {
		return err
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer out.Close()
	c.Stdout = out
	if f.reader, err = f.service.Runner.Start(c); err != nil {
		in.Close()
		return err
	}
	f.output = in
	return nil
}

// Close ends the process: it cannot write anymore.
func (f *otherFile) Close() error {
	if f.output == nil {
		return nil
	}
	err := f.output.Close()
	f.output = nil
	f.reader.Kill()
	<-f.reader.Done()
	return err
}

// written describes a written file.
type written struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (s *Service) upload(w http.ResponseWriter, r *http.Request) {
	u, path, err := s.target(r)
	if err != nil {
		refuse(w, path, err)
		return
	}
	metadata, err := headerMetadata(r.Header)
	if err != nil {
		refuse(w, path, err)
		return
	}
	body := io.Reader(r.Body)
	switch encoding := r.Header.Get("Content-Encoding"); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			writeFault(w, http.StatusBadRequest, "the body is not valid gzip data: "+err.Error())
			return
		}
		body = z
	default:
		writeFault(w, http.StatusBadRequest, "unsupported Content-Encoding "+strconv.Quote(encoding)+"; use gzip or none")
		return
	}
	media, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case media == "multipart/form-data" && params["boundary"] != "":
		s.uploadParts(w, r, u, metadata, multipart.NewReader(body, params["boundary"]))
	case media == "application/octet-stream":
		if r.URL.Query().Get("path") == "" {
			writeFault(w, http.StatusBadRequest, "path is missing; set it to the file to write")
			return
		}
		if err := s.write(r, u, helpIn{Path: path, Metadata: metadata}, body); err != nil {
			refuse(w, path, err)
			return
		}
		s.watchers.flushAll(r.Context())
		writeJSON(w, http.StatusOK, []written{describeWritten(path, metadata)})
	default:
		writeFault(w, http.StatusBadRequest, "unsupported Content-Type "+strconv.Quote(media)+
			"; use multipart/form-data or application/octet-stream")
	}
}

func describeWritten(path string, metadata map[string]string) written {
	return written{Path: path, Name: filepath.Base(path), Type: "file", Metadata: metadata}
}

// uploadParts writes the files of a form. The path is in the query or in the name of each part.
func (s *Service) uploadParts(w http.ResponseWriter, r *http.Request, u account, metadata map[string]string, form *multipart.Reader) {
	done := []written{}
	for {
		part, err := form.NextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			writeFault(w, http.StatusBadRequest, "read the form: "+err.Error())
			return
		}
		if part.FormName() != "file" {
			continue
		}
		name := r.URL.Query().Get("path")
		if name == "" {
			name = fullFileName(part)
		}
		if name == "" {
			writeFault(w, http.StatusBadRequest, "path is missing; set it in the query or as the file name of the part")
			return
		}
		path, err := u.resolve(name)
		if err == nil {
			err = s.write(r, u, helpIn{Path: path, Metadata: metadata}, part)
		}
		if err != nil {
			refuse(w, path, err)
			return
		}
		done = append(done, describeWritten(path, metadata))
	}
	if len(done) == 0 {
		writeFault(w, http.StatusBadRequest, "the form has no part named file")
		return
	}
	s.watchers.flushAll(r.Context())
	writeJSON(w, http.StatusOK, done)
}

// fullFileName returns the file name of a part with its folders, which the standard library removes.
func fullFileName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// headerMetadata returns the metadata in the headers of an upload.
func headerMetadata(h http.Header) (map[string]string, error) {
	var all map[string]string
	for name, values := range h {
		key, ok := strings.CutPrefix(name, "X-Metadata-")
		if !ok || len(values) == 0 {
			continue
		}
		value := values[0]
		if len(value) > maxMetadata || strings.ContainsFunc(value, func(c rune) bool { return c < ' ' || c > '~' }) {
			return nil, connect.Errorf(connect.InvalidArgument,
				"metadata %q: use at most %d printable ASCII characters", strings.ToLower(key), maxMetadata)
		}
		if all == nil {
			all = map[string]string{}
		}
		all[strings.ToLower(key)] = value
	}
	return all, nil
}

// write writes a file as a user, or as root for the user.
func (s *Service) write(r *http.Request, u account, in helpIn, body io.Reader) error {
	switch {
	case u.own:
		read := &notedReader{Reader: body}
		err := writeFile(in, read, func() { s.watchers.flushAll(r.Context()) })
		if err == nil || read.begun {
			return err // a retry would write only the rest
		}
		return s.users.orRoot(u, in, fileError(in.Path, err), func(in helpIn) error { return s.writeAs(r, root, in, body) })
	case u.owner != root.owner && s.users.hasRoot():
		// A denial would come after the body was sent, so there is no second attempt.
		in.Owner = &owner{u.owner, u.group}
		return s.writeAs(r, root, in, body)
	}
	return s.writeAs(r, u, in, body)
}

// notedReader notes whether it was read.
type notedReader struct {
	io.Reader
	begun bool
}

func (n *notedReader) Read(b []byte) (int, error) {
	n.begun = true
	return n.Reader.Read(b)
}

// writeAs writes a file as another user.
func (s *Service) writeAs(r *http.Request, u account, in helpIn, body io.Reader) error {
	c, err := s.helper(u, "write", in)
	if err != nil {
		return err
	}
	stdout, stderr := proc.NewCapture(1<<16, 0), proc.NewCapture(1<<12, 0)
	c.Stdin, c.Stdout, c.Stderr = body, stdout, stderr
	p, err := s.Runner.Start(c)
	if err != nil {
		return err
	}
	if _, err := p.Wait(r.Context()); err != nil {
		p.Kill()
		return err
	}
	return readHelp(u, []byte(stdout.String()), []byte(stderr.String()), &none{})
}

// writeFile writes a file in place and creates its parent folders. Writing in place keeps the file's mode and links, and watchers
// report a change of the same file. Like E2B's daemon it makes three changes of a new file; step is called between them.
func writeFile(in helpIn, body io.Reader, step func()) error {
	if info, err := os.Stat(in.Path); err == nil && info.IsDir() {
		return connect.Errorf(connect.InvalidArgument, "path %q is a folder", in.Path)
	}
	if err := in.makeFolders(filepath.Dir(in.Path)); err != nil {
		return err
	}
	_, err := os.Lstat(in.Path)
	isNew := errors.Is(err, os.ErrNotExist)
	f, err := os.OpenFile(in.Path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if isNew {
		step()
	}
	switch {
	case in.Owner != nil:
		err = f.Chown(in.Owner.User, in.Owner.Group)
	case isNew:
		err = f.Chown(os.Geteuid(), -1)
	default:
		err = nil
	}
	if isNew {
		step()
	}
	if err == nil {
		_, err = io.Copy(f, body)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return writeMetadata(in.Path, in.Metadata)
}
