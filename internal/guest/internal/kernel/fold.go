package kernel

import "strings"

// Fold gives the outputs that a notebook would show after the given ones came
// in this order: adjacent text of one stream is joined, overwritten parts of a
// line are gone, clears and display updates have been applied. An update of a
// display that another cell made is shown as a display of its own, for there is
// no other place. Dropped output becomes a line that says so.
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
	clear bool            // the next output clears those before
	text  strings.Builder // of the stream that is last in shown
}

func (f *folder) add(o Output) {
	switch o.Type {
	case ClearOutput:
		f.clear = true
		if !o.Wait {
			f.wipe()
		}
		return
	case UpdateDisplay:
		if f.update(o) {
			return
		}
		o.Type = DisplayData
	case Dropped:
		o = Output{Type: Stream, Name: "stdout", Text: "\n[… " + formatSize(o.Bytes) + " of output left out …]\n"}
	}
	if f.clear {
		f.wipe()
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

func (f *folder) wipe() {
	f.shown, f.clear = nil, false
	f.text.Reset()
}

// join ends the collection of a stream's text.
func (f *folder) join() {
	if f.text.Len() > 0 {
		f.shown[len(f.shown)-1].Text = applyOverwrites(f.text.String())
		f.text.Reset()
	}
}

// update puts new data into the outputs with o's display id and tells whether
// there is one.
func (f *folder) update(o Output) bool {
	found := false
	for i := range f.shown {
		if s := &f.shown[i]; o.DisplayID != "" && s.DisplayID == o.DisplayID {
			s.Data, s.Metadata, found = o.Data, o.Metadata, true
		}
	}
	return found
}

// applyOverwrites drops what a carriage return or backspace wrote over, so that a
// progress bar leaves one line, not thousands.
func applyOverwrites(s string) string {
	if !strings.ContainsAny(s, "\r\b") {
		return s
	}
	lines := strings.SplitAfter(s, "\n")
	for i, line := range lines {
		// Returns that end a line overwrite nothing; they may be half of a line end.
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
