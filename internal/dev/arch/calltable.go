package arch

// calls lists functions and constants that only some packages may use.
var calls = []Call{
	{"process", "os.StartProcess", []string{"internal/system/isolate"}, startReason},
	{"process", "syscall.ForkExec", []string{
		"internal/system/isolate/initprocess", "internal/system/proc", "internal/system/sudo",
	}, startReason},
	{"process", "syscall.Exec", []string{"internal/system/proc", "internal/system/sudo"}, startReason},
	{"process", "syscall.SYS_CLONE*", []string{"internal/system/seccomp"}, startReason}, // the filter names them
	{"process", "syscall.StartProcess syscall.CreateProcess* syscall.SYS_EXECVE* syscall.SYS_FORK syscall.SYS_VFORK", nil, startReason},

	{"raw-syscall", "syscall.Syscall* syscall.RawSyscall* syscall.AllThreadsSyscall*", []string{
		"internal/guest/internal/pty", "internal/provider/local/internal/layer",
		"internal/provider/local/internal/tree", "internal/system/disposition", "internal/system/isolate/initprocess",
		"internal/system/referee", "internal/system/seccomp",
		"internal/system/isolate/internal/thread",
	}, "a system call by number can start a process unnoticed: use a function of golang.org/x/sys/unix"},

	{"environment", "os.Environ", []string{
		"internal/config", "internal/system/containerinit", "internal/system/sudo",
	}, environReason},
	{"environment", "os.Getenv", []string{"internal/config", "internal/system/sudo"}, environReason},
	{"environment", "os.UserConfigDir", []string{"internal/config"}, environReason},
	{"environment", "os/user.Current", []string{"internal/app"}, environReason}, // USER, for a user without an entry
	{"environment", "os.TempDir os.CreateTemp() os.MkdirTemp()", []string{ // TMPDIR
		"internal/guest/convert", "internal/guest/internal/document", "internal/guest/internal/kernel", "internal/guest/node",
		"internal/guest/page/internal/content", "internal/guest/workbench", "internal/surface/rest",
	}, "TMPDIR decides where the file is: use a folder of the settings"},
	{"environment", "os.LookupEnv os.ExpandEnv os.Setenv os.Unsetenv os.Clearenv os.UserCacheDir os.UserHomeDir", nil, environReason},
	{"environment", "syscall.Getenv syscall.Environ syscall.Setenv syscall.Unsetenv syscall.Clearenv", nil, environReason},
	{"environment", "net/http.ProxyFromEnvironment golang.org/x/net/http/httpproxy.FromEnvironment", []string{
		"client", "internal/app/cove", "internal/provider/kubernetes/internal/bucket", "internal/surface/cli",
	}, environReason},
	{"environment", "net/http.DefaultTransport", []string{"internal/surface/mcp/upstream"}, environReason},
	{"environment", "net/http.Client{}", []string{"internal/hub/internal/ship"}, environReason},
	{"environment", "net/http.DefaultClient net/http.Get net/http.Head net/http.Post net/http.PostForm", nil, environReason},
	{"environment", "github.com/moby/moby/client.FromEnv", []string{"internal/provider/docker"}, environReason},
}

const (
	startReason = "a process has one owner that reaps it: start it through internal/system/proc; only " +
		"internal/system/isolate starts sandboxes itself"
	environReason = "internal/config reads the environment once and passes it by value"
)
