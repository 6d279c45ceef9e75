package cluster_test

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// programs is the folder of the built programs.
var programs string

func TestMain(m *testing.M) {
	testenv.MainWithPrograms(m, "../..", func(dir string) { programs = dir })
}
