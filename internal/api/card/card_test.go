package card

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHostileTexts: names, messages and addresses of sandboxes are text.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	const evil = `"><script>attacked=1</script>`
	w := httptest.NewRecorder()
	Card{Title: evil, Text: evil, Wait: 3, Links: []Link{{URL: evil, Text: evil, Main: true, Top: true}, {Text: "Try again"}},
		More: evil, Also: []Link{{URL: "../3000/", Text: "3000"}}}.Write(w, http.StatusBadGateway)
	page := w.Body.String()
	if h := w.Header(); w.Code != http.StatusBadGateway || h.Get("Refresh") != "3" ||
		!strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("got %d %v, want status 502, a refresh after 3 seconds, and a policy", w.Code, h)
	}
	if strings.Contains(page, "<script") || strings.Count(page, "&lt;script&gt;") != 7 {
		t.Errorf("got %s, want all texts escaped", page)
	}
	for _, want := range []string{`<a href="">Try again</a>`, `<a href="../3000/">3000</a>`} {
		if !strings.Contains(page, want) {
			t.Errorf("got %s, want %s in it", page, want)
		}
	}
}
