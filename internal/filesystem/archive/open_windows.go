package archive

import "os"

// openFlags is empty, since folders have no FIFOs.
const openFlags = 0

// checkReadable reports whether a file can be opened.
func checkReadable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}
