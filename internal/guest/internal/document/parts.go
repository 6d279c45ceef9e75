package document

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/document/office"
)

// Limits of the content of a file, since a small zip can unpack to any size.
const (
	maxUnpacked = 1 << 30  // bytes of all parts of one document
	maxSmall    = 16 << 20 // bytes of a part without text, such as relationships
	maxList     = 8 << 20  // bytes of the zip's directory
)

// parts are the files inside an Office document.
type parts struct {
	path  string
	file  *os.File
	files map[string]*zip.File // by lower-case name, since part names ignore case
	left  *int64               // bytes that may still be unpacked
}

func openParts(file string) (parts, error) {
	f, err := os.Open(file)
	if err != nil {
		return parts{}, err
	}
	p := parts{path: file, file: f, files: map[string]*zip.File{}, left: new(int64(maxUnpacked))}
	if err := p.list(); err != nil {
		f.Close()
		return parts{}, err
	}
	return p, nil
}

func (p parts) list() error {
	info, err := p.file.Stat()
	if err != nil {
		return err
	}
	source := &listReader{p.file, maxList}
	z, err := zip.NewReader(source, info.Size())
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		magic := make([]byte, 4)
		if _, short := p.file.ReadAt(magic, 0); short == nil && string(magic) == "\xd0\xcf\x11\xe0" {
			return op.Errorf(op.Invalid, "%s is encrypted or in the format before 2007; save it without a password as %s", p.path, ext(p.path))
		}
		return damaged(p.path, err)
	}
	source.left = 1 << 62 // the parts have their own limits
	for _, f := range z.File {
		name := strings.ToLower(strings.ReplaceAll(f.Name, `\`, "/"))
		if p.files[name] == nil {
			p.files[name] = f
		}
	}
	return nil
}

// listReader limits the size of the directory, which is held in memory.
type listReader struct {
	io.ReaderAt
	left int64
}

func (r *listReader) ReadAt(b []byte, at int64) (int, error) {
	if r.left -= int64(len(b)); r.left < 0 {
		return 0, errors.New("too many files in the archive")
	}
	return r.ReaderAt.ReadAt(b, at)
}

func (p parts) close() { p.file.Close() }

// open opens a part within the limit of the document.
func (p parts) open(name string) (io.ReadCloser, error) {
	f := p.files[strings.ToLower(name)]
	if f == nil {
		return nil, damaged(p.path, fmt.Errorf("part %s is missing", name))
	}
	r, err := f.Open()
	if err != nil {
		return nil, damaged(p.path, err)
	}
	return &partReader{r, p.left}, nil
}

type partReader struct {
	io.ReadCloser
	left *int64
}

func (r *partReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if *r.left -= int64(n); *r.left < 0 {
		return 0, fmt.Errorf("unpacks to more than %d bytes", maxUnpacked)
	}
	return n, err
}

func (p parts) read(name string, limit int64) ([]byte, error) {
	f, err := p.open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := limitedRead(f, limit)
	if err != nil {
		return nil, damaged(p.path, err)
	}
	return b, nil
}

// links returns the relationships of a part, or of the whole document (""), from ID to target.
func (p parts) links(name string) map[string]string {
	dir, base := path.Split(name)
	b, err := p.read(path.Join(dir, "_rels", base+".rels"), maxSmall)
	if err != nil {
		return nil
	}
	var rels struct {
		Relationship []struct {
			ID     string `xml:"Id,attr"`
			Target string `xml:"Target,attr"`
			Type   string `xml:"Type,attr"`
		}
	}
	if err := xml.Unmarshal(b, &rels); err != nil {
		return nil
	}
	out := map[string]string{}
	for _, r := range rels.Relationship {
		target := strings.TrimPrefix(r.Target, "/")
		if !strings.HasPrefix(r.Target, "/") {
			target = path.Join(path.Dir(name), r.Target)
		}
		out[r.ID] = target
		out["type:"+path.Base(r.Type)] = target
	}
	return out
}

// properties adds author, title and dates of the document.
func (p parts) properties(meta map[string]any) {
	b, err := p.read("docProps/core.xml", maxSmall)
	if err != nil {
		return
	}
	var core struct {
		Title    string `xml:"title"`
		Creator  string `xml:"creator"`
		Subject  string `xml:"subject"`
		Created  string `xml:"created"`
		Modified string `xml:"modified"`
	}
	if xml.Unmarshal(b, &core) == nil {
		fill(meta, map[string]string{"title": core.Title, "creator": core.Creator, "subject": core.Subject,
			"created": core.Created, "modified": core.Modified})
	}
}

func fill(meta map[string]any, props map[string]string) {
	for k, v := range props {
		if v != "" {
			meta[k] = v
		}
	}
}

// tokens calls a function for every start, end and text of a part.
func tokens(b []byte, start func(xml.StartElement), end func(xml.EndElement), text func(string)) error {
	return office.Scan(context.Background(), bytes.NewReader(b), func(t xml.Token) error {
		switch t := t.(type) {
		case xml.StartElement:
			start(t)
		case xml.EndElement:
			end(t)
		case xml.CharData:
			text(string(t))
		}
		return nil
	})
}
