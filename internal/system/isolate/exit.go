package isolate

import (
	"encoding/json"
	"io"
	"os"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
)

// Exit is how the program of a sandbox ended.
type Exit = protocol.Exit

// maxExit bounds what is read of Config.Exit.
const maxExit = 4 << 10

// ReadExit reads what init wrote to Config.Exit; ok is false if init was killed before it could write.
func ReadExit(path string) (e Exit, ok bool) {
	f, err := os.Open(path)
	if err != nil {
		return Exit{}, false
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxExit))
	if err != nil || len(data) == 0 {
		return Exit{}, false
	}
	if json.Unmarshal(data, &e) != nil {
		e = Exit{Error: "init failed: " + string(data)}
	}
	return e, true
}
