package archive

import "os"

// openFlags are none: there are no FIFOs in folders.
const openFlags = 0

// checkReadable reports whether a file can be opened.
func checkReadable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}
