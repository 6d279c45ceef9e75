package x11

import (
	"context"
	"image"
	"io"
	"testing"
)

func BenchmarkScreenshot(b *testing.B) {
	s := startServer(b, "-geometry", "1280x1024")
	c := s.dial(b)
	paint(b, c, image.Pt(1280, 1024))
	ctx := context.Background()
	for name, encode := range map[string]func(*image.RGBA) error{
		"raw":  func(*image.RGBA) error { return nil },
		"png":  func(img *image.RGBA) error { return EncodePNG(io.Discard, img) },
		"jpeg": func(img *image.RGBA) error { return EncodeJPEG(io.Discard, img, 80) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				img, err := c.Screenshot(ctx, Shot{})
				if err == nil {
					err = encode(img)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkThumbnail(b *testing.B) {
	c := startServer(b, "-geometry", "1280x1024").dial(b)
	paint(b, c, image.Pt(1280, 1024))
	for b.Loop() {
		if _, err := c.Thumbnail(context.Background(), 320); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkType(b *testing.B) {
	s := startServer(b)
	startProbe(b, s, func(p *probe) { p.pings = true })
	c := s.dial(b)
	for b.Loop() {
		must(b, c.Type(context.Background(), "Grüße, 世界 🎉", 0))
	}
}
