package content

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/internal/locate"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// SnapshotIn are options of a snapshot.
type SnapshotIn struct {
	Diff bool `query:"diff" doc:"Return only the lines that changed since the last snapshot of the tab" default:"false"`
	URLs bool `query:"urls" doc:"Include the URLs of links" default:"false"`
	driver.Here
}

// Snapshot is a page as an accessibility tree.
type Snapshot struct {
	Snapshot string `json:"snapshot" doc:"One indented line per element; references such as @e5 are selectors"`
	URL      string `json:"url"`
	Title    string `json:"title"`
	Diff     bool   `json:"diff" doc:"Whether the snapshot contains only changed lines, prefixed with + or -"`
}

// Snapshot describes the page.
func (s *Service) Snapshot(ctx context.Context, in SnapshotIn) (*Snapshot, error) {
	out := &Snapshot{}
	err := s.d.Visit(ctx, in.Where(), func(ctx context.Context, t *tab.Tab) error {
		var lines []string
		err := locate.RetryStale(ctx, func() (err error) {
			lines, err = describeFrame(ctx, t, t.Main(), "", in.URLs, 0)
			return err
		})
		if err != nil {
			return err
		}
		out.URL, out.Title = t.URL(), driver.Title(ctx, t)
		before, known := s.snapshots.Set(t, lines)
		if in.Diff && known {
			out.Diff = true
			if changes, ok := diffLines(before, lines); ok {
				out.Snapshot = strings.Join(changes, "\n")
				return nil
			}
			out.Diff = false // the whole snapshot is shorter
		}
		out.Snapshot = strings.Join(lines, "\n")
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// maxNesting is the maximum depth of frames in a snapshot.
const maxNesting = 5

// describeFrame returns the lines of a frame. Those of child frames follow the line of their iframe.
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

// frameNumber numbers the frames of a tab so that references are unique.
func frameNumber(t *tab.Tab, f *tab.Frame, fallback int) int {
	if n := slices.Index(t.Frames(), f); n > 0 {
		return n
	}
	return fallback + 1
}

// maxDiff is the maximum number of lines to compare.
const maxDiff = 4000

// diffLines returns the changed lines, prefixed with + or -, and false if a whole snapshot is shorter.
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
