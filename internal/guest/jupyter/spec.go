package jupyter

import (
	"cmp"
	"context"
	"errors"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
)

// specAge is the maximum age of the list of kernels in a reply.
const specAge = 30 * time.Second

// specs caches the list of installed kernels. A search is slow, because it runs
// interpreters.
type specs struct {
	find func(context.Context) ([]kernel.Spec, error)

	searching sync.Mutex // held during a search, so that other callers wait for its result
	mu        sync.Mutex
	list      []kernel.Spec
	at        time.Time // time of the last search; zero: none
	err       error     // ErrNoPython
}

// get returns the list, which is at most as old as age.
func (c *specs) get(ctx context.Context, age time.Duration) ([]kernel.Spec, error) {
	if list, err, ok := c.fresh(age); ok {
		return list, err
	}
	c.searching.Lock()
	defer c.searching.Unlock()
	if list, err, ok := c.fresh(age); ok {
		return list, err
	}
	list, err := c.find(ctx)
	if err != nil && !errors.Is(err, kernel.ErrNoPython) {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list, c.err, c.at = list, err, time.Now()
	return list, err
}

func (c *specs) fresh(age time.Duration) ([]kernel.Spec, error, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok := !c.at.IsZero() && time.Since(c.at) < age && (c.err == nil || age <= specAge)
	return c.list, c.err, ok
}

// missing returns the error if a search found no Python kernel.
func (c *specs) missing() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// anyAge accepts every cached list.
const anyAge = 24 * 365 * time.Hour

// kernelSpec finds a kernel by name; empty: the default kernel.
func (s *Service) kernelSpec(ctx context.Context, name string) (kernel.Spec, error) {
	for _, age := range []time.Duration{anyAge, time.Second} { // it may have been installed after the search
		list, err := s.specs.get(ctx, age)
		if err != nil && (!errors.Is(err, kernel.ErrNoPython) || isPython(name)) {
			if age == anyAge && errors.Is(err, kernel.ErrNoPython) {
				continue
			}
			return kernel.Spec{}, op.Errorf(op.Unavailable, "%w", err)
		}
		if spec, ok := chooseKernel(list, name); ok {
			return spec, nil
		}
	}
	list, _ := s.specs.get(ctx, anyAge)
	return kernel.Spec{}, op.Errorf(op.NotFound, "no such kernel: %q; available: %s", name, strings.Join(kernelNames(list), ", "))
}

var pythonName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:python|python3|python3\.\d+)?$`) })

// isPython reports whether a name means the default kernel, perhaps with a version.
func isPython(name string) bool { return pythonName().MatchString(name) }

// chooseKernel finds a kernel by name. Python may also be named by its installed version. The
// default kernel is always returned under one name, so that its sessions and the pool also
// serve callers that name it by its version.
func chooseKernel(list []kernel.Spec, name string) (kernel.Spec, bool) {
	for _, spec := range list {
		if strings.EqualFold(spec.Name, name) {
			if slices.Equal(spec.Argv, list[0].Argv) && spec.Dir == list[0].Dir {
				return list[0], true
			}
			return spec, true
		}
	}
	if len(list) == 0 || !isPython(name) {
		return kernel.Spec{}, false
	}
	version := strings.TrimPrefix(name, "python")
	has := strings.TrimPrefix(list[0].DisplayName, "Python ") // as kernel.Find names it
	ok := version == "" || version == "3" || strings.HasPrefix(has+".", version+".")
	return list[0], ok
}

func kernelNames(list []kernel.Spec) []string {
	var all []string
	for _, spec := range list {
		all = append(all, spec.Name)
	}
	return all
}

// Info describes the kernels and sessions.
type Info struct {
	DefaultKernel         string       `json:"default_kernel" doc:"Default kernel; empty if there is none"`
	AvailableKernels      []string     `json:"available_kernels" doc:"Installed kernels"`
	ActiveSessions        int          `json:"active_sessions"`
	SessionTimeoutSeconds int          `json:"session_timeout_seconds" doc:"Seconds after which an idle session expires; 0 means never"`
	MaxSessions           int          `json:"max_sessions"`
	Description           string       `json:"description"`
	KernelDetection       string       `json:"kernel_detection" doc:"How the kernels were found, or why there is no Python kernel"`
	WarmKernels           int          `json:"warm_kernels" doc:"Number of kernels started in advance"`
	Kernels               []KernelInfo `json:"kernels" doc:"Details of the installed kernels"`
}

// KernelInfo describes an installed kernel.
type KernelInfo struct {
	Name          string `json:"name" doc:"Name of the kernel"`
	DisplayName   string `json:"display_name" doc:"Name for people"`
	Language      string `json:"language" doc:"Programming language"`
	InterruptMode string `json:"interrupt_mode" doc:"How a cell is interrupted: signal or message"`
}

func describeKernels(list []kernel.Spec) []KernelInfo {
	all := []KernelInfo{}
	for _, spec := range list {
		all = append(all, KernelInfo{spec.Name, spec.DisplayName, spec.Language, cmp.Or(spec.InterruptMode, "signal")})
	}
	return all
}

// Info describes the installed kernels.
func (s *Service) Info(ctx context.Context, _ op.None) (Info, error) {
	list, err := s.specs.get(ctx, specAge)
	if err != nil && !errors.Is(err, kernel.ErrNoPython) {
		return Info{}, err
	}
	i := Info{
		AvailableKernels: kernelNames(list), SessionTimeoutSeconds: int(s.Idle.Seconds()), MaxSessions: s.MaxSessions,
		Description:     "Jupyter kernels: a kernel for each call, or sessions that keep variables, with rich output as in a notebook.",
		KernelDetection: "kernel specifications in Jupyter's data folders, and Python interpreters that have ipykernel",
		WarmKernels:     s.pool.size(), Kernels: describeKernels(list),
	}
	if err != nil {
		i.KernelDetection = s.describeMissing(err)
	} else if len(list) > 0 {
		i.DefaultKernel = list[0].Name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.ActiveSessions = s.sessions.Len()
	return i, nil
}

// About returns the version of Python and details.
func (s *Service) About(ctx context.Context) (version string, details map[string]any, err error) {
	list, err := s.specs.get(ctx, specAge)
	if err != nil {
		return "", nil, op.Errorf(op.Unavailable, "%w", err)
	}
	return strings.TrimPrefix(list[0].DisplayName, "Python "), map[string]any{
		"default_kernel": list[0].Name, "available_kernels": kernelNames(list), "max_sessions": s.MaxSessions,
	}, nil
}
