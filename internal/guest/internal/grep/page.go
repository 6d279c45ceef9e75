package grep

import "container/heap"

// sink receives the matches of files.
type sink interface {
	// skip returns the number of matches of the next file that are on earlier pages.
	skip() int
	// addFile adds the matches of a file. It returns false if no more are needed.
	addFile(b *builder) bool
	result() Result
}

// page receives files ordered by path and keeps the matches of one page.
type page struct {
	offset, max int
	seen        int
	bytes       int
	out         Result
}

func (p *page) skip() int { return max(0, p.offset-p.seen) }

func (p *page) addFile(b *builder) bool {
	p.seen += b.count
	for _, m := range b.matches {
		if len(p.out.Matches) == p.max || p.bytes > maxPage {
			p.out.Truncated = true
			return false
		}
		p.bytes += len(m.Text) + 64
		for _, around := range [][]string{m.Before, m.After} {
			for _, l := range around {
				p.bytes += len(l)
			}
		}
		p.out.Matches = append(p.out.Matches, m)
	}
	return true
}

func (p *page) result() Result { return p.out }

// collector receives files in any order and keeps those with the lowest paths, as many as the page
// requires. It gives up if a search yields far more matches than a page, since an ordered search
// then ends earlier.
type collector struct {
	offset, max int
	limit       int // matches to keep
	remaining   int // matches to receive before giving up
	kept, bytes int
	files       highestFirst
	gaveUp      bool
}

// tooMany is the number of pages that an unordered search may yield.
const tooMany = 2

func newCollector(q Query) *collector {
	return &collector{offset: q.Offset, max: q.Max, limit: q.need(), remaining: tooMany * (q.need() + 500)}
}

func (c *collector) skip() int { return 0 }

func (c *collector) addFile(b *builder) bool {
	c.remaining -= b.count
	c.kept += len(b.matches)
	c.bytes += b.bytes
	heap.Push(&c.files, b)
	for c.kept-len(c.files[0].matches) >= c.limit {
		highest := heap.Pop(&c.files).(*builder)
		c.kept -= len(highest.matches)
		c.bytes -= highest.bytes
	}
	if c.remaining < 0 || c.bytes > 2*maxPage {
		c.gaveUp = true
	}
	return !c.gaveUp
}

func (c *collector) result() Result {
	sorted := make([]*builder, len(c.files))
	for i := len(sorted) - 1; i >= 0; i-- {
		sorted[i] = heap.Pop(&c.files).(*builder)
	}
	p := &page{offset: c.offset, max: c.max}
	for _, b := range sorted {
		drop := min(p.skip(), len(b.matches))
		p.seen += drop
		if !p.addFile(&builder{matches: b.matches[drop:], count: b.count - drop}) {
			break
		}
	}
	return p.result()
}

// highestFirst is a heap with the highest path on top.
type highestFirst []*builder

func (h highestFirst) Len() int           { return len(h) }
func (h highestFirst) Less(i, j int) bool { return less(h[j].file, h[i].file) }
func (h highestFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *highestFirst) Push(x any)        { *h = append(*h, x.(*builder)) }
func (h *highestFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
