package page_test

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/page/internal/capture"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
)

// BenchmarkEvaluate is one round trip to a page, with everything around it.
func BenchmarkEvaluate(b *testing.B) {
	r := newFixture(b)
	r.show(b, `<p>text`)
	for b.Loop() {
		_, err := r.Evaluate(ctx(b), content.EvaluateIn{Expression: "6 * 7"})
		must(b, err)
	}
}

// BenchmarkClick finds a button, waits until it can be clicked, and clicks it.
func BenchmarkClick(b *testing.B) {
	r := newFixture(b)
	r.show(b, `<button onclick="this.textContent++">0</button>`)
	for b.Loop() {
		_, err := r.Click(ctx(b), click("button"))
		must(b, err)
	}
}

// BenchmarkScreenshot transfers a large reply.
func BenchmarkScreenshot(b *testing.B) {
	r := newFixture(b)
	r.show(b, `<body style="background: repeating-linear-gradient(45deg, red, blue 3px)">`)
	for b.Loop() {
		_, err := r.Screenshot(ctx(b), capture.ScreenshotIn{Format: "png"})
		must(b, err)
	}
}
