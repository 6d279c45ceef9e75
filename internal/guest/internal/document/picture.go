package document

import (
	"context"
	"strconv"
	"strings"
)

// PDFPage returns a page of a PDF as a JPEG picture of the given width, and the number of
// pages.
func (r Reader) PDFPage(ctx context.Context, path string, page, width int) (jpeg []byte, pages int, err error) {
	info, err := r.poppler(ctx, "pdfinfo", "-enc", "UTF-8", "--", path)
	if err != nil {
		return nil, 0, err
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "Pages:"); ok {
			if pages, err = strconv.Atoi(strings.TrimSpace(value)); err != nil {
				return nil, 0, damaged(path, err)
			}
		}
	}
	if _, _, err := span("page", []int{page, page}, pages); err != nil {
		return nil, 0, err
	}
	n := strconv.Itoa(page)
	out, err := r.poppler(ctx, "pdftoppm", "-jpeg", "-f", n, "-l", n, "-scale-to-x", strconv.Itoa(width), "-scale-to-y", "-1", "--", path)
	return []byte(out), pages, err
}
