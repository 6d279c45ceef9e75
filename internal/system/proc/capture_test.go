package proc

import (
	"bytes"
	"strings"
	"sync"
	"testing"
)

func TestCapture(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		head, tail int
		writes     []string
		want       string
		dropped    int64
	}{
		{"nothing", 3, 3, nil, "", 0},
		{"fits the head", 3, 3, []string{"ab", "c"}, "abc", 0},
		{"fits both", 3, 3, []string{"abcd", "ef"}, "abcdef", 0},
		{"one too many", 3, 3, []string{"abcdefg"}, "abc" + Marker(1) + "efg", 1},
		{"ring goes round", 1, 3, []string{"abc", "de", "f", "ghi", "j"}, "a" + Marker(6) + "hij", 6},
		{"one huge write", 2, 2, []string{strings.Repeat("x", 1000) + "yz"}, "xx" + Marker(998) + "yz", 998},
		{"head only", 2, 0, []string{"abc"}, "ab" + Marker(1), 1},
		{"tail only", 0, 2, []string{"abc", "d"}, Marker(2) + "cd", 2},
		{"keeps nothing", 0, 0, []string{"abc"}, Marker(3), 3},
		{"nonsense", -1, -1, []string{"abc"}, Marker(3), 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := NewCapture(c.head, c.tail)
			for _, s := range c.writes {
				if n, err := w.Write([]byte(s)); n != len(s) || err != nil {
					t.Fatalf("write: %d, %v, want %v", n, err, len(s))
				}
			}
			if got := w.String(); got != c.want || w.Dropped() != c.dropped {
				t.Errorf("got %q and %d dropped, want %v, Dropped %v", got, w.Dropped(), c.want, c.dropped)
			}
			all, dropped := w.take()
			if string(all) != c.want || dropped != c.dropped {
				t.Errorf("take: %q, %d, want all %v, dropped %v", all, dropped, c.want, c.dropped)
			}
			if _, err := w.Write([]byte("late")); err != nil || len(w.Head())+len(w.Tail()) != 0 {
				t.Errorf("late write: kept %q and %q, %v, want nothing", w.Head(), w.Tail(), err)
			}
		})
	}
}

func TestCaptureOfManyWriters(t *testing.T) {
	t.Parallel()
	w := NewCapture(10, 10)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 1000 {
				_, _ = w.Write([]byte("abc"))
				_ = w.Bytes()
			}
		})
	}
	wg.Wait()
	if w.Total() != 24000 || w.Dropped() != 24000-20 {
		t.Errorf("total %d, dropped %d, want Total 24000, Dropped %v", w.Total(), w.Dropped(), 24000-20)
	}
}

// FuzzCapture compares with the obvious version, which keeps everything.
func FuzzCapture(f *testing.F) {
	f.Add(uint8(3), uint8(4), []byte("hello world"), uint8(2))
	f.Add(uint8(0), uint8(1), []byte("abcdefgh"), uint8(3))
	f.Add(uint8(200), uint8(200), bytes.Repeat([]byte("x"), 500), uint8(255))
	f.Add(uint8(5), uint8(0), []byte("abcdefgh"), uint8(1))
	f.Fuzz(func(t *testing.T, head, tail uint8, data []byte, step uint8) {
		w := NewCapture(int(head), int(tail))
		size := int(step)%17 + 1
		for rest := data; len(rest) > 0; {
			n := min(size, len(rest))
			_, _ = w.Write(rest[:n])
			rest = rest[n:]
			size = size*5%23 + 1
		}
		h := min(int(head), len(data))
		k := min(int(tail), len(data)-h)
		if !bytes.Equal(w.Head(), data[:h]) || !bytes.Equal(w.Tail(), data[len(data)-k:]) {
			t.Errorf("kept %q and %q of %q, want Head %q, Tail %q", w.Head(), w.Tail(), data, data[:h], data[len(data)-k:])
		}
		if w.Total() != int64(len(data)) || w.Dropped() != int64(len(data)-h-k) {
			t.Errorf("total %d, dropped %d, want Total %v, Dropped %v", w.Total(), w.Dropped(), int64(len(data)), int64(len(data)-h-k))
		}
	})
}
