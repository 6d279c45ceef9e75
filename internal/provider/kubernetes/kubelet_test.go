//go:build linux

package kubernetes_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// podShim is the argument with which the tests start themselves to become a container.
const podShim = "pod-shim"

const (
	tinyImage     = "cove-test/tiny:1"
	programsImage = "cove-test/programs:1"
	programsDir   = "/opt/programs"
)

// kubelet runs Pods as processes in separate namespaces, with the machine's programs as their
// image. Their addresses are on the loopback, so that nothing of the machine's network changes.
type kubelet struct {
	t        testing.TB
	api      *apiServer
	dir      string
	programs string // the folder of the programs image
	target   string // where that has them

	// routed says that Pods have a route to the outside, and that their runtime filters system calls.
	routed bool

	mu     sync.Mutex
	full   bool          // there is no room for another Pod
	late   chan struct{} // if it is not nil, what runs is reported when it is closed
	grace  time.Duration // of the Pod that was stopped last
	freed  chan struct{}
	pods   map[string]*running
	nextIP int
	work   sync.WaitGroup
	starts chan func() // run on one thread until the process exits
	closed bool
}

// running is a Pod on the node.
type running struct {
	kubelet *kubelet
	name    string
	spec    doc
	dir     string
	log     string
	end     chan struct{} // closed when it is to end
	once    sync.Once

	mu    sync.Mutex
	grace time.Duration
	pid   int // of the container that runs, 0 if none does
	ip    string
	init  []any // statuses
	main  []any
}

func newKubelet(t testing.TB, api *apiServer, programs map[string]string) *kubelet {
	k := &kubelet{t: t, api: api, dir: t.TempDir(), pods: map[string]*running{}, freed: make(chan struct{}), nextIP: os.Getpid() % 20000}
	k.starts, k.target = make(chan func()), programsDir
	go func() {
		runtime.LockOSThread() // the kernel kills its processes when it ends
		for start := range k.starts {
			start()
		}
	}()
	k.programs = filepath.Join(k.dir, "image")
	err := os.MkdirAll(k.programs, 0o755)
	for name, source := range programs {
		err = errors.Join(err, os.Link(source, filepath.Join(k.programs, name)))
	}
	if err := errors.Join(err, os.Chmod(filepath.Dir(k.dir), 0o755), os.Chmod(k.dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return k
}

// close ends all Pods.
func (k *kubelet) close() {
	k.mu.Lock()
	k.closed = true
	for _, r := range k.pods {
		r.stop(0)
	}
	k.mu.Unlock()
	k.work.Wait()
	close(k.starts)
}

// installer puts the programs where the hub's own image has them.
func (k *kubelet) installer(t testing.TB) {
	t.Helper()
	k.target = "/usr/local/lib/cove"
}

// reportLater makes the node run Pods without saying so, until release.
func (k *kubelet) reportLater() (release func()) {
	late := make(chan struct{})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.late = late
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.late = nil
		close(late)
	}
}

// lastGrace returns the grace period of the last stopped Pod.
func (k *kubelet) lastGrace() time.Duration {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.grace
}

// setFull makes the scheduler find no room.
func (k *kubelet) setFull(full bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.full && !full {
		close(k.freed)
		k.freed = make(chan struct{})
	}
	k.full = full
}

// run is called with the lock of the API server.
func (k *kubelet) run(pod doc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return
	}
	name := metaOf(pod)["name"].(string)
	r := &running{kubelet: k, name: name, spec: pod["spec"].(doc), end: make(chan struct{}), dir: filepath.Join(k.dir, "pods", name)}
	r.log = filepath.Join(k.dir, name+".log")
	k.pods[name] = r
	k.work.Go(func() {
		err := r.live(k.full)
		if err != nil {
			k.t.Errorf("Pod %s: %v", name, err)
		}
		<-r.end
		os.RemoveAll(r.dir)
		os.Remove(r.log)
		k.mu.Lock()
		delete(k.pods, name)
		k.mu.Unlock()
		k.api.confirmEnd(name)
	})
}

// kill is called with the lock of the API server.
func (k *kubelet) kill(name string, grace time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r := k.pods[name]; r != nil && r.stop(grace) {
		k.grace = grace
	}
}

// stop reports whether this call stopped it.
func (r *running) stop(grace time.Duration) (first bool) {
	r.mu.Lock()
	r.grace = grace
	r.mu.Unlock()
	r.once.Do(func() { close(r.end); first = true })
	return first
}

// fail makes the container end as the kernel would.
func (k *kubelet) fail(name string) {
	k.mu.Lock()
	r := k.pods[name]
	k.mu.Unlock()
	if r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.pid != 0 {
			syscall.Kill(r.pid, syscall.SIGKILL)
		}
	}
}

// live takes the Pod through its life. It returns when its containers have ended.
func (r *running) live(full bool) error {
	for full {
		r.tell("Pending", doc{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
			"message": "0/1 nodes are available: 1 Insufficient memory."})
		r.kubelet.mu.Lock()
		full = r.kubelet.full
		freed := r.kubelet.freed
		r.kubelet.mu.Unlock()
		if !full {
			break
		}
		select {
		case <-freed:
			full = false
		case <-r.end:
			return nil
		}
	}
	for _, kind := range []string{"initContainers", "containers"} {
		for _, c := range r.spec[kind].([]any) {
			if image := c.(doc)["image"]; image != tinyImage && image != programsImage {
				r.note(kind, c.(doc), doc{"waiting": doc{"reason": "ErrImagePull", "message": fmt.Sprintf("%v: not found", image)}})
				r.tell("Pending", nil)
				return nil
			}
		}
	}
	binds, err := r.volumes()
	if err != nil {
		return err
	}
	for _, c := range r.spec["initContainers"].([]any) {
		code, err := r.runContainer("initContainers", c.(doc), binds, false)
		if err != nil {
			return err
		}
		if code != 0 {
			r.tell("Failed", nil)
			return nil
		}
	}
	code, err := r.runContainer("containers", r.spec["containers"].([]any)[0].(doc), binds, true)
	if err == nil {
		r.tell(map[bool]string{true: "Succeeded", false: "Failed"}[code == 0], nil)
	}
	return err
}

// note sets the status of a container.
func (r *running) note(kind string, c, state doc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := []any{doc{"name": c["name"], "state": state}}
	if kind == "initContainers" {
		r.init = all
	} else {
		r.main = all
	}
}

func (r *running) tell(phase string, condition doc) {
	r.mu.Lock()
	status := doc{"phase": phase, "podIP": r.ip, "initContainerStatuses": r.init, "containerStatuses": r.main}
	if condition != nil {
		status["conditions"] = []any{condition}
	}
	r.mu.Unlock()
	r.kubelet.api.setStatus("pods", r.name, status)
}

// volumes prepares the volumes of the Pod.
func (r *running) volumes() (map[string]string, error) {
	binds := map[string]string{}
	for _, v := range r.spec["volumes"].([]any) {
		volume := v.(doc)
		name := volume["name"].(string)
		dir := filepath.Join(r.dir, name)
		if c, ok := volume["persistentVolumeClaim"].(doc); ok {
			claim := c["claimName"].(string)
			if _, err := r.kubelet.api.get("persistentvolumeclaims", claim); err != nil {
				return nil, err
			}
			dir = r.kubelet.folder("claims", claim)
		}
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return nil, err
		}
		if err := os.Chmod(dir, 0o777); err != nil { // as fsGroup does, in effect
			return nil, err
		}
		binds[name] = dir
		source, ok := volume["secret"].(doc)
		if !ok {
			continue
		}
		kept, err := r.kubelet.api.get("secrets", source["secretName"].(string))
		if err != nil {
			return nil, err
		}
		for _, item := range source["items"].([]any) {
			text, _ := kept["data"].(doc)[item.(doc)["key"].(string)].(string)
			data, err := base64.StdEncoding.DecodeString(text)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, item.(doc)["path"].(string)), data, 0o644)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return binds, nil
}

// shim is the configuration of the container process.
type shim struct {
	Root     string
	Hostname string
	Binds    []bind
	Command  []string
	UID      int
	Sysctls  [][2]string
	Resolver string
	Routed   bool
}

type bind struct {
	Source, Target string
	ReadOnly       bool
}

// planContainer returns the configuration of the shim of a container.
func (r *running) planContainer(c doc, binds map[string]string) shim {
	plan := shim{Root: filepath.Join(r.dir, "root"), UID: 1000}
	plan.Hostname, _ = r.spec["hostname"].(string)
	if user, ok := c["securityContext"].(doc)["runAsUser"].(float64); ok {
		plan.UID = int(user)
	}
	security := r.spec["securityContext"].(doc)
	for _, o := range security["sysctls"].([]any) {
		plan.Sysctls = append(plan.Sysctls, [2]string{o.(doc)["name"].(string), o.(doc)["value"].(string)})
	}
	plan.Resolver, plan.Routed = r.spec["dnsConfig"].(doc)["nameservers"].([]any)[0].(string), r.kubelet.routed
	for _, word := range c["command"].([]any) {
		plan.Command = append(plan.Command, word.(string))
	}
	if c["image"] == programsImage {
		plan.Binds = append(plan.Binds, bind{r.kubelet.programs, r.kubelet.target, true})
	}
	for _, m := range c["volumeMounts"].([]any) {
		readOnly, _ := m.(doc)["readOnly"].(bool)
		plan.Binds = append(plan.Binds, bind{binds[m.(doc)["name"].(string)], m.(doc)["mountPath"].(string), readOnly})
	}
	return plan
}

// runContainer runs a container to its end, and returns its exit code.
func (r *running) runContainer(kind string, c doc, binds map[string]string, serve bool) (int, error) {
	plan := r.planContainer(c, binds)
	if err := os.MkdirAll(plan.Root, 0o755); err != nil {
		return 0, err
	}
	todo, err := json.Marshal(plan)
	if err != nil {
		return 0, err
	}
	out, err := os.OpenFile(r.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return 0, err
	}
	defer out.Close()
	cmd := exec.Command("/proc/self/exe", podShim)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "FROM=image", "KUBERNETES_SERVICE_HOST=10.0.0.1"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(todo), out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID |
		unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC}
	started := make(chan error)
	r.kubelet.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	r.kubelet.work.Go(func() {
		select {
		case <-ended:
			return
		case <-r.end:
		}
		r.mu.Lock()
		grace := r.grace
		r.mu.Unlock()
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(grace):
			cmd.Process.Kill()
		}
	})
	r.setPID(cmd.Process.Pid)
	var stop func()
	if serve {
		stop = r.publish()
		r.kubelet.mu.Lock()
		late := r.kubelet.late
		r.kubelet.mu.Unlock()
		if late != nil {
			r.tell("Pending", nil)
			select {
			case <-late:
			case <-r.end:
			}
		}
		r.note(kind, c, doc{"running": doc{}})
		r.tell("Running", nil)
	}
	cmd.Wait()
	close(ended)
	r.setPID(0)
	if stop != nil {
		stop()
	}
	if b, _ := os.ReadFile(r.log); len(b) > 0 {
		fmt.Fprintln(os.Stderr, "LOG", string(b))
	}
	code := cmd.ProcessState.ExitCode()
	if w := cmd.ProcessState.Sys().(syscall.WaitStatus); w.Signaled() {
		code = 128 + int(w.Signal())
	}
	r.note(kind, c, doc{"terminated": doc{"exitCode": code, "reason": map[bool]string{true: "Completed", false: "Error"}[code == 0]}})
	return code, nil
}

func (r *running) setPID(pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pid = pid
}

// publish makes the port of the tunnel reachable at an address of the Pod, until stop.
func (r *running) publish() (stop func()) {
	k := r.kubelet
	var l net.Listener
	for range 1000 {
		k.mu.Lock()
		k.nextIP++
		ip := fmt.Sprintf("127.77.%d.%d", k.nextIP/250%250, 1+k.nextIP%250)
		k.mu.Unlock()
		var err error
		if l, err = net.Listen("tcp", ip+":7443"); err == nil {
			r.mu.Lock()
			r.ip = ip
			r.mu.Unlock()
			break
		}
	}
	if l == nil {
		k.t.Error("no address is free")
		return func() {}
	}
	var conns sync.Map
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Store(c, true)
			work.Go(func() {
				defer conns.Delete(c)
				defer c.Close()
				inside, err := k.dial(r.name, 7443)
				if err != nil {
					return
				}
				defer inside.Close()
				conns.Store(inside, true)
				defer conns.Delete(inside)
				done := make(chan struct{})
				go func() { defer close(done); io.Copy(inside, c); inside.(*net.TCPConn).CloseWrite() }()
				io.Copy(c, inside)
				c.(*net.TCPConn).CloseWrite()
				<-done
			})
		}
	})
	return func() {
		l.Close()
		conns.Range(func(c, _ any) bool { c.(net.Conn).Close(); return true })
		work.Wait()
	}
}

// dial connects to a port on the loopback of a Pod, from inside the Pod's network namespace.
func (k *kubelet) dial(name string, port int) (conn net.Conn, err error) {
	k.mu.Lock()
	r := k.pods[name]
	k.mu.Unlock()
	if r == nil {
		return nil, errors.New("no such Pod")
	}
	r.mu.Lock()
	pid := r.pid
	r.mu.Unlock()
	if pid == 0 {
		return nil, errors.New("the Pod has ended")
	}
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with us
		if err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return
		}
		// By hand: a dialer may use other threads.
		var fd int
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return
		}
		f := os.NewFile(uintptr(fd), "inside")
		defer f.Close()
		if err = unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
			conn, err = net.FileConn(f)
		}
	}()
	<-done
	return conn, err
}

func (k *kubelet) serveLog(w http.ResponseWriter, name string) {
	k.mu.Lock()
	r := k.pods[name]
	k.mu.Unlock()
	if r == nil {
		refuse(w, http.StatusNotFound, "no such Pod")
		return
	}
	r.mu.Lock()
	begun := len(r.main) > 0
	r.mu.Unlock()
	if !begun {
		refuse(w, http.StatusBadRequest, "container is waiting to start: PodInitializing")
		return
	}
	data, _ := os.ReadFile(r.log)
	w.Write(data)
}

// becomeContainer builds the root of a container and becomes its program.
func becomeContainer() error {
	runtime.LockOSThread()
	var plan shim
	if err := json.NewDecoder(os.Stdin).Decode(&plan); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", plan.Root, "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	binds := []bind{{"/dev", "/dev", false}}
	for _, dir := range []string{"/usr", "/bin", "/lib", "/lib64", "/sbin"} {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			binds = append(binds, bind{dir, dir, true})
		}
	}
	for _, b := range append(binds, plan.Binds...) {
		target := filepath.Join(plan.Root, b.Target)
		if b.Target == "/dev/shm" {
			continue // of the machine; nothing uses it
		}
		if strings.HasPrefix(b.Target, "/usr/") { // read-only: hide the content
			if err := unix.Mount("tmpfs", filepath.Dir(target), "tmpfs", 0, "mode=0755"); err != nil {
				return err
			}
		}
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(b.Source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return fmt.Errorf("mount %s: %w", b.Target, err)
		}
		if b.ReadOnly {
			if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
				return err
			}
		}
	}
	for name, mode := range map[string]os.FileMode{"proc": 0o755, "tmp": 0o777, "etc": 0o755} {
		dir := filepath.Join(plan.Root, name)
		if err := errors.Join(os.MkdirAll(dir, mode), os.Chmod(dir, mode)); err != nil {
			return err
		}
	}
	passwd := "root:x:0:0::/root:/bin/sh\ngem:x:1000:1000::/home/gem:/bin/sh\n"
	if err := errors.Join(os.WriteFile(filepath.Join(plan.Root, "etc/passwd"), []byte(passwd), 0o644), plan.connect(),
		unix.Mount("proc", filepath.Join(plan.Root, "proc"), "proc", 0, ""),
		unix.Sethostname([]byte(plan.Hostname)), raiseLoopback(), unix.Chroot(plan.Root), unix.Chdir("/")); err != nil {
		return err
	}
	if plan.UID != 0 {
		if err := errors.Join(syscall.Setgroups([]int{1000}), syscall.Setgid(1000), syscall.Setuid(plan.UID),
			unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
			unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0)); err != nil { // which another user has not
			return err
		}
	}
	if plan.Routed {
		if err := runtimeFilter(); err != nil {
			return err
		}
	}
	return syscall.Exec(plan.Command[0], plan.Command, os.Environ())
}

// connect configures the network of a container.
func (s *shim) connect() error {
	if err := os.WriteFile(filepath.Join(s.Root, "etc/resolv.conf"), []byte("nameserver "+s.Resolver+"\n"), 0o644); err != nil {
		return err
	}
	for _, o := range s.Sysctls {
		if err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(o[0], ".", "/"), []byte(o[1]), 0o644); err != nil {
			return err
		}
	}
	if !s.Routed {
		return nil
	}
	ip := exec.Command("/sbin/ip", "-batch", "-")
	ip.Stdin = strings.NewReader("" +
		"link add eth0 type veth peer name eth1\nlink set eth1 up\n" +
		"addr add 10.77.0.2/24 dev eth0\nlink set eth0 up\nroute add default via 10.77.0.1\n")
	if out, err := ip.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	// The names that packages of the machine's programs need.
	for _, name := range []string{"alternatives", "chromium.d", "java-21-openjdk", "java-17-openjdk", "ssl"} {
		from, to := filepath.Join("/etc", name), filepath.Join(s.Root, "etc", name)
		if _, err := os.Stat(from); err == nil {
			if err := errors.Join(os.Mkdir(to, 0o755), unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, "")); err != nil {
				return err
			}
		}
	}
	return nil
}

// runtimeFilter refuses the calls that container runtimes refuse without CAP_SYS_PTRACE.
func runtimeFilter() error {
	refuse := unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PIDFD_GETFD, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_PROCESS_VM_READV, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	list := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	return unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&list)), 0, 0)
}

// raiseLoopback brings up the loopback of a new network.
func raiseLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req)
}
