package toolcatalog

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

type displayIn struct {
	Format  string `json:"format" default:"jpeg" nullable:"true" doc:"jpeg or png"`
	Quality *int   `json:"quality" doc:"Quality of a JPEG, 1 to 100"`
}

func (b browser) displayPicture(ctx context.Context, in displayIn) (any, error) {
	args := map[string]any{"format": in.Format}
	if in.Quality != nil {
		args["quality"] = *in.Quality
	}
	return b.output(ctx, routeDisplay, args)
}

type pictureIn struct {
	elementIn
	FullPage  bool    `json:"full_page" alias:"fullPage" default:"false" nullable:"true" doc:"All of the page, not only the visible part"`
	Highlight bool    `json:"highlight" default:"false" nullable:"true" doc:"Show the index of each element"`
	Path      *string `json:"path" doc:"File to save the picture to"`
	Name      *string `json:"name" doc:"Name under which the picture is stored, as the resource screenshot://NAME"`
	Width     *int    `json:"width" doc:"Ignored: the picture has the size of the page"`
	Height    *int    `json:"height" doc:"Ignored: the picture has the size of the page"`
}

// pagePicture takes a picture of the page, or of an element of it.
func (b browser) pagePicture(ctx context.Context, in pictureIn) (toolset.Result, error) {
	args := map[string]any{"full_page": in.FullPage, "format": "png", "highlight": in.Highlight}
	what := "the page"
	if in.Index != nil || in.Selector != nil {
		target, err := b.resolve(ctx, in.elementIn)
		if err != nil {
			return toolset.Result{}, err
		}
		args["selector"], what = target["selector"], in.label()
	}
	if in.Name != nil {
		what = *in.Name
	}
	out, err := b.output(ctx, routePicture, args)
	if err != nil {
		return toolset.Result{}, err
	}
	blob, ok := out.(*op.Blob)
	if !ok || blob.Body == nil {
		return toolset.Result{}, op.Errorf(op.Unavailable, "the browser returned no picture; retry")
	}
	defer blob.Body.Close()
	data, err := io.ReadAll(blob.Body)
	if err != nil {
		return toolset.Result{}, err
	}
	r := toolset.Result{Text: fmt.Sprintf("Picture of %s", what), Images: []toolset.Image{{Type: "image/png", Data: data}}}
	if in.Name != nil && b.album != nil {
		if err := b.album.put(*in.Name, data); err != nil {
			return toolset.Result{}, err
		}
	}
	if in.Path != nil {
		saved, err := b.call(ctx, "POST /v1/file/write",
			map[string]any{"file": *in.Path, "content": base64.StdEncoding.EncodeToString(data), "encoding": "base64"})
		if err != nil {
			return toolset.Result{}, err
		}
		path := toObject(saved).text("file")
		r.Text += ", saved to " + path
		r.Files = []toolset.File{{Path: path, Type: "image/png", Size: int64(len(data))}}
	}
	return r, nil
}

// screenIn is a point of the page. Models with a different coordinate range pass its size as factors.
type screenIn struct {
	X       float64   `json:"x" doc:"Position from the left"`
	Y       float64   `json:"y" doc:"Position from the top"`
	Factors []float64 `json:"factors" nullable:"true" maxItems:"2" doc:"Range of x and of y, such as 1000 and 1000. Default: pixels"`
}

func (b browser) clickScreen(ctx context.Context, in screenIn) (string, error) {
	if len(in.Factors) > 0 {
		if len(in.Factors) != 2 || in.Factors[0] <= 0 || in.Factors[1] <= 0 {
			return "", op.Errorf(op.Invalid, "argument %q: pass two numbers greater than 0, such as [1000, 1000]", "factors")
		}
		out, err := b.call(ctx, routeEvaluate, map[string]any{"expression": "[innerWidth, innerHeight]"})
		if err != nil {
			return "", err
		}
		size := evaluated(out)
		if len(size) != 2 {
			return "", op.Errorf(op.Unavailable, "the size of the page is unknown; pass pixels without factors")
		}
		in.X *= float64(object{"n": size[0]}.number("n")) / in.Factors[0]
		in.Y *= float64(object{"n": size[1]}.number("n")) / in.Factors[1]
	}
	_, err := b.call(ctx, routeClick, map[string]any{"x": in.X, "y": in.Y})
	return fmt.Sprintf("Clicked at %.0f, %.0f", in.X, in.Y), err
}

// screenPicture takes a picture of the page for models that click points in it.
func (b browser) screenPicture(ctx context.Context, _ op.None) (toolset.Result, error) {
	return b.pagePicture(ctx, pictureIn{})
}
