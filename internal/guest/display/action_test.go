package display_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// stage is a page in a real browser on a real display. The page records its events.
type stage struct {
	*desk
	client  *cdp.Client
	session cdp.SessionID
}

// event is an event of the page.
type event struct {
	Type, ID                string
	X, Y                    int
	Button, Buttons, Detail int
	Key, Code, Data         string
	Ctrl, Shift, Alt, Meta  bool
	DX, DY                  float64
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{desk: newDesk(t, withBrowser)}
	files := httptest.NewServer(http.FileServer(http.Dir("testdata")))
	t.Cleanup(files.Close)
	ctx := testContext(t)
	client, release, err := s.browser.Connect(ctx)
	must(t, err)
	t.Cleanup(release)
	s.client = client
	id, err := client.CreateTarget(ctx, cdp.NewTarget{URL: files.URL + "/events.html"})
	must(t, err)
	s.session, err = client.Attach(ctx, id)
	must(t, err)
	s.loaded(t)
	return s
}

// reset reloads the page. The previous page must not be in the history, to which some keys navigate.
func (s *stage) reset(t *testing.T) {
	t.Helper()
	eval[any](t, s, `window.old = true, location.replace(location.pathname + "?" + Date.now()), null`)
	s.loaded(t)
}

// loaded waits until the page has its full size and position. Chromium drops input to a page that it has not painted yet, so
// loaded sends input until the page receives it.
func (s *stage) loaded(t *testing.T) {
	t.Helper()
	testenv.Poll(t, "the page is drawn", func() bool {
		var ready bool
		err := s.client.Evaluate(testContext(t), s.session, `new Promise(d => requestAnimationFrame(() =>
			d(!window.old && !!window.at && document.readyState === "complete" && innerWidth > 1000 && scrollX + scrollY === 0 &&
				performance.getEntriesByType("paint").length > 0)))`, &ready)
		return err == nil && ready
	})
	shift := 0
	testenv.Poll(t, "the page receives pointer events", func() bool {
		x, y := s.at(t, "pad")
		shift = 1 - shift // a move to the current position sends no event
		s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d,"y":%d}`, x+shift, y))
		return slices.ContainsFunc(eval[[]event](t, s, `seen.splice(0)`), func(e event) bool {
			return e.Type == "mousemove" && e.ID == "pad" && (e.X == x || e.X == x+1) && e.Y == y
		})
	})
}

// eval evaluates JavaScript in the page.
func eval[T any](t *testing.T, s *stage, script string) T {
	t.Helper()
	var v T
	must(t, s.client.Evaluate(testContext(t), s.session, script, &v))
	return v
}

// do performs actions, decoded from JSON as a caller sends them.
func (s *stage) do(t *testing.T, actions ...string) {
	t.Helper()
	for _, a := range actions {
		s.try(t, a)
	}
}

func (s *stage) try(t *testing.T, body string) *op.Call {
	t.Helper()
	call := &op.Call{}
	out, err := act(op.WithCall(testContext(t), call), s.Service, body)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if !strings.Contains(body, `"`+out.Action+`"`) || out.Status != "success" || out.Data.Action != out.Action || !out.Success {
		t.Fatalf("%s: got the response %+v, want containing %q, Status \"success\", Action %v, Success true", body,
			out, `"`+out.Action+`"`, out.Action)
	}
	return call
}

func act(ctx context.Context, s *display.Service, body string) (display.ActionOut, error) {
	table := op.NewTable(s.Ops())
	o, _ := table.Get("browser_actions")
	in, err := o.Bind(op.Input{JSON: []byte(body)})
	if err != nil {
		return display.ActionOut{}, err
	}
	out, err := o.Call(ctx, in)
	if err != nil {
		return display.ActionOut{}, err
	}
	return out.(display.ActionOut), nil
}

// take waits until the page has recorded an event of the last type, and returns all events of those types since the last call.
func (s *stage) take(t *testing.T, types ...string) []event {
	t.Helper()
	var all []event
	what := types[len(types)-1]
	testenv.Poll(t, "the page receives "+what, func() bool {
		all = append(all, eval[[]event](t, s, `seen.splice(0)`)...)
		for _, e := range all {
			if e.Type == what {
				return true
			}
		}
		return false
	})
	var wanted []event
	for _, e := range all {
		for _, name := range types {
			if e.Type == name {
				wanted = append(wanted, e)
			}
		}
	}
	return wanted
}

// await waits until the page has recorded a matching event, and returns it.
func (s *stage) await(t *testing.T, what string, match func(event) bool) event {
	t.Helper()
	var seen []event
	defer func() {
		if t.Failed() {
			t.Logf("waited for %s, the page saw %+v", what, seen)
		}
	}()
	var found event
	testenv.Poll(t, "the page receives "+what, func() bool {
		for _, e := range eval[[]event](t, s, `seen.splice(0)`) {
			seen = append(seen, e)
			if found.Type == "" && match(e) {
				found = e
			}
		}
		return found.Type != ""
	})
	return found
}

// awaitText waits until the text field contains a text.
func (s *stage) awaitText(t *testing.T, want string) {
	t.Helper()
	got := ""
	defer func() {
		if t.Failed() {
			t.Logf("the field holds %.200q, want %.200q", got, want)
		}
	}()
	testenv.Poll(t, "the text arrives", func() bool {
		got = eval[string](t, s, `document.getElementById("text").value`)
		return got == want
	})
}

// focusText clicks the text field.
func (s *stage) focusText(t *testing.T) {
	t.Helper()
	x, y := s.at(t, "text")
	s.do(t, fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, x, y))
	s.await(t, "a click into the field", func(e event) bool { return e.Type == "click" && e.ID == "text" })
}

// at returns the center of an element on the display.
func (s *stage) at(t *testing.T, id string) (x, y int) {
	t.Helper()
	p := eval[[]float64](t, s, fmt.Sprintf(`at(%q)`, id))
	return int(math.Round(p[0])), int(math.Round(p[1]))
}

func TestActionsReachPages(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	for _, c := range []struct {
		name string
		test func(*testing.T, *stage)
	}{
		{"pointer", testPointer},
		{"clicks", testClicks},
		{"held buttons and keys", testHeld},
		{"drag", testDrag},
		{"wheel", testWheel},
		{"typing", testTyping},
		{"pasting while a viewer is connected", testPasteWhileWatched},
		{"shortcuts and clipboard", testShortcuts},
		{"keys", testKeys},
		{"refusals", testRefusals},
		{"wait", testWait},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.reset(t)
			c.test(t, s)
		})
	}
}

func testPointer(t *testing.T, s *stage) {
	x, y := s.at(t, "pad")
	s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d.4,"y":%d.6}`, x, y))
	movedTo := func(x, y int) func(event) bool {
		return func(e event) bool { return e.Type == "mousemove" && e.X == x && e.Y == y }
	}
	s.await(t, fmt.Sprintf("a move to %d,%d", x, y+1), movedTo(x, y+1))
	s.do(t, `{"action_type":"MOVE_REL","x_offset":-30,"y_offset":12}`)
	s.await(t, fmt.Sprintf("a move to %d,%d", x-30, y+13), movedTo(x-30, y+13))
	call := s.try(t, `{"action_type":"MOVE_TO","x":99999,"y":-5}`)
	if !strings.Contains(call.Hint, "outside") {
		t.Errorf("position outside: got hint %q, want one containing \"outside\"", call.Hint)
	}
}

func testClicks(t *testing.T, s *stage) {
	x, y := s.at(t, "pad")
	where := fmt.Sprintf(`"x":%d,"y":%d`, x, y)
	for _, c := range []struct {
		action string
		last   string // the event to wait for
		button int
		detail []int // of the presses
	}{
		{`{"action_type":"CLICK",` + where + `}`, "click", 0, []int{1}},
		{`{"action_type":"CLICK",` + where + `,"button":"middle"}`, "auxclick", 1, []int{1}},
		{`{"action_type":"CLICK",` + where + `,"button":"right"}`, "contextmenu", 2, []int{1}},
		{`{"action_type":"RIGHT_CLICK",` + where + `}`, "contextmenu", 2, []int{1}},
		{`{"action_type":"DOUBLE_CLICK",` + where + `}`, "dblclick", 0, []int{1, 2}},
		{`{"action_type":"CLICK",` + where + `,"num_clicks":3}`, "mouseup", 0, []int{1, 2, 3}},
		{`{"action_type":"CLICK","x":null,"y":null,"num_clicks":2}`, "dblclick", 0, []int{1, 2}},
	} {
		// Clicks at one position within half a second count as multiple clicks: start at another one.
		s.do(t, fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, x+200, y+100))
		s.await(t, "the click elsewhere", func(e event) bool { return e.Type == "click" && e.X == x+200 })
		if strings.Contains(c.action, "null") {
			s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d,"y":%d}`, x, y))
		}
		s.do(t, c.action)
		var presses []event
		testenv.Poll(t, "the presses arrive", func() bool {
			presses = append(presses, only(s.take(t, "mousedown", c.last), "mousedown")...)
			return len(presses) >= len(c.detail)
		})
		if len(presses) != len(c.detail) {
			t.Fatalf("%s: %d presses, want %d", c.action, len(presses), len(c.detail))
		}
		for i, e := range presses {
			if e.Button != c.button || e.Detail != c.detail[i] || e.X != x || e.Y != y || e.ID != "pad" {
				t.Errorf("%s: press %d is %+v, want Button %v, Detail %v, X %v, Y %v, ID \"pad\"", c.action, i, e, c.button, c.detail[i], x, y)
			}
		}
	}
}

func testHeld(t *testing.T, s *stage) {
	x, y := s.at(t, "pad")
	s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d,"y":%d}`, x, y), `{"action_type":"MOUSE_DOWN"}`,
		`{"action_type":"MOVE_REL","x_offset":40,"y_offset":0}`)
	s.take(t, "mousedown")
	s.do(t, `{"action_type":"MOVE_REL","x_offset":0,"y_offset":5}`)
	s.await(t, "a move with the button down", func(e event) bool {
		return e.Type == "mousemove" && e.Buttons == 1 && e.X == x+40 && e.Y == y+5
	})
	s.do(t, `{"action_type":"MOUSE_UP"}`)
	s.take(t, "mouseup")
	s.do(t, `{"action_type":"KEY_DOWN","key":"shift"}`, `{"action_type":"KEY_DOWN","key":"ctrl"}`,
		fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, x, y), `{"action_type":"KEY_UP","key":"ctrl"}`,
		`{"action_type":"KEY_UP","key":"shift"}`)
	if e := last(s.take(t, "click")); !e.Shift || !e.Ctrl || e.Alt || e.Meta {
		t.Errorf("click with shift and ctrl: %+v, want Shift true, Ctrl true, Alt false, Meta false", e)
	}
	s.do(t, fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, x, y))
	if e := last(s.take(t, "click")); e.Shift || e.Ctrl {
		t.Errorf("keys were not released: %+v, want Shift false, Ctrl false", e)
	}
}

func testDrag(t *testing.T, s *stage) {
	x, y := s.at(t, "from")
	tx, ty := s.at(t, "to")
	s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d,"y":%d}`, x, y), fmt.Sprintf(`{"action_type":"DRAG_TO","x":%d,"y":%d}`, tx, ty))
	events := s.take(t, "dragstart", "dragover", "drop", "dragend")
	drop := slices.IndexFunc(events, func(e event) bool { return e.Type == "drop" })
	if drop < 3 || events[drop].ID != "to" || events[drop].Data != "carried" {
		t.Errorf("the page recorded %+v, want dragstart, dragover and a drop of \"carried\" on \"to\"", events)
	}
	lx, ly := s.at(t, "line")
	s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d,"y":%d}`, lx-299, ly), `{"action_type":"DRAG_REL","x_offset":180,"y_offset":0}`)
	s.take(t, "mouseup")
	if text := eval[string](t, s, `getSelection().toString()`); !strings.HasPrefix(text, "some words") {
		t.Errorf("the drag selected %q, want text beginning with \"some words\"", text)
	}
}

func testWheel(t *testing.T, s *stage) {
	x, y := s.at(t, "pad")
	s.do(t, fmt.Sprintf(`{"action_type":"MOVE_TO","x":%d,"y":%d}`, x, y), `{"action_type":"SCROLL","dy":1}`)
	step := last(s.take(t, "wheel")).DY
	if step <= 0 {
		t.Fatalf("one step down scrolled by %v, want more than 0", step)
	}
	for _, c := range []struct {
		action string
		dx, dy float64 // steps
	}{
		{`{"action_type":"SCROLL","dy":3}`, 0, 3},
		{`{"action_type":"SCROLL","dy":-2}`, 0, -2},
		{`{"action_type":"SCROLL","dy":100}`, 0, 1}, // pixels
		{`{"action_type":"SCROLL","dy":-250}`, 0, -2},
		{`{"action_type":"SCROLL","dx":4}`, 4, 0},
		{`{"action_type":"SCROLL","dx":-1,"dy":0}`, -1, 0},
		{`{"action_type":"SCROLL","dx":9,"dy":9}`, 9, 9},
	} {
		s.do(t, c.action)
		var dx, dy float64
		testenv.Poll(t, fmt.Sprintf("%s turns by %v,%v", c.action, c.dx, c.dy), func() bool {
			for _, e := range eval[[]event](t, s, `seen.splice(0)`) {
				dx, dy = dx+e.DX, dy+e.DY
			}
			return dx == c.dx*step && dy == c.dy*step
		})
	}
	testenv.Poll(t, "the page scrolls", func() bool { return eval[bool](t, s, `scrollX > 100 && scrollY > 100`) })
}

const greeting = "Grüße, 世界 🎉"

func testTyping(t *testing.T, s *stage) {
	s.focusText(t)
	for _, option := range []string{``, `,"use_clipboard":true`, `,"use_clipboard":null`, `,"use_clipboard":false`} {
		_, err := s.SetClipboard(testContext(t), display.SetClipboardIn{Text: "kept"})
		must(t, err)
		call := s.try(t, `{"action_type":"TYPING","text":"`+greeting+`\n\ttwo"`+option+`}`)
		want := greeting + "\n\ttwo"
		if strings.Contains(option, "false") {
			want = greeting + "\n" // the tab key leaves the field
		}
		if call.Hint != "" {
			t.Errorf("typed%s: hint %q, want none", option, call.Hint)
		}
		s.awaitText(t, want)
		if strings.Contains(option, "false") {
			// Text that was typed after the field must not be in it.
			s.await(t, "the rest", func(e event) bool { return e.Type == "keyup" && e.Key == "o" })
		}
		if c, err := s.GetClipboard(testContext(t), op.None{}); err != nil || c.Text != "kept" {
			t.Errorf("typed%s: the clipboard contains %q, %v, want Text \"kept\"", option, c.Text, err)
		}
		eval[any](t, s, `document.getElementById("text").value = "", document.getElementById("text").focus(), null`)
	}
	// An empty clipboard is empty again, and a long text is transferred in pieces.
	_, err := s.SetClipboard(testContext(t), display.SetClipboardIn{})
	must(t, err)
	long := strings.Repeat("0123456789abcdef", 1<<15)
	s.do(t, `{"action_type":"TYPING","text":"`+long+`"}`)
	s.awaitText(t, long)
	if c, err := s.GetClipboard(testContext(t), op.None{}); err != nil || c.Text != "" {
		t.Errorf("the clipboard contains %d bytes, %v, want Text \"\"", len(c.Text), err)
	}
}

// TestLateReader: a program that reads the clipboard long after the paste gets the pasted text. The content from
// before is there when it is needed again, and does not replace what a program has copied.
func TestLateReader(t *testing.T) {
	t.Parallel()
	d := newDesk(t, func(c *display.Config) { c.PasteTime = time.Hour })
	ctx := testContext(t)
	_, err := d.SetClipboard(ctx, display.SetClipboardIn{Text: "kept"})
	must(t, err)
	program, release := dial(t, d)
	defer release()
	reads := func(want string) {
		t.Helper()
		if got, err := program.SelectionText(ctx, x11.Clipboard); err != nil || got != want {
			t.Errorf("a program reads %q, %v, want %q", got, err, want)
		}
	}
	paste := func(text string) {
		t.Helper()
		read := make(chan bool, 1)
		go func() {
			read <- testenv.Eventually(func() bool {
				got, err := program.SelectionText(ctx, x11.Clipboard)
				return err == nil && got == text
			})
		}()
		_, err := act(ctx, d.Service, `{"action_type":"TYPING","text":"`+text+`"}`)
		if must(t, err); !<-read {
			t.Errorf("no program could read %q", text)
		}
	}
	paste("typed")
	reads("typed")
	_, err = act(ctx, d.Service, `{"action_type":"PRESS","key":"enter"}`)
	must(t, err)
	reads("typed")
	_, err = act(ctx, d.Service, `{"action_type":"TYPING","text":"x","use_clipboard":false}`)
	must(t, err)
	reads("typed")
	if c, err := d.GetClipboard(ctx, op.None{}); err != nil || c.Text != "kept" {
		t.Errorf("the clipboard contains %q, %v, want kept", c.Text, err)
	}
	reads("kept")
	paste("again")
	_, err = act(ctx, d.Service, `{"action_type":"HOTKEY","keys":["ctrl","v"]}`)
	must(t, err)
	reads("kept")
	paste("third")
	_, err = program.SetSelection(ctx, x11.Clipboard, x11.Text("copied"))
	must(t, err)
	testenv.Poll(t, "the copied text stays", func() bool {
		c, err := d.GetClipboard(ctx, op.None{})
		return err == nil && c.Text == "copied"
	})
}

// testPasteWhileWatched: viewers read copied text immediately, which must not count as a read by the page.
func testPasteWhileWatched(t *testing.T, s *stage) {
	v := watch(t, s.Service, display.ViewIn{})
	v.greet(t, false)
	s.focusText(t)
	want := ""
	for i := range 10 {
		word := fmt.Sprintf("word%d ", i)
		if call := s.try(t, `{"action_type":"TYPING","text":"`+word+`"}`); call.Hint != "" {
			t.Errorf("typed %q: hint %q, want none", word, call.Hint)
		}
		want += word
	}
	s.awaitText(t, want)
}

func testShortcuts(t *testing.T, s *stage) {
	s.focusText(t)
	s.do(t, `{"action_type":"TYPING","text":"copy me","use_clipboard":false}`,
		`{"action_type":"HOTKEY","keys":["ctrl","a"]}`, `{"action_type":"HOTKEY","keys":["ctrl","c"]}`)
	testenv.Poll(t, "the page's text is in the clipboard", func() bool {
		c, err := s.GetClipboard(testContext(t), op.None{})
		return err == nil && c.Text == "copy me"
	})
	_, err := s.SetClipboard(testContext(t), display.SetClipboardIn{Text: greeting})
	must(t, err)
	s.do(t, `{"action_type":"HOTKEY","keys":["CTRL","A"]}`, `{"action_type":"PRESS","key":"delete"}`,
		`{"action_type":"HOTKEY","keys":["ctrl","v"]}`)
	s.awaitText(t, greeting)
}

// testKeys presses every named key and checks the name that the page receives.
func testKeys(t *testing.T, s *stage) {
	x, y := s.at(t, "pad")
	s.do(t, fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, x, y))
	s.take(t, "click")
	names := append(x11.KeyNames(), "a", "Z", "5", "$", "ü", "世", "🎉", " ")
	for _, name := range names {
		want, ok := pageKeys[name]
		digit, keypad := strings.CutPrefix(name, "num")
		switch {
		case ok:
		case keypad && len(digit) == 1:
			want = digit
		case strings.HasPrefix(name, "f1") && len(name) == 3 && name > "f12" || strings.HasPrefix(name, "f2") && len(name) == 3:
			want = "?"
		default:
			want = name
		}
		s.do(t, fmt.Sprintf(`{"action_type":"PRESS","key":%q}`, name))
		events := s.take(t, "keydown", "keyup")
		found := false
		for _, e := range events {
			found = found || e.Type == "keydown" && (want == "?" || strings.EqualFold(e.Key, want))
		}
		if !found {
			t.Errorf("%s: the page recorded %+v, want %q", name, events, want)
		}
		if strings.HasSuffix(name, "lock") { // restore its state
			s.do(t, fmt.Sprintf(`{"action_type":"PRESS","key":%q}`, name))
			s.take(t, "keyup")
		}
	}
	// A viewer may have turned the lock off.
	s.do(t, `{"action_type":"PRESS","key":"numlock"}`)
	s.take(t, "keyup")
	s.do(t, `{"action_type":"PRESS","key":"num5"}`)
	s.await(t, "the keypad's digit without the lock", func(e event) bool { return e.Type == "keydown" && e.Key == "5" && e.Code == "Numpad5" })
}

func testRefusals(t *testing.T, s *stage) {
	for body, want := range map[string]string{
		`{"action_type":"PRESS","key":"nokey"}`:                          "unknown key",
		`{"action_type":"HOTKEY","keys":["ctrl","nokey"]}`:               "unknown key",
		`{"action_type":"HOTKEY","keys":[]}`:                             "keys",
		`{"action_type":"FLY"}`:                                          "action_type",
		`{"action_type":"MOVE_TO","x":1}`:                                "y: Field required",
		`{"action_type":"CLICK","num_clicks":4}`:                         "num_clicks",
		`{"action_type":"CLICK","button":"side"}`:                        "button",
		`{"action_type":"TYPING","text":""}`:                             "text",
		`{"action_type":"WAIT","duration":0}`:                            "duration",
		`{"action_type":"SCROLL","dy":10000000}`:                         "limit",
		`{"action_type":"TYPING","text":"\u0001","use_clipboard":false}`: "",
	} {
		if _, err := act(testContext(t), s.Service, body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error containing %q", body, err, want)
		}
	}
	// A chord that fails midway releases all keys.
	x, y := s.at(t, "pad")
	s.do(t, fmt.Sprintf(`{"action_type":"CLICK","x":%d,"y":%d}`, x, y))
	if e := last(s.take(t, "click")); e.Ctrl {
		t.Errorf("ctrl was not released: %+v, want Ctrl false", e)
	}
}

func testWait(t *testing.T, s *stage) {
	begin := time.Now()
	s.do(t, `{"action_type":"WAIT","duration":0.05}`)
	if took := time.Since(begin); took < 50*time.Millisecond {
		t.Errorf("waited %v, want at least %v", took, 50*time.Millisecond)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := act(ctx, s.Service, `{"action_type":"WAIT","duration":1e12}`); err == nil {
		t.Error("a wait after the deadline returned no error")
	}
}

func last(events []event) event {
	if len(events) == 0 {
		return event{}
	}
	return events[len(events)-1]
}

func only(events []event, kind string) []event {
	var out []event
	for _, e := range events {
		if e.Type == kind {
			out = append(out, e)
		}
	}
	return out
}

// pageKeys are the names of keys in the page, if they differ. A question mark means that Chromium has no name for the key.
var pageKeys = map[string]string{
	"accept": "?", "add": "+", "altleft": "Alt", "altright": "Alt", "apps": "ContextMenu", "browserrefresh": "?", "browserstop": "?",
	"clear": "?", "cmd": "Meta", "command": "Meta", "ctrl": "Control", "ctrlleft": "Control", "ctrlright": "Control", "decimal": ".",
	"del": "Delete", "divide": "/", "down": "ArrowDown", "esc": "Escape", "execute": "?", "final": "?", "fn": "?", "hanguel": "HangulMode",
	"hangul": "HangulMode", "hanja": "HanjaMode", "ins": "Insert", "junja": "?", "kana": "?", "kanji": "?", "launchapp1": "?",
	"launchapp2": "?", "launchmediaselect": "LaunchMusicPlayer", "left": "ArrowLeft", "menu": "ContextMenu", "multiply": "*",
	"nexttrack": "MediaTrackNext", "option": "Alt", "optionleft": "Alt", "optionright": "Alt", "page_down": "PageDown", "page_up": "PageUp",
	"pgdn": "PageDown", "pgup": "PageUp", "playpause": "MediaPlayPause", "prevtrack": "MediaTrackPrevious", "print": "PrintScreen",
	"prntscrn": "PrintScreen", "prtsc": "PrintScreen", "prtscr": "PrintScreen", "return": "Enter", "right": "ArrowRight", "select": "?",
	"separator": "?", "shiftleft": "Shift", "shiftright": "Shift", "sleep": "Standby", "space": " ", "stop": "MediaStop", "subtract": "-",
	"super": "Meta", "up": "ArrowUp", "volumedown": "AudioVolumeDown", "volumemute": "AudioVolumeMute", "volumeup": "AudioVolumeUp",
	"win": "Meta", "winleft": "Meta", "winright": "Meta", "yen": "?", "ü": "?", "世": "?", "🎉": "?",
}
