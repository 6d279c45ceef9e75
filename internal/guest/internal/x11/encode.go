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
	"runtime"
	"sync"

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

// maxStrips bounds how many parts of an image are compressed at once. Each costs a compressor's memory.
const maxStrips = 4

// deflate makes the zlib stream of the image's rows, one strip on each processor.
func deflate(img *image.RGBA, width, height int) ([]byte, error) {
	bands := (height + bandHeight - 1) / bandHeight
	strips := make([]strip, max(1, min(runtime.GOMAXPROCS(0), maxStrips, bands)))
	var all sync.WaitGroup
	for i := range strips {
		top, bottom := i*bands/len(strips)*bandHeight, min((i+1)*bands/len(strips)*bandHeight, height)
		all.Go(func() { strips[i].deflate(img, width, top, bottom, bottom == height) })
	}
	all.Wait()
	out := make([]byte, 0, width*height/4)
	out = append(out, 0x78, 0x01) // zlib: deflate, 32 KiB window, fastest
	sum := uint32(1)
	for i := range strips {
		s := &strips[i]
		if s.err != nil {
			return nil, s.err
		}
		out = append(out, s.out.Bytes()...)
		sum = joinAdler(sum, s.sum, s.size)
	}
	return binary.BigEndian.AppendUint32(out, sum), nil
}

// strip is a part of the stream.
type strip struct {
	out  bytes.Buffer
	sum  uint32 // Adler-32 of the rows
	size int    // their length
	err  error
}

// deflate compresses rows in bands, each according to its content. A picture has no repetitions, and searching for them takes
// most of the time; the differences between its adjacent pixels compress well by frequency alone. Other content, such as
// text on a plain background, is repetitive.
func (s *strip) deflate(img *image.RGBA, width, top, bottom int, last bool) {
	s.out.Grow(width * (bottom - top) / 4)
	plain, err1 := flate.NewWriter(&s.out, flate.BestSpeed)
	picture, err2 := flate.NewWriter(&s.out, flate.HuffmanOnly)
	if s.err = errors.Join(err1, err2); s.err != nil {
		return
	}
	sum := adler32.New()
	rows := rowPacker{row: make([]byte, 1+3*width), same: make([]byte, 1+3*width)}
	if top > 0 {
		rows.above = img.Pix[(top-1)*img.Stride:][:4*width]
	}
	current := plain
	for ; top < bottom; top += bandHeight {
		asPicture := isPicture(img, width, top, min(top+bandHeight, bottom))
		next := plain
		if asPicture {
			next = picture
		}
		if next != current {
			// A flushed stream ends on a byte, so that another compressor's can follow.
			if s.err = current.Flush(); s.err != nil {
				return
			}
			next.Reset(&s.out)
			current = next
		}
		for y := top; y < min(top+bandHeight, bottom); y++ {
			b := rows.pack(img.Pix[y*img.Stride:][:4*width], asPicture)
			sum.Write(b)
			if _, s.err = current.Write(b); s.err != nil {
				return
			}
			s.size += len(b)
		}
	}
	s.sum = sum.Sum32()
	if last {
		s.err = current.Close()
	} else {
		s.err = current.Flush()
	}
}

// joinAdler is the Adler-32 of two texts one after the other, from that of each and the length of the second.
func joinAdler(first, second uint32, size int) uint32 {
	const mod = 65521
	a1, b1, a2, b2 := first&0xffff, first>>16, second&0xffff, second>>16
	a := (a1 + a2 + mod - 1) % mod
	// Every byte of the second adds the first's sum once more, less the 1 that the second began with.
	b := (uint64(b1) + uint64(b2) + uint64(size%mod)*uint64(a1+mod-1)) % mod
	return uint32(b)<<16 | a
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

// isPicture samples a band and reports whether most of its pixels differ from adjacent ones.
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
