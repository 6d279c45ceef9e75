package page

import (
	"os"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestCorpus runs every step of the corpus with playwright-core and with our operation, and compares what the pages recorded.
// REPEAT is the number of runs of our side.
func TestCorpus(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "corpus/run.mjs", "URL="+serve(t), "REPEAT="+os.Getenv("REPEAT"))
}
