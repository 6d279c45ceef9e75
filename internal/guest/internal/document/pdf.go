package document

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// pdfTimeout limits one run of a poppler program.
const pdfTimeout = 60 * time.Second

func (r Reader) pdf(ctx context.Context, path string, q Query) (View, error) {
	info, err := r.poppler(ctx, "pdfinfo", "-enc", "UTF-8", "--", path)
	if err != nil {
		return View{}, err
	}
	meta := map[string]any{}
	pages := 0
	for line := range strings.Lines(info) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), ":")
		if value = strings.TrimSpace(value); !ok || value == "" {
			continue
		}
		switch key {
		case "Pages":
			if pages, err = strconv.Atoi(value); err != nil {
				return View{}, damaged(path, err)
			}
			meta["page_count"] = pages
		case "Title", "Author", "Subject", "Keywords", "Creator", "Producer", "CreationDate", "ModDate", "Encrypted":
			meta[snake(key)] = value
		case "Page size":
			meta["page_size"] = value
		}
	}
	first, last, err := span("page_range", q.Pages, pages)
	if err != nil {
		return View{}, err
	}
	text, err := r.poppler(ctx, "pdftotext", "-enc", "UTF-8", "-layout", "-f", strconv.Itoa(first), "-l", strconv.Itoa(last), "--", path, "-")
	if err != nil {
		return View{}, err
	}
	var b strings.Builder
	for i, page := range strings.Split(strings.TrimSuffix(text, "\f"), "\f") {
		if text := strings.TrimRight(page, " \n"); text != "" {
			fmt.Fprintf(&b, "## Page %d of %d\n\n%s\n\n", first+i, pages, text)
		} else {
			fmt.Fprintf(&b, "## Page %d of %d\n\n[no text on this page; it may be an image]\n\n", first+i, pages)
		}
	}
	meta["shown_pages"] = []int{first, last}
	return View{b.String(), meta}, nil
}

// snake converts CreationDate to creation_date.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if r >= 'A' && r <= 'Z' {
			if i > 0 {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (r Reader) poppler(ctx context.Context, program string, args ...string) (string, error) {
	missing := op.Errorf(op.Unavailable, "reading PDF requires %s, which is not installed; install the Debian package poppler-utils", program)
	if r.Runner == nil {
		return "", missing
	}
	ctx, cancel := context.WithTimeout(ctx, pdfTimeout)
	defer cancel()
	res, err := r.Runner.Run(ctx, proc.Command{Path: program, Args: args, Limit: 4 * maxText})
	switch {
	case errors.Is(err, proc.ErrNotFound):
		return "", missing
	case errors.Is(err, context.DeadlineExceeded):
		return "", op.Errorf(op.Unavailable, "%s timed out after %v; request fewer pages", program, pdfTimeout)
	case err != nil:
		return "", fmt.Errorf("run %s: %w", program, err)
	case res.Exit.Code != 0:
		return "", op.Errorf(op.Invalid, "the PDF cannot be read: %s", strings.Join(strings.Fields(string(res.Stderr)), " "))
	}
	return string(res.Stdout), nil
}
