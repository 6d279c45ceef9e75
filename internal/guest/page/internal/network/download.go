package network

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// DownloadOps lists the operations on downloads.
func (s *Service) DownloadOps() []op.Op {
	return []op.Op{
		op.New(driver.ReadOnly(driver.Spec("browser_get_download_list", "GET /v1/browser/downloads", "list_downloads", "downloads",
			"List the downloads since the browser started, oldest first.")), s.Downloads),
	}
}

// Download is a file that was downloaded.
type Download struct {
	tab.Download
	Filename string  `json:"filename" doc:"The same as suggested_filename"`
	Size     int64   `json:"size" doc:"Bytes received so far"`
	Progress float64 `json:"progress" doc:"From 0 to 1; 0 while the size is unknown"`
}

// Downloads lists the downloads.
func (s *Service) Downloads(ctx context.Context, _ op.None) ([]Download, error) {
	out := []Download{}
	err := s.d.WithBrowser(ctx, func(_ context.Context, b *tab.Browser, _ []string) error {
		for _, d := range b.Downloads() {
			one := Download{Download: d, Filename: d.Name, Size: d.Received}
			if d.State == "completed" {
				one.Progress = 1
			} else if d.Total > 0 {
				one.Progress = float64(d.Received) / float64(d.Total)
			}
			out = append(out, one)
		}
		return nil
	})
	return out, err
}
