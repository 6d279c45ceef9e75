package tab

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

// Download is a file that the browser downloads.
type Download struct {
	ID       string    `json:"guid"`
	URL      string    `json:"url"`
	Name     string    `json:"suggested_filename"`
	Path     string    `json:"path" doc:"Path of the file; empty until it is complete"`
	State    string    `json:"state" doc:"inProgress, completed or canceled"`
	Received int64     `json:"received_bytes"`
	Total    int64     `json:"total_bytes" doc:"Size of the file; 0 if unknown"`
	Started  time.Time `json:"created_at"`
	tab      string
	awaited  bool // AwaitDownload returned it
}

func (b *Browser) downloadBegins(e cdp.Event) {
	p := decode[struct {
		FrameID string `json:"frameId"`
		GUID    string `json:"guid"`
		URL     string `json:"url"`
		Name    string `json:"suggestedFilename"`
	}](e)
	d := &Download{ID: p.GUID, URL: p.URL, Name: p.Name, State: "inProgress", Started: time.Now().UTC()}
	for _, t := range b.tabs {
		if t.frames[p.FrameID] != nil {
			d.tab = t.ID
		}
		t.log.downloaded(p.URL)
	}
	b.downloads = append(b.downloads, d)
	if len(b.downloads) > maxDownloads {
		b.downloads = b.downloads[1:]
	}
}

func (b *Browser) downloadProgresses(e cdp.Event) {
	p := decode[struct {
		GUID     string  `json:"guid"`
		Total    float64 `json:"totalBytes"`
		Received float64 `json:"receivedBytes"`
		State    string  `json:"state"`
		Path     string  `json:"filePath"`
	}](e)
	for _, d := range b.downloads {
		if d.ID == p.GUID {
			d.Total, d.Received, d.State = int64(p.Total), int64(p.Received), p.State
			if p.Path != "" {
				d.Path = p.Path
			}
		}
	}
}

// Downloads lists the downloads, oldest first.
func (b *Browser) Downloads() []Download {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []Download
	for _, d := range b.downloads {
		list = append(list, *d)
	}
	return list
}

// AwaitDownload waits for the end of a download and returns each download once, oldest first.
func (b *Browser) AwaitDownload(ctx context.Context) (Download, error) {
	var found Download
	err := b.await(ctx, func() (bool, error) {
		i := slices.IndexFunc(b.downloads, func(d *Download) bool { return !d.awaited && d.State != "inProgress" })
		if i < 0 {
			return false, nil
		}
		b.downloads[i].awaited = true
		found = *b.downloads[i]
		return true, nil
	})
	return found, err
}
