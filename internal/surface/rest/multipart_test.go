package rest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime/multipart"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

type read struct{ Name, File, Type, Body string }

func ours(src io.Reader, boundary string, size int) ([]read, error) {
	var all []read
	m := newParts(src, boundary)
	for {
		p, err := m.next()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		var body bytes.Buffer
		_, err = io.CopyBuffer(struct{ io.Writer }{&body}, struct{ io.Reader }{p}, make([]byte, size))
		if err != nil {
			return all, err
		}
		all = append(all, read{p.name(), p.file(), p.header.Get("Content-Type"), body.String()})
	}
}

func theirs(src io.Reader, boundary string) ([]read, error) {
	var all []read
	m := multipart.NewReader(src, boundary)
	for {
		p, err := m.NextRawPart()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		body, err := io.ReadAll(p)
		if err != nil {
			return all, err
		}
		all = append(all, read{p.FormName(), p.FileName(), p.Header.Get("Content-Type"), string(body)})
	}
}

// TestParts: forms with random content that arrive in random pieces are read as the standard
// library reads them.
func TestParts(t *testing.T) {
	const boundary = "xBOUNDx"
	tricky := []string{"", "a", "\r\n", "\r", "\r\n--", "\r\n--xBOUND", "\r\n--xBOUNDxy", "q--xBOUNDx", "\n--xBOUNDq",
		"\r\n\r\n--xBOUN\r\n--", strings.Repeat("\r\n--xBOUNDy", 9000), strings.Repeat("z", 1<<20)}
	r := rand.New(rand.NewPCG(1, 2))
	for round := range 60 {
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		if err := w.SetBoundary(boundary); err != nil {
			t.Fatal(err)
		}
		for i := range 1 + r.IntN(4) {
			var to io.Writer
			if r.IntN(2) == 0 {
				to, _ = w.CreateFormField(fmt.Sprint("field", i))
			} else {
				to, _ = w.CreateFormFile(fmt.Sprint("file", i), "../\"ü .txt")
			}
			for range r.IntN(4) {
				io.WriteString(to, tricky[r.IntN(len(tricky))])
			}
		}
		w.Close()
		want, err := theirs(bytes.NewReader(form.Bytes()), boundary)
		if err != nil {
			t.Fatal(err)
		}
		size := []int{1, 7, 11, 64, 4096, 256 << 10}[round%6]
		if form.Len() > 1<<20 {
			size = max(size, 4096)
		}
		for name, src := range map[string]io.Reader{
			"whole": bytes.NewReader(form.Bytes()), "halves": iotest.HalfReader(bytes.NewReader(form.Bytes())),
			"end with data": iotest.DataErrReader(bytes.NewReader(form.Bytes())),
		} {
			got, err := ours(src, boundary, size)
			if err != nil {
				t.Fatalf("%s, round %d: %v", name, round, err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("%s, round %d: %s", name, round, d)
			}
		}
		if cut := r.IntN(form.Len()); cut < form.Len()-len("--\r\n") {
			if _, err := ours(bytes.NewReader(form.Bytes()[:cut]), boundary, size); err == nil {
				t.Fatalf("round %d: a form cut after %d of %d bytes: got no error, want one", round, cut, form.Len())
			}
		}
	}
}

func FuzzParts(f *testing.F) {
	f.Add("--x\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nb\r\n--x--\r\n")
	f.Add("--x\r\n\r\n--x--")
	f.Add("preamble\r\n--x \r\nA: b\r\n\r\n\r\n--x\r\n\r\n\r\n--x--\r\nepilogue")
	f.Add("--x--")
	f.Add("--xx\r\n\r\n\r\n--x--")
	f.Fuzz(func(t *testing.T, form string) {
		one, err1 := ours(strings.NewReader(form), "x", 1<<16)
		two, err2 := ours(iotest.OneByteReader(strings.NewReader(form)), "x", 3)
		if (err1 == nil) != (err2 == nil) {
			t.Fatalf("got error %v for the whole form and %v byte by byte, want the same", err1, err2)
		}
		if d := cmp.Diff(one, two); d != "" && err1 == nil {
			t.Fatal(d)
		}
	})
}
