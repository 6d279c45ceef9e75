package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/hostroot"
)

// maxUsers bounds the size of files that are read from an image.
const maxUsers = 1 << 20

// addUser adds the user of sandboxes and its home to the layer above an image. If the image has a user with that ID, the
// user keeps its name.
func (s *Store) addUser(img *Image, root string) error {
	for name, line := range map[string]string{
		"passwd": isolate.User + ":x:" + strconv.Itoa(isolate.UID) + ":" + strconv.Itoa(isolate.GID) + "::" + isolate.Home + ":/bin/sh\n",
		"group":  isolate.User + ":x:" + strconv.Itoa(isolate.GID) + ":\n",
	} {
		text := readImage(img, "etc/"+name)
		if hasID(text, isolate.UID) {
			continue
		}
		if text == "" {
			text = map[string]string{"passwd": "root:x:0:0:root:/root:/bin/sh\n", "group": "root:x:0:\n"}[name]
		} else if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		path := filepath.Join(root, "etc", name)
		if err := errors.Join(os.WriteFile(path, []byte(text+line), 0o644), setOwner(path, 0o644, s.owner(), 0)); err != nil {
			return err
		}
	}
	home := filepath.Join(root, isolate.Home)
	err := errors.Join(s.MakeFolder(filepath.Dir(home), 0), s.MakeFolder(home, isolate.UID),
		s.MakeFolder(filepath.Join(home, "workspace"), isolate.UID))
	for name, text := range hostroot.HomeFiles() {
		if readImage(img, strings.TrimPrefix(isolate.Home, "/")+"/"+name) != "" {
			continue
		}
		path := filepath.Join(home, name)
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644), setOwner(path, 0o644, s.owner(), isolate.UID))
	}
	return err
}

// readImage returns a file of an image; empty if it does not exist. It does not follow links out of the image.
func readImage(img *Image, name string) string {
	for _, layer := range img.Layers {
		root, err := os.OpenRoot(layer)
		if err != nil {
			return ""
		}
		text, found := readLayer(root, name)
		root.Close()
		if found {
			return text
		}
	}
	return ""
}

// readLayer reads a file of one layer; found reports whether the layer has an entry of that name.
func readLayer(root *os.Root, name string) (text string, found bool) {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", false
	}
	if err != nil || !info.Mode().IsRegular() {
		return "", true
	}
	f, err := root.Open(name)
	if err != nil {
		return "", true
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxUsers))
	if err != nil {
		return "", true
	}
	return string(data), true
}

// hasID reports whether a line of a file of users or groups has an ID.
func hasID(text string, id int) bool {
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 2 && f[2] == strconv.Itoa(id) {
			return true
		}
	}
	return false
}
