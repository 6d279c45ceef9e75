package archive

import (
	"archive/tar"
	"archive/zip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/klauspost/compress/flate"
	"github.com/klauspost/compress/gzip"
)

// Pack writes a folder or a file as an archive.
func Pack(ctx context.Context, w io.Writer, root string, format Format) error {
	switch format {
	case TarGz:
		return packTar(ctx, w, root)
	case Zip:
		return packZip(ctx, w, root)
	}
	return fmt.Errorf("pack %s: unknown format %q", root, format)
}

func packTar(ctx context.Context, w io.Writer, root string) error {
	gz, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(gz)
	err = walk(ctx, root, func(path, name string, info fs.FileInfo) error { return addTar(tw, path, name, info) })
	if err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return gz.Close()
}

func addTar(tw *tar.Writer, path, name string, info fs.FileInfo) error {
	mode := info.Mode()
	if !mode.IsRegular() && !mode.IsDir() && mode&fs.ModeSymlink == 0 {
		return nil
	}
	link := ""
	if mode&fs.ModeSymlink != 0 {
		var err error
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	if h.Name = name; mode.IsDir() {
		h.Name += "/"
	}
	if err := tw.WriteHeader(h); err != nil || !mode.IsRegular() {
		return err
	}
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	n, err := io.Copy(tw, io.LimitReader(f, h.Size))
	if err != nil {
		return err
	}
	// The size is already written, so a file that became shorter is padded.
	_, err = io.CopyN(tw, zeros{}, h.Size-n)
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func packZip(ctx context.Context, w io.Writer, root string) error {
	zw := zip.NewWriter(w)
	zw.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestSpeed) })
	err := walk(ctx, root, func(path, name string, info fs.FileInfo) error { return addZip(zw, path, name, info) })
	if err != nil {
		return err
	}
	return zw.Close()
}

func addZip(zw *zip.Writer, path, name string, info fs.FileInfo) error {
	mode := info.Mode()
	if !mode.IsRegular() && !mode.IsDir() && mode&fs.ModeSymlink == 0 {
		return nil
	}
	h, err := zip.FileInfoHeader(info)
	if err != nil {
		return err
	}
	if h.Name = name; mode.IsDir() {
		h.Name += "/"
	} else {
		h.Method = zip.Deflate
	}
	w, err := zw.CreateHeader(h)
	if err != nil || mode.IsDir() {
		return err
	}
	if mode&fs.ModeSymlink != 0 {
		link, err := os.Readlink(path)
		if err != nil {
			return err
		}
		_, err = io.WriteString(w, link)
		return err
	}
	f, err := openFile(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(w, f)
	return err
}
