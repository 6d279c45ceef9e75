package bucket

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Sizes of parts. A part is in memory while it is sent. The first parts are small, because most uploads are. A store
// accepts 10,000 parts, 300 GB in total.
const (
	smallPart  = 8 << 20
	largePart  = 32 << 20
	smallParts = 1000
)

type part struct {
	Number int    `xml:"PartNumber"`
	Tag    string `xml:"ETag"`
}

// Upload writes an object from a reader and returns its size. After an error the object does not exist, and its
// parts are removed. If that fails too, Sweep removes them.
func (b *Bucket) Upload(ctx context.Context, key string, from io.Reader) (int64, error) {
	buf := make([]byte, smallPart)
	n, err := fill(buf, from)
	switch {
	case err != nil:
		return 0, err
	case n < len(buf): // the whole object
		return int64(n), b.Put(ctx, key, buf[:n])
	}
	var created struct {
		ID string `xml:"UploadId"`
	}
	if _, err := b.call(ctx, request{method: http.MethodPost, key: key, query: url.Values{"uploads": {""}}}, &created); err != nil {
		return 0, err
	}
	u := &upload{bucket: b, key: key, id: created.ID}
	if err = u.send(ctx, buf, from); err == nil {
		err = u.complete(ctx)
	}
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		return 0, errors.Join(err, b.abort(clean, key, u.id))
	}
	return u.size, nil
}

// fill reads until the buffer is full or the reader returns io.EOF. It passes on io.ErrUnexpectedEOF as an error.
func fill(buf []byte, from io.Reader) (n int, err error) {
	for n < len(buf) && err == nil {
		var more int
		more, err = from.Read(buf[n:])
		n += more
	}
	if err == io.EOF {
		err = nil
	}
	return n, err
}

// upload is an object whose parts are being sent.
type upload struct {
	bucket *Bucket
	key    string
	id     string
	parts  []part
	size   int64
}

// send sends the first part and all that follow.
func (u *upload) send(ctx context.Context, buf []byte, from io.Reader) error {
	for {
		number := len(u.parts) + 1
		if number > 10000 {
			return errors.New("the upload exceeds the maximum size of an object in the snapshot store")
		}
		header, err := u.bucket.call(ctx, request{method: http.MethodPut, key: u.key, body: buf,
			query: url.Values{"partNumber": {strconv.Itoa(number)}, "uploadId": {u.id}}}, nil)
		if err != nil {
			return err
		}
		u.parts = append(u.parts, part{number, header.Get("ETag")})
		u.size += int64(len(buf))
		if number == smallParts {
			buf = make([]byte, largePart)
		}
		n, err := fill(buf[:cap(buf)], from)
		if err != nil || n == 0 {
			return err
		}
		buf = buf[:n]
	}
}

func (u *upload) complete(ctx context.Context) error {
	body, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"CompleteMultipartUpload"`
		Parts   []part   `xml:"Part"`
	}{Parts: u.parts})
	if err != nil {
		return err
	}
	var done struct {
		XMLName xml.Name
		Code    string
	}
	_, err = u.bucket.call(ctx, request{method: http.MethodPost, key: u.key, query: url.Values{"uploadId": {u.id}}, body: body}, &done)
	switch {
	case err != nil:
		return err
	case done.XMLName.Local == "Error": // the store sends the status 200 before it knows the result
		return &Error{Status: http.StatusInternalServerError, Code: done.Code}
	}
	return nil
}

func (b *Bucket) abort(ctx context.Context, key, id string) error {
	_, err := b.call(ctx, request{method: http.MethodDelete, key: key, query: url.Values{"uploadId": {id}}}, nil)
	if IsMissing(err) {
		return nil
	}
	return err
}

// Sweep removes the parts of interrupted uploads. No upload may be in progress.
func (b *Bucket) Sweep(ctx context.Context) error {
	var all struct {
		Upload []struct {
			Key string
			ID  string `xml:"UploadId"`
		}
	}
	for range 100 {
		if _, err := b.call(ctx, request{method: http.MethodGet,
			query: url.Values{"uploads": {""}, "prefix": {b.cfg.Prefix}}}, &all); err != nil {
			return err
		}
		if len(all.Upload) == 0 {
			return nil
		}
		for _, u := range all.Upload {
			if err := b.abort(ctx, strings.TrimPrefix(u.Key, b.cfg.Prefix), u.ID); err != nil {
				return err
			}
		}
		all.Upload = nil
	}
	return nil
}

// Examine writes, reads, lists and deletes a small object.
func (b *Bucket) Examine(ctx context.Context) error {
	key := fmt.Sprintf("examine-%d", time.Now().UnixNano())
	if err := b.Put(ctx, key, []byte(key)); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	got, err := b.Get(ctx, key)
	if err == nil && !bytes.Equal(got, []byte(key)) {
		err = errors.New("the store returned another content")
	}
	if err != nil {
		err = fmt.Errorf("read: %w", err)
	} else if keys, failed := b.List(ctx, "examine-"); failed != nil || len(keys) == 0 {
		err = errors.Join(errors.New("list"), failed)
	}
	if failed := b.Delete(ctx, key); failed != nil {
		err = errors.Join(err, fmt.Errorf("delete: %w", failed))
	}
	return err
}
