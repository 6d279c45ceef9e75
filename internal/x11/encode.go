package x11

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/adler32"
	"hash/crc32"
	"image"
	"image/jpeg"
	"io"

	"github.com/klauspost/compress/flate"
)

// EncodePNG writes img as a PNG without alpha, several times faster than image/png and about as small for what desktops
// show.
func EncodePNG(w io.Writer, img *image.RGBA) error {
	width, height := img.Rect.Dx(), img.Rect.Dy()
	if width <= 0 || height <= 0 {
		return errors.New("encode png: image is empty")
	}
	pixels, err := deflate(img, width, height)
	if err != nil {
		return fmt.Errorf("encode png: %w", err)
	}
	const depth, truecolour = 8, 2
	head := binary.BigEndian.AppendUint32(nil, uint32(width))
	head = binary.BigEndian.AppendUint32(head, uint32(height))
	head = append(head, depth, truecolour, 0, 0, 0)
	file := make([]byte, 0, len(pixels)+64)
	file = append(file, "\x89PNG\r\n\x1a\n"...)
	file = appendChunk(file, "IHDR", head)
	file = appendChunk(file, "IDAT", pixels)
	file = appendChunk(file, "IEND", nil)
	_, err = w.Write(file)
	return err
}

const (
	filterNone = 0
	filterSub  = 1
	filterUp   = 2
	bandHeight = 16
)

// deflate makes the zlib stream of the image's rows, in bands that are compressed each by what it shows. In a picture there
// are no repetitions to find, and looking for them is what takes the time; its differences between neighbours pack well
// by their frequency alone. Everything else, such as text on a plain ground, repeats itself.
func deflate(img *image.RGBA, width, height int) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(width * height / 4)
	out.Write([]byte{0x78, 0x01}) // zlib: deflate, 32 KiB window, fastest
	plain, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		return nil, err
	}
	picture, err := flate.NewWriter(&out, flate.HuffmanOnly)
	if err != nil {
		return nil, err
	}
	sum := adler32.New()
	rows := rowPacker{row: make([]byte, 1+3*width), same: make([]byte, 1+3*width)}
	current := plain
	for top := 0; top < height; top += bandHeight {
		bottom := min(top+bandHeight, height)
		asPicture := isPicture(img, width, top, bottom)
		next := plain
		if asPicture {
			next = picture
		}
		if next != current {
			// A flushed stream ends on a byte, so that another compressor's can follow.
			if err := current.Flush(); err != nil {
				return nil, err
			}
			next.Reset(&out)
			current = next
		}
		for y := top; y < bottom; y++ {
			b := rows.pack(img.Pix[y*img.Stride:][:4*width], asPicture)
			sum.Write(b)
			if _, err := current.Write(b); err != nil {
				return nil, err
			}
		}
	}
	if err := current.Close(); err != nil {
		return nil, err
	}
	return sum.Sum(out.Bytes()), nil
}

// rowPacker turns pixels into rows of three bytes each, behind the byte that names the filter.
type rowPacker struct {
	row, same, above []byte
}

// pack's result is valid until the next call. A row like the one above becomes zeros.
func (p *rowPacker) pack(pix []byte, asPicture bool) []byte {
	above := p.above
	p.above = pix
	switch {
	case bytes.Equal(pix, above):
		p.same[0] = filterUp
		return p.same
	case asPicture:
		p.row[0] = filterSub
		packSub(p.row[1:], pix)
	default:
		p.row[0] = filterNone
		packRGB(p.row[1:], pix)
	}
	return p.row
}

// isPicture samples a band and tells whether most of its pixels differ from their neighbours.
func isPicture(img *image.RGBA, width, top, bottom int) bool {
	const columns = 64
	if width < 2*columns {
		return false
	}
	differ, all := 0, 0
	for y := top; y < bottom; y += 4 {
		pix := img.Pix[y*img.Stride:]
		for i := range columns {
			p := pix[4*(i*(width-1)/columns):][:8]
			if p[0] != p[4] || p[1] != p[5] || p[2] != p[6] {
				differ++
			}
			all++
		}
	}
	return differ > all/2
}

// packRGB drops the fourth byte of each pixel.
func packRGB(dst, src []byte) {
	for len(src) >= 4 && len(dst) >= 3 {
		dst[0], dst[1], dst[2] = src[0], src[1], src[2]
		dst, src = dst[3:], src[4:]
	}
}

// packSub is packRGB with each pixel as the difference to the one on its left.
func packSub(dst, src []byte) {
	var r, g, b byte
	for len(src) >= 4 && len(dst) >= 3 {
		dst[0], dst[1], dst[2] = src[0]-r, src[1]-g, src[2]-b
		r, g, b = src[0], src[1], src[2]
		dst, src = dst[3:], src[4:]
	}
}

func appendChunk(file []byte, kind string, data []byte) []byte {
	file = binary.BigEndian.AppendUint32(file, uint32(len(data)))
	start := len(file)
	file = append(file, kind...)
	file = append(file, data...)
	return binary.BigEndian.AppendUint32(file, crc32.ChecksumIEEE(file[start:]))
}

// EncodeJPEG writes img as a JPEG of the given quality, 1 to 100.
func EncodeJPEG(w io.Writer, img *image.RGBA, quality int) error {
	if quality < 1 || quality > 100 {
		return fmt.Errorf("encode jpeg: quality %d is not between 1 and 100", quality)
	}
	return jpeg.Encode(w, img, &jpeg.Options{Quality: quality})
}
