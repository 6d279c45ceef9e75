package kernel

import "strings"

// Fold returns the outputs as a notebook shows them: adjacent text of a stream is joined,
// overwritten parts of lines are removed, and clears and display updates are applied. An
// update of another cell's display becomes a new display. Dropped output becomes a note.
func Fold(outputs []Output) []Output {
	var f folder
	for _, o := range outputs {
		f.add(o)
	}
	f.join()
	return f.shown
}

type folder struct {
	shown []Output
	clear bool            // the next output clears the earlier ones
	text  strings.Builder // of the stream at the end of shown
}

func (f *folder) add(o Output) {
	switch o.Type {
	case ClearOutput:
		f.clear = true
		if !o.Wait {
			f.reset()
		}
		return
	case UpdateDisplay:
		if f.update(o) {
			return
		}
		o.Type = DisplayData
	case Dropped:
		o = Output{Type: Stream, Name: "stdout", Text: "\n[… " + formatSize(o.Bytes) + " of output omitted …]\n"}
	}
	if f.clear {
		f.reset()
	}
	if o.Type == DisplayData && o.DisplayID != "" {
		f.update(o)
	}
	if o.Type == Stream {
		if n := len(f.shown); n > 0 && f.text.Len() > 0 && f.shown[n-1].Name == o.Name {
			f.text.WriteString(o.Text)
			return
		}
	}
	f.join()
	f.shown = append(f.shown, o)
	if o.Type == Stream {
		f.text.WriteString(o.Text)
	}
}

func (f *folder) reset() {
	f.shown, f.clear = nil, false
	f.text.Reset()
}

// join completes the text of a stream.
func (f *folder) join() {
	if f.text.Len() > 0 {
		f.shown[len(f.shown)-1].Text = applyOverwrites(f.text.String())
		f.text.Reset()
	}
}

// update replaces the data of the outputs with o's display ID and reports whether there are
// any.
func (f *folder) update(o Output) bool {
	found := false
	for i := range f.shown {
		if s := &f.shown[i]; o.DisplayID != "" && s.DisplayID == o.DisplayID {
			s.Data, s.Metadata, found = o.Data, o.Metadata, true
		}
	}
	return found
}

// applyOverwrites removes text that carriage returns and backspaces overwrite, so that a
// progress bar leaves one line.
func applyOverwrites(s string) string {
	if !strings.ContainsAny(s, "\r\b") {
		return s
	}
	lines := strings.SplitAfter(s, "\n")
	for i, line := range lines {
		// Carriage returns at the end of a line overwrite nothing; they may be part of \r\n.
		text := strings.TrimRight(line, "\r\n")
		end := line[len(text):]
		lines[i] = applyBackspaces(text[strings.LastIndexByte(text, '\r')+1:]) + end
	}
	return strings.Join(lines, "")
}

// applyBackspaces applies backspaces.
func applyBackspaces(s string) string {
	if strings.IndexByte(s, '\b') < 0 {
		return s
	}
	var kept []rune
	for _, r := range s {
		if r != '\b' {
			kept = append(kept, r)
		} else if len(kept) > 0 {
			kept = kept[:len(kept)-1]
		}
	}
	return string(kept)
}
