package convert

import (
	"archive/zip"
	"bytes"
	"io"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// mediaKinds maps media types to kinds. The name of a kind is its usual extension.
var mediaKinds = map[string]string{
	"text/html": ".html", "application/xhtml+xml": ".html",
	"text/markdown": ".md", "text/x-markdown": ".md",
	"application/pdf": ".pdf",
	"application/vnd.openxmlformats-officedocument.wordprocessingml.document":   ".docx",
	"application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
	"application/vnd.openxmlformats-officedocument.spreadsheetml.sheet":         ".xlsx",
	"application/vnd.ms-excel": ".xls", "application/epub+zip": ".epub",
	"text/csv": ".csv", "text/tab-separated-values": ".tsv",
	"application/json": ".json", "application/x-ipynb+json": ".ipynb",
	"application/xml": ".xml", "text/xml": ".xml",
	"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/bmp": ".bmp", "image/tiff": ".tiff",
}

// extensions maps file extensions to kinds.
var extensions = map[string]string{
	".html": ".html", ".htm": ".html", ".xhtml": ".html", ".md": ".md", ".markdown": ".md", ".pdf": ".pdf", ".docx": ".docx", ".pptx": ".pptx",
	".xlsx": ".xlsx", ".xlsm": ".xlsx", ".xls": ".xls", ".epub": ".epub", ".csv": ".csv", ".tsv": ".tsv",
	".json": ".json", ".ipynb": ".ipynb", ".xml": ".xml",
	".png": ".png", ".jpg": ".jpg", ".jpeg": ".jpg", ".gif": ".gif", ".webp": ".webp", ".bmp": ".bmp", ".tif": ".tiff", ".tiff": ".tiff",
}

// kind determines the kind of a document from its declared media type, its name, or its content.
// It ignores octet-stream and text/plain, which servers declare for unknown types. An empty kind
// is unknown, ".txt" is text.
func (s *source) kind() (string, error) {
	if k := mediaKinds[s.media]; k != "" {
		if k == ".json" && extensions[strings.ToLower(filepath.Ext(s.name))] == ".ipynb" {
			return ".ipynb", nil
		}
		return k, nil
	}
	if strings.HasSuffix(s.media, "+json") {
		return ".json", nil
	}
	if k := extensions[strings.ToLower(filepath.Ext(s.name))]; k != "" {
		return k, nil
	}
	return s.sniff()
}

func (s *source) sniff() (string, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 512)
	n, err := io.ReadFull(f, head)
	if err != nil && n == 0 {
		return ".txt", nil // empty, or unreadable: the next step reports the error
	}
	head = head[:n]
	if bytes.HasPrefix(head, []byte("PK\x03\x04")) {
		return zipKind(s.path), nil
	}
	media, _, _ := mime.ParseMediaType(http.DetectContentType(head))
	if k := mediaKinds[media]; k != "" {
		return k, nil
	}
	if strings.HasPrefix(media, "text/") || strings.HasPrefix(s.media, "text/") {
		return ".txt", nil
	}
	return "", nil
}

// zipKind identifies an Office file by its content.
func zipKind(path string) string {
	z, err := zip.OpenReader(path)
	if err != nil {
		return ""
	}
	defer z.Close()
	for _, f := range z.File {
		switch {
		case strings.HasPrefix(f.Name, "word/"):
			return ".docx"
		case strings.HasPrefix(f.Name, "ppt/"):
			return ".pptx"
		case strings.HasPrefix(f.Name, "xl/"):
			return ".xlsx"
		case f.Name == "META-INF/container.xml":
			return ".epub"
		}
	}
	return ""
}
