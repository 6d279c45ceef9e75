package toolset

import (
	"bytes"
	"image"
	"image/jpeg"
	"image/png"
)

// maxPixels is the size of the largest image that is converted.
const maxPixels = 64 << 20

// Shrink converts an image with more than maxSize bytes to a JPEG, in steps of decreasing quality.
// An image that cannot be converted is returned unmodified.
func Shrink(i Image, maxSize int) Image {
	if len(i.Data) <= maxSize {
		return i
	}
	decode, header := png.Decode, png.DecodeConfig
	switch i.Type {
	case "image/png":
	case "image/jpeg":
		decode, header = jpeg.Decode, jpeg.DecodeConfig
	default:
		return i
	}
	if c, err := header(bytes.NewReader(i.Data)); err != nil || c.Width*c.Height > maxPixels {
		return i
	}
	picture, err := decode(bytes.NewReader(i.Data))
	if err != nil {
		return i
	}
	for _, step := range []struct{ quality, scale int }{{85, 1}, {70, 1}, {70, 2}, {60, 4}} {
		var b bytes.Buffer
		if jpeg.Encode(&b, reduce(picture, step.scale), &jpeg.Options{Quality: step.quality}) == nil && b.Len() <= maxSize {
			return Image{"image/jpeg", b.Bytes()}
		}
	}
	return i
}

// reduce returns an image with every nth pixel of another.
func reduce(p image.Image, n int) image.Image {
	if n == 1 {
		return p
	}
	b := p.Bounds()
	out := image.NewRGBA(image.Rect(0, 0, b.Dx()/n, b.Dy()/n))
	for y := range out.Bounds().Dy() {
		for x := range out.Bounds().Dx() {
			out.Set(x, y, p.At(b.Min.X+x*n, b.Min.Y+y*n))
		}
	}
	return out
}
