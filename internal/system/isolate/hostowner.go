package isolate

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate/internal/protocol"
)

// systemGroups is the number of groups of the host that are mapped in its program trees:
// those of the system. Folders such as /usr/local belong to one, and a file whose group
// is not mapped cannot be changed inside.
const systemGroups = 1000

// openOwners returns a user namespace in which only root owns anything. In a mount that
// translates owners with it, files of all other users of the host belong to the user nobody,
// not to the user inside with the same number. The namespace exists as long as the file is
// open or such a mount exists.
func openOwners(exe *os.File, ids IDs) (_ *os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	// A traced child stops before its first instruction; its tracer is a thread. If that thread is
	// killed, the child must end, too: the host's init would become its tracer and never resume it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p, err := os.StartProcess("/proc/self/fd/3", []string{protocol.InitName}, &os.ProcAttr{Dir: "/", Env: []string{},
		Files: []*os.File{null, null, null, exe},
		Sys: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_VM | unix.CLONE_VFORK, Ptrace: true,
			Pdeathsig: syscall.SIGKILL, Setsid: true}})
	if err != nil {
		return nil, fmt.Errorf("isolate: create a user namespace: %w", err)
	}
	defer func() {
		p.Kill()
		_, werr := p.Wait()
		err = errors.Join(err, werr)
	}()
	for name, text := range map[string]string{
		"uid_map": fmt.Sprintf("0 %d 1\n", ids.Base), "gid_map": fmt.Sprintf("0 %d %d\n", ids.Base, min(systemGroups, ids.Count)),
	} {
		if err := os.WriteFile(fmt.Sprintf("/proc/%d/%s", p.Pid, name), []byte(text), 0); err != nil {
			return nil, fmt.Errorf("isolate: map the owners of host files: %w", err)
		}
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", p.Pid))
	if err != nil {
		return nil, fmt.Errorf("isolate: open a user namespace: %w", err)
	}
	return ns, nil
}
