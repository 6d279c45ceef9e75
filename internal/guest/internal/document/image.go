package document

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // formats that image.DecodeConfig knows
	_ "image/jpeg"
	_ "image/png"
	"io"
	"os"
	"path/filepath"
)

// image shows the format and size of an image.
func (r Reader) image(_ context.Context, path string, _ Query) (View, error) {
	f, err := os.Open(path)
	if err != nil {
		return View{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return View{}, err
	}
	width, height, format, err := measure(f)
	if err != nil {
		return View{}, damaged(path, err)
	}
	text := fmt.Sprintf("%s: %s image, %d × %d pixels, %d bytes. Download it to view it.\n", filepath.Base(path),
		format, width, height, info.Size())
	return View{text, map[string]any{"format": format, "width": width, "height": height}}, nil
}

func measure(f io.ReaderAt) (width, height int, format string, err error) {
	if c, format, err := image.DecodeConfig(io.NewSectionReader(f, 0, maxFile)); err == nil {
		return c.Width, c.Height, format, nil
	}
	head := make([]byte, 64)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, "", err
	}
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("BM")) && n >= 26:
		return int(binary.LittleEndian.Uint32(head[18:])), abs(int32(binary.LittleEndian.Uint32(head[22:]))), "bmp", nil
	case bytes.HasPrefix(head, []byte("RIFF")) && n >= 30 && string(head[8:12]) == "WEBP":
		return webp(head)
	case bytes.HasPrefix(head, []byte("II*\x00")):
		return tiff(f, binary.LittleEndian)
	case bytes.HasPrefix(head, []byte("MM\x00*")):
		return tiff(f, binary.BigEndian)
	}
	return 0, 0, "", errors.New("unknown image format")
}

func abs(n int32) int { return int(max(n, -n)) }

func webp(b []byte) (width, height int, format string, err error) {
	le := binary.LittleEndian
	switch string(b[12:16]) {
	case "VP8 ":
		return int(le.Uint16(b[26:]) & 0x3fff), int(le.Uint16(b[28:]) & 0x3fff), "webp", nil
	case "VP8L":
		bits := le.Uint32(b[21:])
		return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1, "webp", nil
	case "VP8X":
		return int(le.Uint32(b[24:])&0xffffff) + 1, int(le.Uint32(b[26:])>>8) + 1, "webp", nil
	}
	return 0, 0, "", errors.New("unknown kind of WebP image")
}

func tiff(f io.ReaderAt, order binary.ByteOrder) (width, height int, format string, err error) {
	b := make([]byte, 12)
	if _, err := f.ReadAt(b[:8], 0); err != nil {
		return 0, 0, "", err
	}
	at := int64(order.Uint32(b[4:]))
	if _, err := f.ReadAt(b[:2], at); err != nil {
		return 0, 0, "", err
	}
	for i := range int64(order.Uint16(b)) {
		if _, err := f.ReadAt(b, at+2+12*i); err != nil {
			return 0, 0, "", err
		}
		value := int(order.Uint32(b[8:]))
		if order.Uint16(b[2:]) == 3 { // 16 bits
			value = int(order.Uint16(b[8:]))
		}
		switch order.Uint16(b) {
		case 256:
			width = value
		case 257:
			height = value
		}
	}
	return width, height, "tiff", nil
}
