package jupyter

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/kernel"
	"github.com/cove-sandbox/cove/internal/op"
)

// specAge is how old the list of kernels may be that a caller is shown.
const specAge = 30 * time.Second

// specs remembers which kernels the machine has. To look takes a moment, since
// interpreters are asked.
type specs struct {
	find func(context.Context) ([]kernel.Spec, error)

	looking sync.Mutex // held while one looks, so that others wait for its answer
	mu      sync.Mutex
	list    []kernel.Spec
	at      time.Time // when it was read; zero: never
	err     error     // ErrNoPython
}

// get returns the list, not older than age.
func (c *specs) get(ctx context.Context, age time.Duration) ([]kernel.Spec, error) {
	if list, err, ok := c.fresh(age); ok {
		return list, err
	}
	c.looking.Lock()
	defer c.looking.Unlock()
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

// missing is why there is no Python kernel, if one looked and found none.
func (c *specs) missing() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// ever is an age for those who only want what was seen once to be there.
const ever = 24 * 365 * time.Hour

// kernelSpec finds a kernel by name; empty is the default one.
func (s *Service) kernelSpec(ctx context.Context, name string) (kernel.Spec, error) {
	for _, age := range []time.Duration{ever, time.Second} { // it may have been installed since
		list, err := s.specs.get(ctx, age)
		if err != nil && (!errors.Is(err, kernel.ErrNoPython) || python(name)) {
			if age == ever && errors.Is(err, kernel.ErrNoPython) {
				continue
			}
			return kernel.Spec{}, op.Errorf(op.Unavailable, "%w", err)
		}
		if spec, ok := choose(list, name); ok {
			return spec, nil
		}
	}
	list, _ := s.specs.get(ctx, ever)
	return kernel.Spec{}, op.Errorf(op.NotFound, "there is no kernel %q; there is: %s", name, strings.Join(names(list), ", "))
}

var pythonName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:python|python3|python3\.\d+)?$`) })

// python tells whether a name means the default kernel, perhaps with a version.
func python(name string) bool { return pythonName().MatchString(name) }

// choose picks a kernel. Callers elsewhere name Python by its version, which is
// right if it is the one there is.
func choose(list []kernel.Spec, name string) (kernel.Spec, bool) {
	for _, spec := range list {
		if strings.EqualFold(spec.Name, name) {
			return spec, true
		}
	}
	if len(list) == 0 || !python(name) {
		return kernel.Spec{}, false
	}
	version := strings.TrimPrefix(name, "python")
	has := strings.TrimPrefix(list[0].DisplayName, "Python ") // as kernel.Find names it
	ok := version == "" || version == "3" || strings.HasPrefix(has+".", version+".")
	return list[0], ok
}

func names(list []kernel.Spec) []string {
	var all []string
	for _, spec := range list {
		all = append(all, spec.Name)
	}
	return all
}

// None is an input without fields.
type None struct{}

// Info tells about kernels and sessions.
type Info struct {
	DefaultKernel         string   `json:"default_kernel" doc:"Kernel of calls that name none; empty when there is none"`
	AvailableKernels      []string `json:"available_kernels" doc:"Kernels that are installed"`
	ActiveSessions        int      `json:"active_sessions"`
	SessionTimeoutSeconds int      `json:"session_timeout_seconds" doc:"Seconds that an unused session is kept; 0 for ever"`
	MaxSessions           int      `json:"max_sessions"`
	Description           string   `json:"description"`
	KernelDetection       string   `json:"kernel_detection" doc:"How the kernels were found, or why there is none for Python"`
	WarmKernels           int      `json:"warm_kernels" doc:"Kernels that are started and wait to be used"`
}

// Info reads the machine.
func (s *Service) Info(ctx context.Context, _ None) (Info, error) {
	list, err := s.specs.get(ctx, specAge)
	if err != nil && !errors.Is(err, kernel.ErrNoPython) {
		return Info{}, err
	}
	i := Info{
		AvailableKernels: names(list), SessionTimeoutSeconds: int(s.Idle.Seconds()), MaxSessions: s.MaxSessions,
		Description:     "Jupyter kernels: a kernel for each call, or sessions that keep variables, with rich output as in a notebook.",
		KernelDetection: "kernel specifications in Jupyter's data folders, and Python interpreters that have ipykernel",
		WarmKernels:     s.pool.size(),
	}
	if err != nil {
		i.KernelDetection = err.Error()
	} else if len(list) > 0 {
		i.DefaultKernel = list[0].Name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	i.ActiveSessions = len(s.sessions)
	return i, nil
}

// About tells the version of Python and details for a list of languages.
func (s *Service) About(ctx context.Context) (version string, details map[string]any, err error) {
	list, err := s.specs.get(ctx, specAge)
	if err != nil {
		return "", nil, op.Errorf(op.Unavailable, "%w", err)
	}
	return strings.TrimPrefix(list[0].DisplayName, "Python "), map[string]any{
		"default_kernel": list[0].Name, "available_kernels": names(list), "max_sessions": s.MaxSessions,
	}, nil
}
