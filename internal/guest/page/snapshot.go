package page

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// SnapshotIn says how to describe the page.
type SnapshotIn struct {
	Diff bool `query:"diff" doc:"Only the lines that have changed since the last snapshot of the tab" default:"false"`
	URLs bool `query:"urls" doc:"Include the addresses of links" default:"false"`
	Here
}

// Snapshot is a page as an accessibility tree.
type Snapshot struct {
	Snapshot string `json:"snapshot" doc:"One line per element, indented; @e5 is a reference that can be used as a selector"`
	URL      string `json:"url"`
	Title    string `json:"title"`
	Diff     bool   `json:"diff" doc:"Whether it has only the changed lines, each after + or -"`
}

// Snapshot describes the page.
func (s *Service) Snapshot(ctx context.Context, in SnapshotIn) (*Snapshot, error) {
	out := &Snapshot{}
	err := s.visit(ctx, in.where(), func(ctx context.Context, t *tab.Tab) error {
		var lines []string
		err := retryGone(ctx, func() (err error) {
			lines, err = describeFrame(ctx, t, t.Main(), "", in.URLs, 0)
			return err
		})
		if err != nil {
			return err
		}
		where := s.locate(ctx, t)
		out.URL, out.Title = where.URL, where.Title
		s.mu.Lock()
		before, known := s.pictures[t.ID]
		s.pictures[t.ID] = lines
		s.mu.Unlock()
		if in.Diff && known {
			out.Diff = true
			if changes, ok := diffLines(before, lines); ok {
				out.Snapshot = strings.Join(changes, "\n")
				return nil
			}
			out.Diff = false // almost everything is new
		}
		out.Snapshot = strings.Join(lines, "\n")
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// maxNesting bounds the frames in frames that a snapshot shows.
const maxNesting = 5

// describeFrame returns the lines of a frame, those of its child frames below their iframe.
func describeFrame(ctx context.Context, t *tab.Tab, f *tab.Frame, prefix string, urls bool, depth int) ([]string, error) {
	var r struct {
		Lines  []string `json:"lines"`
		Frames []struct {
			ID    int `json:"id"`
			Line  int `json:"line"`
			Depth int `json:"depth"`
		} `json:"frames"`
	}
	if err := locate.Run(ctx, f, &r, "snapshot", prefix, urls); err != nil {
		return nil, err
	}
	lines := r.Lines
	if depth >= maxNesting {
		return lines, nil
	}
	for i, inner := range slices.Backward(r.Frames) {
		child, err := locate.ContentFrame(ctx, f, inner.ID)
		if err != nil || child == nil || child.Document() == "" {
			continue
		}
		below, err := describeFrame(ctx, t, child, fmt.Sprintf("f%d", frameNumber(t, child, i)), urls, depth+1)
		if err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			continue
		}
		for j := range below {
			below[j] = strings.Repeat(" ", inner.Depth) + below[j]
		}
		lines = slices.Insert(lines, inner.Line, below...)
	}
	return lines, nil
}

// frameNumber numbers the frames of a tab, so that references differ.
func frameNumber(t *tab.Tab, f *tab.Frame, otherwise int) int {
	if n := slices.Index(t.Frames(), f); n > 0 {
		return n
	}
	return otherwise + 1
}

// maxDiff bounds the lines that are compared.
const maxDiff = 4000

// diffLines returns the changed lines, each after + or -, and false if a whole snapshot would be shorter.
func diffLines(before, now []string) ([]string, bool) {
	begin := 0
	for begin < len(before) && begin < len(now) && before[begin] == now[begin] {
		begin++
	}
	end := 0
	for end < len(before)-begin && end < len(now)-begin && before[len(before)-1-end] == now[len(now)-1-end] {
		end++
	}
	a, b := before[begin:len(before)-end], now[begin:len(now)-end]
	if len(a) > maxDiff || len(b) > maxDiff {
		return nil, false
	}
	// Longest common subsequence: length[i][j] is that of a[i:] and b[j:].
	length := make([][]int16, len(a)+1)
	for i := range length {
		length[i] = make([]int16, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var out []string
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			i, j = i+1, j+1
		case j < len(b) && (i == len(a) || length[i][j+1] > length[i+1][j]):
			out = append(out, "+"+b[j])
			j++
		default:
			out = append(out, "-"+a[i])
			i++
		}
	}
	return out, len(out) < len(now)
}
