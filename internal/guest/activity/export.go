package activity

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"os"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// maxPicture limits a picture in an export.
const maxPicture = 1 << 20

// PictureIn names an entry.
type PictureIn struct {
	ID int64 `path:"id" doc:"ID of the entry"`
}

// Picture returns the picture of an entry.
func (s *Service) Picture(_ context.Context, in PictureIn) (*op.Blob, error) {
	if s.record != nil {
		if f, err := openRegular(s.record.store.picture(in.ID), os.O_RDONLY); err == nil {
			size := int64(-1)
			if info, err := f.Stat(); err == nil {
				size = info.Size()
			}
			return &op.Blob{Type: "image/jpeg", Size: size, Body: f, MaxCache: time.Hour}, nil
		}
	}
	return nil, op.Errorf(op.NotFound, "no picture of entry %d: none was taken, or newer pictures have replaced it", in.ID)
}

const exportHead = `<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>Activity of a sandbox</title>
<style>:root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
details{border-bottom:1px solid #8884;padding:.3rem 0}summary{cursor:pointer}time{opacity:.7}.bad{color:light-dark(#b3261e,#ff8a80)}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8882;padding:.5rem;border-radius:6px}img{max-width:100%%}</style>
</head><body>
<h1>Activity of a sandbox</h1><p>%d entries, exported %s.</p>
`

// Export returns the record as one HTML file. All recorded text is escaped, and the policy of the
// file allows no scripts and no requests.
func (s *Service) Export(ctx context.Context, _ op.None) (*op.Blob, error) {
	if s.record == nil {
		return nil, op.Errorf(op.Unavailable, "the sandbox has no activity record; start the server with the setting activity")
	}
	list := s.entries(ctx, GetIn{Limit: 2 * segmentLines})
	var b bytes.Buffer
	fmt.Fprintf(&b, exportHead, len(list), s.cfg.Now().UTC().Format(time.RFC3339))
	for _, e := range list {
		s.exportEntry(&b, e)
	}
	b.WriteString("</body></html>\n")
	return &op.Blob{Type: "text/html; charset=utf-8", Name: "activity.html", Size: int64(b.Len()), Body: io.NopCloser(&b)}, nil
}

func (s *Service) exportEntry(b *bytes.Buffer, e Entry) {
	class := ""
	if e.Error != "" {
		class = ` class="bad"`
	}
	fmt.Fprintf(b, "<details><summary%s><time>%s</time> <b>%s</b> %.1f ms %s</summary>", class,
		e.Time.Format(time.RFC3339), html.EscapeString(e.Op), e.Took, html.EscapeString(strings.TrimSpace(e.Caller+" "+e.Via)))
	texts := []string{e.Input, e.Output, e.Error}
	if e.Change != nil {
		texts = append(texts, e.Change.Path, e.Change.Diff)
	}
	for _, c := range e.Changes {
		texts = append(texts, c.Path, c.Diff)
	}
	for _, text := range texts {
		if text != "" {
			fmt.Fprintf(b, "<pre>%s</pre>", html.EscapeString(strings.ToValidUTF8(text, "\uFFFD")))
		}
	}
	if e.Picture {
		if picture := s.readPicture(e.ID); picture != nil {
			fmt.Fprintf(b, `<img alt="Screen afterwards" src="data:image/jpeg;base64,%s">`, base64.StdEncoding.EncodeToString(picture))
		}
	}
	b.WriteString("</details>\n")
}

// readPicture returns the picture of an entry, or nil.
func (s *Service) readPicture(id int64) []byte {
	f, err := openRegular(s.record.store.picture(id), os.O_RDONLY)
	if err != nil {
		return nil
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPicture))
	if err != nil {
		return nil
	}
	return b
}
