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

// connectionFile is the placeholder for the file's name in a specification.
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
	Dir           string // folder of the specification; empty: it was generated
}

// ipykernel reports whether the kernel accepts ipykernel's options.
func (s Spec) ipykernel() bool {
	return slices.ContainsFunc(s.Argv, func(a string) bool { return a == "ipykernel_launcher" || a == "ipykernel" })
}

// command returns the argv for a connection file.
func (s Spec) command(file string) []string {
	replace := strings.NewReplacer(connectionFile, file, "{resource_dir}", s.Dir)
	argv := make([]string, 0, len(s.Argv)+3)
	for _, a := range s.Argv {
		argv = append(argv, replace.Replace(a))
	}
	if s.ipykernel() {
		argv = append(argv,
			"--InteractiveShell.colors=NoColor",
			// All kernels would write to one history database.
			"--HistoryManager.hist_file=:memory:",
			// The bootstrap captures these descriptors in order.
			"--IPKernelApp.capture_fd_output=False",
			// Avoids a delay of half a millisecond in every cell.
			"--Kernel._execute_sleep=0",
		)
	}
	return argv
}

// environment adds the variables of the specification to base, with ${NAME} replaced by the
// value in base, and the variables that every kernel needs.
func (s Spec) environment(base []string) []string {
	env := slices.Clone(base)
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		value := os.Expand(s.Env[name], func(v string) string { return environ.Get(base, v) })
		env = environ.Set(env, name, value)
	}
	// ipykernel exits when this process is no longer its parent.
	env = environ.Set(env, "JPY_PARENT_PID", strconv.Itoa(os.Getpid()))
	if environ.Get(env, "PYDEVD_DISABLE_FILE_VALIDATION") == "" {
		// Suppresses a warning of the debugger, which is loaded but not used.
		env = environ.Set(env, "PYDEVD_DISABLE_FILE_VALIDATION", "1")
	}
	return env
}

// inVenv adds the venv to the kernel's PATH.
func (s Spec) inVenv(venv string) Spec {
	s.Env = maps.Clone(s.Env)
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	s.Env["VIRTUAL_ENV"] = venv
	s.Env["PATH"] = filepath.Join(venv, "bin") + string(os.PathListSeparator) + "${PATH}"
	return s
}
