package toolcatalog

import (
	"context"
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// Routes of the operations on web pages.
const (
	routeNavigate  = "POST /v1/browser/page/navigate"
	routeElements  = "GET /v1/browser/page/elements"
	routeClick     = "POST /v1/browser/page/click"
	routeHover     = "POST /v1/browser/page/hover"
	routeSelect    = "POST /v1/browser/page/select_option"
	routeFill      = "POST /v1/browser/page/fill"
	routeType      = "POST /v1/browser/page/type"
	routeKey       = "POST /v1/browser/page/press_key"
	routeScroll    = "POST /v1/browser/page/scroll"
	routeEvaluate  = "POST /v1/browser/page/evaluate"
	routeText      = "GET /v1/browser/page/text"
	routeMarkdown  = "GET /v1/browser/page/markdown"
	routePicture   = "GET /v1/browser/page/screenshot"
	routeTabs      = "GET /v1/browser/tabs"
	routeWait      = "POST /v1/browser/page/wait"
	routeDisplay   = "GET /v1/browser/screenshot"
	routeConsole   = "GET /v1/browser/page/console"
	routeDownloads = "GET /v1/browser/downloads"
)

// browser makes the tools for web pages.
type browser struct {
	routes
	album *Album // nil: pictures are not kept
}

// pageTool is a tool of the browser family.
type pageTool struct {
	op    op.Op
	title string
	core  bool
	older []string // its names in the older family
}

// pageTools returns the tools for web pages. Their results are text, and they identify elements by
// the index in the last list of elements.
func (b browser) pageTools() []pageTool {
	read := func(s op.Spec) op.Spec { s.ReadOnly = true; return s }
	var all []pageTool
	add := func(o op.Op, title string, core bool, older ...string) {
		all = append(all, pageTool{o, title, core, older})
	}
	if b.has(routeDisplay) {
		add(op.New(read(spec("browser_gui_screenshot", "Take a picture of the whole display. Positions in it "+
			"are those of browser_actions. For only the page use browser_screenshot.")),
			b.displayPicture), "View the screen", true)
	}
	if !b.has(routeNavigate, routeElements) {
		return all
	}
	add(op.New(spec("browser_navigate", `Open a web page and list its clickable elements, each with an index. `+
		`Example: {"url": "https://example.com"}`), b.navigate), "Open a page", true, "sandbox_browser_navigate")
	add(op.New(read(spec("browser_get_clickable_elements", "List the elements of the page that can be clicked or filled, "+
		"each with an index.")), b.elements), "List elements", true, "sandbox_browser_get_clickable_elements")
	add(op.New(spec("browser_click", "Click an element, given by its index in the last list or by a selector."),
		b.click), "Click", true, "sandbox_browser_element_click", "sandbox_browser_click")
	add(op.New(spec("browser_type", `Type text into an element and replace its content, or type into the focused `+
		`element. Example: {"index": 3, "text": "cats", "submit": true}`), b.typeText), "Type", true, "sandbox_browser_type")
	add(op.New(spec("browser_form_input_fill", "Fill a form field. Newer: browser_type."), b.fill), "Fill a field",
		false, "sandbox_browser_form_input_fill")
	add(op.New(spec("browser_select", "Choose an option of a list, by its value."), b.choose), "Choose an option",
		false, "sandbox_browser_element_select", "sandbox_browser_select")
	add(op.New(spec("browser_hover", "Move the pointer onto an element."), b.hover), "Hover", false,
		"sandbox_browser_element_hover", "sandbox_browser_hover")
	add(op.New(spec("browser_press_key", "Press a key on the page, such as Enter, Escape or PageDown."), b.pressKey),
		"Press a key", true, "sandbox_browser_press_key")
	add(op.New(spec("browser_scroll", "Scroll the page by pixels; negative is up. Without amount, scroll to the end."),
		b.scroll), "Scroll", true, "sandbox_browser_scroll")
	add(op.New(spec("browser_evaluate", "Run JavaScript on the page and return its value."), b.evaluate),
		"Run a script on the page", true, "sandbox_browser_evaluate")
	add(op.New(spec("browser_go_back", "Go back to the previous page."),
		b.step("POST /v1/browser/page/back", "Went back")), "Back", false, "sandbox_browser_go_back")
	add(op.New(spec("browser_go_forward", "Go forward to the next page."), b.step("POST /v1/browser/page/forward",
		"Went forward")), "Forward", false, "sandbox_browser_go_forward")
	add(op.New(read(spec("browser_get_text", "Read the text of the page.")), b.pageText), "Read the text", false, "sandbox_browser_get_text")
	add(op.New(read(spec("browser_extract", "Read the page as Markdown, with its title and links. Use it after "+
		"browser_navigate; for a page without scripts markitdown_convert is faster.")), b.markdown), "Read the page", true)
	add(op.New(read(spec("browser_get_markdown", "Read the page as Markdown. Newer: browser_extract.")), b.markdown),
		"Read as Markdown", false, "sandbox_browser_get_markdown")
	add(op.New(read(spec("browser_read_links", "List the links of the page.")), b.links), "List links", false, "sandbox_browser_read_links")
	add(op.New(spec("browser_new_tab", "Open a tab with a page."), b.newTab), "Open a tab", false, "sandbox_browser_new_tab")
	add(op.New(read(spec("browser_tab_list", "List the open tabs.")), b.tabs), "List tabs", false, "sandbox_browser_tab_list")
	add(op.New(spec("browser_switch_tab", "Activate another tab, by its index in browser_tab_list."),
		b.switchTab), "Switch tabs", false, "sandbox_browser_switch_tab")
	add(op.New(spec("browser_close_tab", "Close the active tab, or the tab with the index."), b.closeTab),
		"Close a tab", false, "sandbox_browser_close_tab")
	add(op.New(read(spec("browser_get_download_list", "List the downloads of the browser, with the paths of "+
		"the files.")), b.downloads), "List downloads", false, "sandbox_browser_get_download_list")
	add(op.New(read(spec("browser_screenshot", "Take a picture of the visible part of the web page, of all of it with full_page, or of "+
		"one element.")), b.pagePicture), "See the page", true)
	add(op.New(spec("browser_close", "Close all tabs. A blank tab remains."), b.closeAll), "Close the pages", false)
	add(op.New(read(spec("browser_vision_screen_capture", "Take a picture of the page for "+
		"browser_vision_screen_click. Newer: browser_screenshot.")), b.screenPicture), "See the page", false)
	add(op.New(spec("browser_vision_screen_click", "Click a point of the page, as in "+
		"browser_vision_screen_capture. Newer: browser_click."), b.clickScreen), "Click a point", false)
	return all
}

func (b browser) tools() []toolset.Tool {
	var all []toolset.Tool
	for _, p := range b.pageTools() {
		all = append(all, toolset.Tool{Op: p.op, Title: p.title, Server: "browser", Core: p.core, World: !p.op.ReadOnly})
	}
	return all
}

func (b browser) olderTools() []toolset.Tool {
	var all []toolset.Tool
	for _, p := range b.pageTools() {
		for _, name := range p.older {
			all = append(all, toolset.Tool{Op: p.op, Name: name, Title: p.title, Server: "browser", Older: true, World: !p.op.ReadOnly})
		}
	}
	return all
}

// navigateSeconds is the timeout for the response of a page, and then for loading it.
const navigateSeconds = 20

type urlIn struct {
	URL string `json:"url" doc:"Address of the page"`
}

func (b browser) navigate(ctx context.Context, in urlIn) (string, error) {
	if _, err := b.call(ctx, routeNavigate, map[string]any{"url": in.URL, "wait_until": "commit", "timeout": navigateSeconds}); err != nil {
		return "", err
	}
	// A page that never finishes loading can still be used.
	_, _ = b.call(ctx, routeWait, map[string]any{"type": "load", "timeout": navigateSeconds})
	list, err := b.elements(ctx, op.None{})
	return "Navigated to " + in.URL + "\n" + list, err
}

func (b browser) elements(ctx context.Context, _ op.None) (string, error) {
	out, err := b.call(ctx, routeElements, map[string]any{})
	if err != nil {
		return "", err
	}
	list, ok := out.([]any)
	if !ok {
		list = toObject(out).list("elements")
	}
	var text strings.Builder
	for i, item := range list {
		e := toObject(item)
		index := i
		if e.isSet("index") {
			index = e.number("index")
		}
		label := strings.Join(strings.Fields(e.text("text")), " ")
		for _, other := range []string{"name", "placeholder", "href"} {
			if label == "" {
				label = e.text(other)
			}
		}
		if len(label) > 120 {
			label = strings.ToValidUTF8(label[:120], "") + "…"
		}
		fmt.Fprintf(&text, "[%d]<%s>%s</%s>\n", index, e.text("tag"), label, e.text("tag"))
	}
	if text.Len() == 0 {
		return "[no clickable elements]", nil
	}
	return text.String(), nil
}

// elementIn identifies an element.
type elementIn struct {
	Index    *int    `json:"index" doc:"Index of the element in the last list"`
	Selector *string `json:"selector" doc:"Selector of the element: CSS, text=… or xpath=…"`
}

func (e elementIn) args() (map[string]any, error) {
	switch {
	case e.Index != nil:
		return map[string]any{"index": *e.Index}, nil
	case e.Selector != nil:
		return map[string]any{"selector": *e.Selector}, nil
	}
	return nil, op.Errorf(op.Invalid, "missing argument: pass index or selector")
}

// label returns the name of the element in messages.
func (e elementIn) label() string {
	if e.Index != nil {
		return fmt.Sprintf("element %d", *e.Index)
	}
	return op.Value(e.Selector)
}

func (b browser) click(ctx context.Context, in elementIn) (string, error) {
	args, err := in.args()
	if err != nil {
		return "", err
	}
	_, err = b.call(ctx, routeClick, args)
	return "Clicked " + in.label(), err
}

// resolve returns arguments with a selector, for operations that do not accept an index.
func (b browser) resolve(ctx context.Context, in elementIn) (map[string]any, error) {
	if in.Index == nil {
		return in.args()
	}
	out, err := b.call(ctx, routeElements, map[string]any{})
	if err != nil {
		return nil, err
	}
	list, _ := out.([]any)
	for _, item := range list {
		e := toObject(item)
		if e.number("index") == *in.Index {
			return map[string]any{"selector": e.text("selector")}, nil
		}
	}
	return nil, op.Errorf(op.NotFound, "no element with index %d; list the elements with browser_get_clickable_elements", *in.Index)
}

func (b browser) hover(ctx context.Context, in elementIn) (string, error) {
	args, err := in.args()
	if err != nil {
		return "", err
	}
	_, err = b.call(ctx, routeHover, args)
	return "Moved to " + in.label(), err
}

type chooseIn struct {
	elementIn
	Value string `json:"value" doc:"Value of the option"`
}

func (b browser) choose(ctx context.Context, in chooseIn) (string, error) {
	args, err := b.resolve(ctx, in.elementIn)
	if err != nil {
		return "", err
	}
	args["value"] = in.Value
	_, err = b.call(ctx, routeSelect, args)
	return "Chose " + in.Value, err
}

type typeIn struct {
	elementIn
	Text   string `json:"text" doc:"Text to type"`
	Submit bool   `json:"submit" default:"false" nullable:"true" doc:"Press Enter afterwards"`
}

func (b browser) typeText(ctx context.Context, in typeIn) (string, error) {
	var err error
	if in.Index == nil && in.Selector == nil {
		_, err = b.call(ctx, routeType, map[string]any{"text": in.Text})
	} else {
		args, _ := in.args()
		args["text"] = in.Text
		_, err = b.call(ctx, routeFill, args)
	}
	if err == nil && in.Submit {
		_, err = b.call(ctx, routeKey, map[string]any{"key": "Enter"})
	}
	return fmt.Sprintf("Typed %d characters", len([]rune(in.Text))), err
}

type fillIn struct {
	elementIn
	Value string `json:"value" doc:"Text to enter"`
	Clear bool   `json:"clear" default:"false" nullable:"true" doc:"Replace the content of the field; otherwise the text is appended"`
}

func (b browser) fill(ctx context.Context, in fillIn) (string, error) {
	args, err := in.args()
	if err != nil {
		return "", err
	}
	if in.Clear {
		args["text"] = in.Value
		_, err = b.call(ctx, routeFill, args)
	} else if _, err = b.call(ctx, routeClick, args); err == nil {
		if _, err = b.call(ctx, routeKey, map[string]any{"key": "End"}); err == nil {
			_, err = b.call(ctx, routeType, map[string]any{"text": in.Value})
		}
	}
	return "Filled " + in.label(), err
}

type keyIn struct {
	Key string `json:"key" doc:"Name of the key"`
}

func (b browser) pressKey(ctx context.Context, in keyIn) (string, error) {
	_, err := b.call(ctx, routeKey, map[string]any{"key": in.Key})
	return "Pressed " + in.Key, err
}

type scrollIn struct {
	Amount    *int   `json:"amount" alias:"y" doc:"Pixels to scroll down; negative is up. Default: to the end"`
	Direction string `json:"direction" default:"down" nullable:"true" enum:"down,up" doc:"Direction; up reverses amount"`
}

// atEnd evaluates to the scroll position of the page and whether it is the end.
const atEnd = `[Math.round(window.scrollY), window.scrollY + window.innerHeight >= document.documentElement.scrollHeight - 2]`

func (b browser) scroll(ctx context.Context, in scrollIn) (string, error) {
	var err error
	if in.Direction == "up" && in.Amount != nil {
		*in.Amount = -*in.Amount
	}
	switch {
	case in.Amount == nil && in.Direction == "up":
		_, err = b.call(ctx, routeEvaluate, map[string]any{"expression": "window.scrollTo(0, 0)"})
	case in.Amount == nil:
		_, err = b.call(ctx, routeEvaluate, map[string]any{"expression": "window.scrollTo(0, document.documentElement.scrollHeight)"})
	case *in.Amount < 0:
		_, err = b.call(ctx, routeScroll, map[string]any{"direction": "up", "amount": -*in.Amount})
	default:
		_, err = b.call(ctx, routeScroll, map[string]any{"direction": "down", "amount": *in.Amount})
	}
	if err != nil {
		return "", err
	}
	out, err := b.call(ctx, routeEvaluate, map[string]any{"expression": atEnd})
	if err != nil {
		return "Scrolled", nil //nolint:nilerr // it did scroll
	}
	text := "Scrolled"
	if state := evaluated(out); len(state) == 2 {
		text = fmt.Sprintf("Scrolled; the page is now at %v pixels", state[0])
		if end, _ := state[1].(bool); end {
			text += ", which is its end"
		}
	}
	return text, nil
}

func evaluated(out any) []any {
	if list, ok := out.([]any); ok {
		return list
	}
	return toObject(out).list("result")
}

type scriptIn struct {
	Script string `json:"script" alias:"expression" doc:"JavaScript: an expression, statements or a function"`
}

func (b browser) evaluate(ctx context.Context, in scriptIn) (string, error) {
	out, err := b.call(ctx, routeEvaluate, map[string]any{"expression": in.Script})
	if err != nil {
		return "", err
	}
	if o := toObject(out); o != nil {
		if v, ok := o["result"]; ok {
			out = v
		}
	}
	text, err := op.JSON(out)
	return "Execution result:\n" + string(text), err
}

func (b browser) step(route, said string) func(context.Context, op.None) (string, error) {
	return func(ctx context.Context, _ op.None) (string, error) {
		_, err := b.call(ctx, route, map[string]any{})
		return said, err
	}
}

func (b browser) pageText(ctx context.Context, _ op.None) (string, error) {
	out, err := b.call(ctx, routeText, map[string]any{})
	return fmt.Sprint(out), err
}

func (b browser) markdown(ctx context.Context, _ op.None) (string, error) {
	out, err := b.call(ctx, routeMarkdown, map[string]any{})
	if err != nil {
		return "", err
	}
	o := toObject(out)
	text := o.text("content")
	if title := o.text("title"); title != "" && !strings.HasPrefix(text, "# "+title) {
		text = "# " + title + "\n\n" + text
	}
	return text, nil
}

// linksOut contains the links of a page.
type linksOut struct {
	Links []link `json:"links"`
}

type link struct {
	Text string `json:"text"`
	Href string `json:"href"`
}

func (b browser) links(ctx context.Context, _ op.None) (linksOut, error) {
	out, err := b.call(ctx, "GET /v1/browser/page/links", map[string]any{})
	all, list := linksOut{[]link{}}, []any{}
	if found, ok := out.([]any); ok {
		list = found
	}
	for _, item := range list {
		o := toObject(item)
		all.Links = append(all.Links, link{o.text("text"), o.text("href")})
	}
	return all, err
}
