package cluster

import (
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

//go:embed rootfs.sh
var rootfsScript string

// The images of deploy/Dockerfile.
const (
	SlimImage = "cove-sandbox:slim"
	FullImage = "cove-sandbox:full"
	HubImage  = "cove-hub:latest"
)

// Folders of the recipes of components.
const recipes = "internal/guest/workbench/recipe/"

// collectRecipes returns a folder with the recipes for the base images.
func collectRecipes(t testing.TB, root string) string {
	t.Helper()
	install := t.TempDir()
	for name, from := range map[string]string{
		"install.sh": "deploy/install.sh", "packages/slim": "deploy/packages/slim",
		"packages/full": "deploy/packages/full", "requirements.txt": "internal/app/cove/requirements.txt",
		"recipe/code-server.sh": recipes + "code-server.sh", "recipe/jupyterlab.sh": recipes + "jupyterlab.sh",
	} {
		copyFile(t, filepath.Join(root, from), filepath.Join(install, name))
	}
	return install
}

// ImportSlim imports the base of SlimImage under its name, without the programs, which a hub adds.
func (e *Engine) ImportSlim(t testing.TB, root string) {
	t.Helper()
	b := e.importBase(t, collectRecipes(t, root), "slim", base{}, "")
	e.Run(t, nil, "tag", b.ref, SlimImage)
}

// BuildImages builds the images from the Dockerfile, on base images with the packages. Root is the folder of the module,
// programs the folder of the built programs.
func (e *Engine) BuildImages(t testing.TB, root, programs string) {
	t.Helper()
	install := collectRecipes(t, root)
	slim := e.importBase(t, install, "slim", base{}, "")
	full := e.importBase(t, install, "full", slim, testenv.NeedFile(t, filepath.Join(root, ".tools/components")))
	dir := t.TempDir()
	for _, name := range []string{
		"deploy/Dockerfile", "deploy/install.sh", "deploy/entrypoint.sh", "deploy/packages/slim",
		"deploy/packages/full", "internal/app/cove/requirements.txt",
		recipes + "code-server.sh", recipes + "jupyterlab.sh",
	} {
		copyFile(t, filepath.Join(root, name), filepath.Join(dir, name))
	}
	for _, name := range []string{"aio", "aio-markdown", "cove", "cove-container"} {
		copyFile(t, filepath.Join(programs, name), filepath.Join(dir, "bin", name))
	}
	for _, b := range []struct{ target, image, from string }{{"slim", SlimImage, slim.ref},
		{"hub", HubImage, slim.ref}, {"full", FullImage, full.ref}} {
		e.Run(t, nil, "build", "-q", "-f", filepath.Join(dir, "deploy/Dockerfile"), "--target", b.target,
			"--build-arg", "BASE="+b.from, "--build-arg", "PROGRAMS=prebuilt", "-t", b.image, dir)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(to), 0o755)
	}
	if err == nil {
		err = os.WriteFile(to, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// base is a base image: Debian with the packages of an image, as an archive and as an image of the engine.
type base struct{ tar, ref string }

// importBase imports a base image, which is built once and cached. From is its parent; components is a folder with the
// downloads of the recipes.
func (e *Engine) importBase(t testing.TB, install, target string, from base, components string) base {
	t.Helper()
	sum := sha256.New()
	fmt.Fprintln(sum, rootfsScript, from.ref)
	used := []string{"install.sh", "packages/" + target}
	if target == "full" {
		used = append(used, "requirements.txt", "recipe/code-server.sh", "recipe/jupyterlab.sh")
	}
	for _, name := range used {
		data, err := os.ReadFile(filepath.Join(install, name))
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(data)
	}
	key := target + "-" + hex.EncodeToString(sum.Sum(nil)[:6])
	b := base{tar: filepath.Join(filepath.Dir(e.Dir), "debian-"+key+".tar"), ref: "cove-base:" + key}
	if strings.TrimSpace(e.Run(t, nil, "images", "-q", b.ref)) != "" {
		return b
	}
	unlock, err := lockFile(b.tar + ".lock") // several engines may want it at the same time
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := os.Stat(b.tar); err != nil {
		testenv.Need(t, "debootstrap")
		args := []string{"-c", rootfsScript, "rootfs.sh", b.tar, install, target}
		if from.tar != "" {
			args = append(args, from.tar, components)
		}
		if out, err := exec.Command("bash", args...).CombinedOutput(); err != nil {
			testenv.Lack(t, fmt.Sprintf("no base image, because Debian cannot be installed from here: %v: %s", err, out[max(0, len(out)-500):]))
		}
	}
	f, err := os.Open(b.tar)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e.Run(t, f, "import", "-", b.ref)
	return b
}

// lockFile locks a file, and waits until it is unlocked.
func lockFile(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

// Import imports the images of an archive in the format of docker save into the node.
func (k *Kubernetes) Import(t testing.TB, archive string) {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := k.ctr(f, "-n", "k8s.io", "images", "import", "-"); err != nil {
		t.Fatal(err)
	}
}

// Await calls ok until it returns true. Its timeout allows for Pods on a busy machine.
func (k *Kubernetes) Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	k.wait(t, what, ok)
}
