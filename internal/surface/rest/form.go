package rest

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	maxFormField  = 1 << 20
	maxFormValues = 4 << 20 // of all fields together
	maxFormFields = 256
)

// form is a request with form fields and files, in any order. The operation reads a file as it
// arrives if all fields precede it. Otherwise the file is stored temporarily until the form
// ends.
type form struct {
	values map[string][]string
	files  map[string]*op.File
	temps  []*os.File
	size   int // of the values

	parts *parts
	in    *op.Type
}

func readForm(in *op.Type, r *http.Request) (*form, error) {
	f := &form{values: map[string][]string{}, files: map[string]*op.File{}, in: in}
	media, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch media {
	case "application/x-www-form-urlencoded":
		if err := r.ParseForm(); err != nil {
			return nil, bodyError(err)
		}
		f.values = r.PostForm
		return f, nil
	case "multipart/form-data":
	default:
		if r.ContentLength == 0 {
			return f, nil
		}
		return nil, op.Faults{{Type: "form_invalid", Loc: []any{"body"}, Msg: "Send the request as multipart/form-data"}}
	}
	if params["boundary"] == "" {
		return nil, op.Faults{{Type: "form_invalid", Loc: []any{"body"}, Msg: "Content-Type has no boundary"}}
	}
	f.parts = newParts(r.Body, params["boundary"])
	if err := f.read(); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

// read reads parts until the end, or until a file that can be streamed.
func (f *form) read() error {
	for n := 0; ; n++ {
		part, err := f.parts.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return formError(err)
		}
		if n >= maxFormFields {
			return op.Errorf(op.TooLarge, "form has more than %d fields", maxFormFields)
		}
		name := part.name()
		field := f.field(name)
		if field == nil || field.Type.Kind != op.Upload {
			if err := f.value(name, part); err != nil {
				return err
			}
			continue
		}
		file := &op.File{Name: part.file(), Type: part.header.Get("Content-Type")}
		f.files[name] = file
		if f.complete() {
			file.Reader = &live{part: part, form: f}
			return nil
		}
		if err := f.spool(file, part); err != nil {
			return err
		}
	}
}

func (f *form) field(name string) *op.Field {
	for _, field := range f.in.Fields {
		if field.Name == name && field.Source == op.Form {
			return field
		}
	}
	return nil
}

// complete reports whether all fields and all files have been read.
func (f *form) complete() bool {
	for _, field := range f.in.Fields {
		if field.Source == op.Form && f.values[field.Name] == nil && f.files[field.Name] == nil {
			return false
		}
	}
	return true
}

func (f *form) value(name string, part *part) error {
	b, err := io.ReadAll(io.LimitReader(part, maxFormField+1))
	if err != nil {
		return formError(err)
	}
	if len(b) > maxFormField {
		return op.Errorf(op.TooLarge, "form field %q is larger than %d bytes; send it as a file", name, maxFormField)
	}
	if f.size += len(b); f.size > maxFormValues {
		return op.Errorf(op.TooLarge, "the fields of the form are larger than %d bytes; send large ones as files", maxFormValues)
	}
	f.values[name] = append(f.values[name], string(b))
	return nil
}

func (f *form) spool(file *op.File, part *part) error {
	temp, err := os.CreateTemp("", "aio-upload-")
	if err != nil {
		return fmt.Errorf("store upload: %w", err)
	}
	os.Remove(temp.Name())
	f.temps = append(f.temps, temp)
	if _, err := io.Copy(temp, part); err != nil {
		return formError(err)
	}
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("rewind upload: %w", err)
	}
	file.Reader = temp
	return nil
}

func (f *form) close() {
	for _, t := range f.temps {
		t.Close()
	}
}

func formError(err error) error {
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	_, refused := op.AsError(err)
	if tooLarge || refused || errors.Is(err, os.ErrDeadlineExceeded) {
		return bodyError(err)
	}
	return op.Faults{{Type: "form_invalid", Loc: []any{"body"}, Msg: "Invalid form: " + err.Error()}}
}

// live is a file that is read as it arrives. At its end it checks that the form also ends.
type live struct {
	part *part
	form *form
	done bool
}

func (l *live) Read(b []byte) (int, error) {
	if l.done {
		return 0, io.EOF
	}
	n, err := l.part.Read(b)
	if err == nil {
		return n, nil
	}
	if !errors.Is(err, io.EOF) {
		return n, formError(err)
	}
	return n, l.end()
}

func (l *live) end() error {
	for {
		next, err := l.form.parts.next()
		switch {
		case errors.Is(err, io.EOF):
			l.done = true
			return io.EOF
		case err != nil:
			return formError(err)
		case l.form.field(next.name()) != nil:
			return op.Errorf(op.Invalid, "form field %q was sent twice; send it once", next.name())
		}
	}
}
