package grep

import "container/heap"

// sink takes the matches of whole files.
type sink interface {
	// skip is how many matches of the next file stand on earlier pages.
	skip() int
	// file takes a file's matches; it returns false when no more are needed.
	file(a *assembler) bool
	result() Result
}

// page takes files in the order of their paths and keeps the matches of one page.
type page struct {
	offset, max int
	seen        int
	bytes       int
	out         Result
}

func (p *page) skip() int { return max(0, p.offset-p.seen) }

func (p *page) file(a *assembler) bool {
	p.seen += a.count
	for _, m := range a.matches {
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

// first takes files in any order and keeps those with the lowest paths, as many
// as settle the page. Keeping up is its only promise: when a search yields far
// more than a page it gives up, since an ordered search will then end sooner.
type first struct {
	offset, max int
	limit       int // matches to keep
	patience    int // matches to look at
	kept, bytes int
	files       lastFirst
	gaveUp      bool
}

// tooMany is how many times the page a search in any order may yield.
const tooMany = 2

func newFirst(q Query) *first {
	return &first{offset: q.Offset, max: q.Max, limit: q.need(), patience: tooMany * (q.need() + 500)}
}

func (f *first) skip() int { return 0 }

func (f *first) file(a *assembler) bool {
	f.patience -= a.count
	f.kept += len(a.matches)
	f.bytes += a.bytes
	heap.Push(&f.files, a)
	for f.kept-len(f.files[0].matches) >= f.limit {
		last := heap.Pop(&f.files).(*assembler)
		f.kept -= len(last.matches)
		f.bytes -= last.bytes
	}
	if f.patience < 0 || f.bytes > 2*maxPage {
		f.gaveUp = true
	}
	return !f.gaveUp
}

func (f *first) result() Result {
	sorted := make([]*assembler, len(f.files))
	for i := len(sorted) - 1; i >= 0; i-- {
		sorted[i] = heap.Pop(&f.files).(*assembler)
	}
	p := &page{offset: f.offset, max: f.max}
	for _, a := range sorted {
		drop := min(p.skip(), len(a.matches))
		p.seen += drop
		if !p.file(&assembler{matches: a.matches[drop:], count: a.count - drop}) {
			break
		}
	}
	return p.result()
}

// lastFirst is a heap with the highest path on top.
type lastFirst []*assembler

func (h lastFirst) Len() int           { return len(h) }
func (h lastFirst) Less(i, j int) bool { return less(h[j].file, h[i].file) }
func (h lastFirst) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *lastFirst) Push(x any)        { *h = append(*h, x.(*assembler)) }
func (h *lastFirst) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
