package tree

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// top keeps the first items in an order, with memory for about twice that number.
type top[T any] struct {
	limit int
	order func(a, b T) int
	items []T
	total int
}

func (b *top[T]) add(v T) {
	b.total++
	if b.items = append(b.items, v); len(b.items) >= 2*b.limit+chunk {
		b.trim()
	}
}

func (b *top[T]) trim() []T {
	slices.SortFunc(b.items, b.order)
	if len(b.items) > b.limit {
		clear(b.items[b.limit:])
		b.items = b.items[:b.limit]
	}
	return b.items
}

// sortable is what files can be sorted by.
type sortable struct {
	path, name string
	dir        bool
	size       int64
	modified   time.Time
}

// ordering returns the comparison for a sort key. ok is false for an unknown key, which sorts
// by path.
func ordering(by string, desc bool) (order func(a, b sortable) int, ok bool) {
	key := func(a, b sortable) int { return 0 }
	ok = true
	switch strings.ToLower(by) {
	case "", "path":
	case "name":
		key = func(a, b sortable) int { return cmp.Compare(a.name, b.name) }
	case "size":
		key = func(a, b sortable) int { return cmp.Compare(a.size, b.size) }
	case "modified", "modified_time", "mtime", "time", "date":
		key = func(a, b sortable) int { return a.modified.Compare(b.modified) }
	case "type", "extension":
		key = func(a, b sortable) int {
			if a.dir != b.dir {
				if a.dir {
					return -1
				}
				return 1
			}
			return cmp.Compare(filepath.Ext(a.name), filepath.Ext(b.name))
		}
	default:
		ok = false
	}
	return func(a, b sortable) int {
		c := cmp.Or(key(a, b), cmp.Compare(a.path, b.path))
		if desc {
			return -c
		}
		return c
	}, ok
}
