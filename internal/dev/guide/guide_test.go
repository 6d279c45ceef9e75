package guide

import (
	"bytes"
	"fmt"
	"image"
	"image/png"
	"strings"
	"testing"
	"testing/fstest"
)

// docs is a guide with a text in its first chapter.
func docs(text string) fstest.MapFS {
	tree := fstest.MapFS{}
	for _, p := range Parts {
		for _, name := range p.Chapters {
			tree[name] = &fstest.MapFile{Data: []byte("# " + name + "\n")}
		}
	}
	tree[Parts[0].Chapters[0]] = &fstest.MapFile{Data: []byte(text)}
	tree["decision.md"] = &fstest.MapFile{Data: []byte("why\n")}
	return tree
}

func TestRender(t *testing.T) {
	t.Parallel()
	page, err := Render(docs("# First & best\n\n<script>alert(1)</script>\n\n## Part\n\nSee " +
		"[ways](ways.md#the-agent), [why](../decision.md), [code](../../deploy) and " +
		"[it](https://example.com).\n\n```bash\ncurl '<b>'\n```\n\n```python\nx\n```\n\n| a |\n|:-:|\n| <img src=x onerror=alert(1)> |\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := string(page)
	for _, want := range []string{
		`<h2 id="start-title">First &amp; best</h2>`, `<li><a href="#start">First &amp; best</a>`,
		`<li><a href="#start-part">Part</a></li>`, `<h3 id="start-part">Part</h3>`,
		`See <a href="#ways-the-agent">ways</a>, why, code and <a href="https://example.com"`,
		`<figcaption>curl</figcaption><pre tabindex="0"><code>curl &#39;&lt;b&gt;&#39;`, `<figcaption>Python</figcaption>`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got a page without %s: %s", want, got)
		}
	}
	// The policy of the page forbids scripts and styles in markup, and Markdown cannot write any.
	for _, bad := range []string{"<script>", "onerror", "style=", "<b>"} {
		if strings.Contains(got, bad) {
			t.Errorf("got %s in the page: %s", bad, got)
		}
	}
}

// TestScreenshots: a page loads PNGs of docs/pictures when they come into view. Other files, and large ones, are errors.
func TestScreenshots(t *testing.T) {
	t.Parallel()
	var small bytes.Buffer
	if err := png.Encode(&small, image.NewGray(image.Rect(0, 0, 30, 20))); err != nil {
		t.Fatal(err)
	}
	with := func(target string) fstest.MapFS {
		fs := docs("# First\n\n![A \"quoted\" description](" + target + ")\n")
		fs["pictures/a.png"] = &fstest.MapFile{Data: small.Bytes()}
		fs["pictures/large.png"] = &fstest.MapFile{Data: append(small.Bytes(), make([]byte, maxPicture)...)}
		fs["pictures/text.png"] = &fstest.MapFile{Data: []byte("<svg onload=alert(1)>")}
		fs["secret.png"] = &fstest.MapFile{Data: small.Bytes()}
		return fs
	}
	page, err := Render(with("../pictures/a.png"))
	if err != nil {
		t.Fatal(err)
	}
	want := `<img src="guide/pictures/a.png" alt="A &#34;quoted&#34; description" width="30" height="20" loading="lazy">`
	if !strings.Contains(string(page), want) {
		t.Errorf("got a page without %s: %s", want, page)
	}
	got, err := Screenshots(with("../pictures/a.png"), page)
	if err != nil || len(got) != 1 || !bytes.Equal(got["a.png"], small.Bytes()) {
		t.Errorf("got screenshots %v and error %v, want a.png", got, err)
	}
	for _, name := range []string{"pictures/large.png", "pictures/text.png", "pictures/none.png", "secret.png", "pictures/a.gif"} {
		if _, err := Render(with("../" + name)); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}

// A step, a second block in a language and a block after a text are not alternatives.
func TestGroups(t *testing.T) {
	t.Parallel()
	tree := docs("# A\n\n```bash\nsudo bin/cove hub\n```\n\n```bash\ncove create a\n```\n\n```python\nx\n```\n\n" +
		"```bash\ncurl x\n```\n\n```bash\ncurl y\n```\n\n```go\nx\n```\n\nText.\n\n```typescript\nx\n```\n")
	list, err := Blocks(tree)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, b := range list {
		got = append(got, fmt.Sprint(b.Group, b.Title()))
	}
	if want := "1Shell 2cove 2Python 2curl 3curl 3Go 4TypeScript"; strings.Join(got, " ") != want {
		t.Errorf("got groups %s, want %s", strings.Join(got, " "), want)
	}
	page, err := Render(tree)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(page), `<div class="blocks">`); got != 4 {
		t.Errorf("got %d groups in the page, want 4: %s", got, page)
	}
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	missing := docs("# A\n")
	delete(missing, "errors.md")
	unlisted := docs("# A\n")
	unlisted["guide/more.md"] = &fstest.MapFile{Data: []byte("# More\n")}
	for name, c := range map[string]struct {
		tree fstest.MapFS
		want string
	}{
		"no title":    {docs("text\n"), "has no title"},
		"two titles":  {docs("# A\n\n# B\n"), "two titles"},
		"script link": {docs("# A\n\n[x](javascript:alert(1))\n"), "javascript:"},
		"broken link": {docs("# A\n\n[x](nowhere.md)\n"), "nowhere.md"},
		"missing":     {missing, "errors.md"},
		"not listed":  {unlisted, "guide/more.md is not a chapter"},
	} {
		if _, err := Render(c.tree); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q in it", name, err, c.want)
		}
	}
}

func TestBlocks(t *testing.T) {
	t.Parallel()
	list, err := Blocks(docs("# A\n\n```bash skip: needs a terminal\nvi\n```\n\n- in a list\n\n  ```python with: " +
		"e2b\n  x  # prints: 1\n  ```\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 2 || list[0].Skip != "needs a terminal" || list[0].Code != "vi\n" ||
		list[0].String() != "guide/start.md:4" || list[1].With != "e2b" || strings.Join(list[1].Wants(), " ") != "1" {
		t.Errorf("got %+v, want one that is skipped and one with e2b that prints 1", list)
	}
	if _, err := Blocks(docs("# A\n\n    code\n")); err == nil || !strings.Contains(err.Error(), "indented code") {
		t.Errorf("got error %v, want one about indented code", err)
	}
}
