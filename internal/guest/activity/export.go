package activity

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
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
<style>
:root{color-scheme:light dark;--bad:light-dark(#b3261e,#ff8a80);--good:light-dark(#176c34,#56c271);--dim:light-dark(#55606e,#98a4b3)}
body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
.step{border:1px solid #8884;border-left:4px solid var(--good);border-radius:7px;padding:.3rem .7rem;margin:.4rem 0}
.step.failed{border-left-color:var(--bad)}summary{cursor:pointer}
time,.dim{color:var(--dim)}.bad,.gone{color:var(--bad)}.added{color:var(--good)}
code,pre{font:13px/1.45 ui-monospace,"DejaVu Sans Mono",monospace}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#8882;padding:.5rem;border-radius:6px;max-height:30rem;overflow:auto}
dl{display:grid;grid-template-columns:auto 1fr;gap:.1rem .8rem}dd{margin:0;overflow-wrap:anywhere}
img{max-width:100%%;border:1px solid #8884}
body:has(#only:checked) .step:not(.failed){display:none}</style>
</head><body>
<h1>Activity of a sandbox</h1><p>%d entries, %d failed, exported %s. <label><input type="checkbox" id="only"> only failures</label></p>
`

// Export returns the record as one HTML file. All recorded text is escaped, and the policy of the
// file allows no scripts and no requests.
func (s *Service) Export(ctx context.Context, _ op.None) (*op.Blob, error) {
	if s.record == nil {
		return nil, op.Errorf(op.Unavailable, "the sandbox has no activity record; start the server with the setting activity")
	}
	list := s.entries(ctx, GetIn{Limit: 2 * segmentLines})
	var b bytes.Buffer
	failed := 0
	for _, e := range list {
		if e.hasFailed() {
			failed++
		}
	}
	fmt.Fprintf(&b, exportHead, len(list), failed, s.cfg.Now().UTC().Format(time.RFC3339))
	for _, e := range list {
		s.exportEntry(&b, e)
	}
	b.WriteString("</body></html>\n")
	return &op.Blob{Type: "text/html; charset=utf-8", Name: "activity.html", Size: int64(b.Len()), Body: io.NopCloser(&b)}, nil
}

// exportEntry writes an entry by its kind: a command, code, or the values of its input.
func (s *Service) exportEntry(b *bytes.Buffer, e Entry) {
	in, out := decode(e.Input), decode(e.Output)
	if result, ok := out["result"].(map[string]any); ok { // the last event of a stream
		out = result
	}
	class, mark := "step", ""
	if e.hasFailed() {
		class, mark = "step failed", ` <b class="bad">failed</b>`
	}
	fmt.Fprintf(b, `<details class="%s" id="e%d"><summary><time>%s</time>%s <code>%s</code> <span class="dim">%s %.1f ms %s</span></summary>`,
		class, e.ID, e.Time.Format(time.RFC3339), mark, safe(title(in)), safe(e.Op), e.Took, safe(strings.TrimSpace(e.Caller+" "+e.Via)))
	command, code := text(in["command"]), text(in["code"])
	switch {
	case command != "" && e.Kind != "file":
		fmt.Fprintf(b, "<pre><b>$ %s</b>\n%s</pre>", safe(command), safe(printed(out)))
		if n, ok := out["exit_code"].(float64); ok && n != 0 {
			fmt.Fprintf(b, `<p class="bad">Exit code %.0f</p>`, n)
		}
	case code != "":
		fmt.Fprintf(b, "<pre>%s</pre>", safe(code))
		if said := printed(out); said != "" {
			fmt.Fprintf(b, "<pre>%s</pre>", safe(said))
		}
	default:
		exportFields(b, in)
	}
	if e.Error != "" {
		fmt.Fprintf(b, `<pre class="bad">%s</pre>`, safe(e.Error))
	}
	changes := e.Changes
	if e.Change != nil {
		changes = append([]Change{*e.Change}, changes...)
	}
	for _, c := range changes {
		fmt.Fprintf(b, "<p><code>%s</code></p>", safe(c.Path))
		exportDiff(b, c.Diff)
	}
	if e.Picture {
		if picture := s.readPicture(e.ID); picture != nil {
			fmt.Fprintf(b, `<img alt="Picture after this step" src="data:image/jpeg;base64,%s">`, base64.StdEncoding.EncodeToString(picture))
		}
	}
	b.WriteString(`<details class="raw"><summary class="dim">Raw data</summary>`)
	for _, raw := range []string{e.Input, e.Output} {
		if raw != "" {
			fmt.Fprintf(b, "<pre>%s</pre>", safe(raw))
		}
	}
	b.WriteString("</details></details>\n")
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
