package document

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

// source is text that a notebook stores as a string or as a list of lines.
type source string

func (s *source) UnmarshalJSON(b []byte) error {
	var lines []string
	if json.Unmarshal(b, &lines) == nil {
		*s = source(strings.Join(lines, ""))
		return nil
	}
	var text string
	if json.Unmarshal(b, &text) == nil {
		*s = source(text)
	}
	return nil
}

type notebook struct {
	Metadata struct {
		KernelSpec struct {
			Name string `json:"name"`
		} `json:"kernelspec"`
		Language struct {
			Name string `json:"name"`
		} `json:"language_info"`
	} `json:"metadata"`
	Format int `json:"nbformat"`
	Cells  []struct {
		Type    string `json:"cell_type"`
		Source  source `json:"source"`
		Outputs []struct {
			Type  string                     `json:"output_type"`
			Text  source                     `json:"text"`
			Data  map[string]json.RawMessage `json:"data"`
			Name  string                     `json:"ename"`
			Value string                     `json:"evalue"`
		} `json:"outputs"`
	} `json:"cells"`
}

// maxOutput limits the text of one output of a cell.
const maxOutput = 4 << 10

// notebook shows cells; the rows of a query are cells.
func (r Reader) notebook(_ context.Context, path string, q Query) (View, error) {
	f, err := os.Open(path)
	if err != nil {
		return View{}, err
	}
	defer f.Close()
	b, err := limitedRead(f, maxPart)
	if err != nil {
		return View{}, damaged(path, err)
	}
	var nb notebook
	if err := json.Unmarshal(b, &nb); err != nil {
		return View{}, damaged(path, err)
	}
	meta := map[string]any{"cell_count": len(nb.Cells), "nbformat": nb.Format}
	fill(meta, map[string]string{"kernel": nb.Metadata.KernelSpec.Name, "language": nb.Metadata.Language.Name})
	if len(nb.Cells) == 0 {
		return View{"[no cells]\n", meta}, nil
	}
	first, last, err := span("row_range", q.Rows, len(nb.Cells))
	if err != nil {
		return View{}, err
	}
	var out strings.Builder
	for i := first; i <= last && out.Len() <= maxText; i++ {
		showCell(&out, nb, i)
	}
	return View{out.String(), meta}, nil
}

func showCell(out *strings.Builder, nb notebook, n int) {
	c := nb.Cells[n-1]
	fmt.Fprintf(out, "## Cell %d of %d (%s)\n\n", n, len(nb.Cells), c.Type)
	text := strings.TrimRight(string(c.Source), "\n")
	if c.Type == "markdown" {
		out.WriteString(text + "\n\n")
		return
	}
	fmt.Fprintf(out, "```%s\n%s\n```\n\n", nb.Metadata.Language.Name, text)
	for _, o := range c.Outputs {
		text := string(o.Text)
		switch {
		case o.Type == "error":
			text = o.Name + ": " + o.Value
		case text == "" && o.Data["text/plain"] != nil:
			var plain source
			_ = plain.UnmarshalJSON(o.Data["text/plain"]) // never fails
			text = string(plain)
		}
		for media := range o.Data {
			if strings.HasPrefix(media, "image/") {
				text += "\n[" + media + "]"
			}
		}
		if len(text) > maxOutput {
			text = strings.ToValidUTF8(text[:maxOutput], "") + "…"
		}
		if text = strings.TrimRight(text, "\n"); text != "" {
			fmt.Fprintf(out, "Output:\n```\n%s\n```\n\n", text)
		}
	}
}
