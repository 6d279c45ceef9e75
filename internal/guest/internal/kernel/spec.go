package kernel

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
)

// connectionFile is what a specification writes where the file's name belongs.
const connectionFile = "{connection_file}"

// Spec says how to start a kernel of one kind.
type Spec struct {
	Name        string // as in "python3"
	DisplayName string
	Language    string
	Argv        []string // Argv[0] is an absolute path
	Env         map[string]string
	// InterruptMode is "signal" or "message".
	InterruptMode string
	Dir           string // folder of the specification; empty when we made it up
}

// ipykernel tells whether the kernel takes ipykernel's options.
func (s Spec) ipykernel() bool {
	return slices.ContainsFunc(s.Argv, func(a string) bool { return a == "ipykernel_launcher" || a == "ipykernel" })
}

// command is the argv for a connection file.
func (s Spec) command(file string) []string {
	replace := strings.NewReplacer(connectionFile, file, "{resource_dir}", s.Dir)
	argv := make([]string, 0, len(s.Argv)+3)
	for _, a := range s.Argv {
		argv = append(argv, replace.Replace(a))
	}
	if s.ipykernel() {
		argv = append(argv,
			"--InteractiveShell.colors=NoColor",
			// A history file would be one database that all kernels write to.
			"--HistoryManager.hist_file=:memory:",
			// The bootstrap does this better.
			"--IPKernelApp.capture_fd_output=False",
			// Half a millisecond in every cell, for clients that miss outputs.
			"--Kernel._execute_sleep=0",
		)
	}
	return argv
}

// environment adds to base what the specification wants, in which ${NAME} stands
// for base's value, and what every kernel needs.
func (s Spec) environment(base []string) []string {
	env := slices.Clone(base)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := os.Expand(s.Env[name], func(v string) string { return environ.Get(base, v) })
		env = environ.Set(env, name, value)
	}
	// ipykernel ends itself when this process is no longer its parent.
	env = environ.Set(env, "JPY_PARENT_PID", strconv.Itoa(os.Getpid()))
	if environ.Get(env, "PYDEVD_DISABLE_FILE_VALIDATION") == "" {
		// Else the debugger, which is loaded but not used, complains.
		env = environ.Set(env, "PYDEVD_DISABLE_FILE_VALIDATION", "1")
	}
	return env
}

// inVenv makes programs that the kernel starts by name come from the venv as well.
func (s Spec) inVenv(venv string) Spec {
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env["VIRTUAL_ENV"] = venv
	s.Env["PATH"] = filepath.Join(venv, "bin") + string(os.PathListSeparator) + "${PATH}"
	return s
}
