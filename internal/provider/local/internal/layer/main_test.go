package layer

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
