package page

import (
	"os"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestCorpus runs every step of the corpus by playwright-core and by our operation, and compares what the pages have recorded.
// REPEAT makes our side run more often.
func TestCorpus(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "Xtigervnc", "openbox")
	runStory(t, "corpus/run.mjs", "URL="+serve(t), "REPEAT="+os.Getenv("REPEAT"))
}
