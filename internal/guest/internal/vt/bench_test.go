package vt

import (
	"strings"
	"testing"
)

// BenchmarkWrite measures the processing of output in pieces of a pseudo-terminal's size.
func BenchmarkWrite(b *testing.B) {
	for _, c := range []struct{ name, unit string }{
		{"log lines", "2024-05-06 12:13:14 INFO some.package.name: a line of usual length is here\r\n"},
		{"short lines", "y\r\n"},
		{"one long line", "0123456789abcdef"},
		{"colors", "\x1b[32mok\x1b[0m \x1b[1;34mpackage/name\x1b[0m 0.123s passed\r\n"},
		{"progress bar", "\r 42% [##########          ] 1.2 MB/s eta 00:10"},
		{"Cyrillic", "Съешь же ещё этих мягких французских булок, да выпей чаю\r\n"},
		{"Chinese", "天地玄黃宇宙洪荒日月盈昃辰宿列張\r\n"},
		{"combining", "e\u0301a\u0300o\u0302 e\u0301a\u0300o\u0302\r\n"},
	} {
		b.Run(c.name, func(b *testing.B) {
			stream := []byte(strings.Repeat(c.unit, 4096/len(c.unit)+1)[:4095])
			vt := New(80, 24, Options{})
			b.SetBytes(int64(len(stream)))
			b.ReportAllocs()
			for b.Loop() {
				vt.Write(stream)
			}
		})
	}
}
