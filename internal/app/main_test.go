package app

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// TestMain is also the guard of the processes that the tests start: a server starts its own
// program for that, which would otherwise run the tests again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	// The clock of regexp2 ends by itself some time after the last search.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}
