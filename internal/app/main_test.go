package app

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// TestMain is also the process guard of the tests. A server starts its own program as the guard,
// which would otherwise run the tests again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "guard" {
		os.Exit(proc.GuardMain(os.Stdin))
	}
	// The clock of regexp2 ends automatically some time after the last search.
	testenv.Main(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}
