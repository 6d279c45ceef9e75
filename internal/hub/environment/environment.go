// Package environment owns the environments of a hub, and converts the values of users (quantities,
// timeouts, egress policies) into a sandbox's Spec.
//
// It reloads the environments file when the file changes. If the file is invalid, its last valid
// content remains in force.
package environment

import (
	"fmt"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Custom is the environment of sandboxes whose request has only an image.
const Custom = "custom"

// Defaults apply to values that neither the request nor its environment sets.
type Defaults struct {
	Environment string             // name of the default environment; aio
	Image       string             // of that environment, unless the file defines it
	Timeout     time.Duration      // an hour
	IdleTimeout time.Duration      // ten minutes
	IdlePolicy  sandbox.IdlePolicy // delete
	Keep        time.Duration      // of sandboxes that are kept: deleted after this time without use; a week
	Resources   sandbox.Resources  // 0.1 to 1 CPU, 128 MiB to 1 GiB
	Network     sandbox.Network    // open
	Pool        int                // size of that environment's warm pool, unless the file defines it

	keeps bool // Keep applies
}

// Complete fills the fields that are zero.
func (d *Defaults) Complete() {
	def := func(v *int64, to int64) {
		if *v == 0 {
			*v = to
		}
	}
	def((*int64)(&d.Timeout), int64(time.Hour))
	def((*int64)(&d.IdleTimeout), int64(10*time.Minute))
	def((*int64)(&d.Keep), int64(7*24*time.Hour))
	def(&d.Resources.CPU, 100)
	def(&d.Resources.CPULimit, 1000)
	def(&d.Resources.Memory, 128<<20)
	def(&d.Resources.MemoryLimit, 1<<30)
	if d.Environment == "" {
		d.Environment = "aio"
	}
	if d.IdlePolicy == "" {
		d.IdlePolicy = sandbox.IdleDelete
	}
	if d.Network.Mode == "" {
		d.Network.Mode = sandbox.NetworkOpen
	}
}

// Kept returns the defaults of sandboxes that are kept for their owner: if idle they are stopped, and
// deleted only after a long time without use.
func (d Defaults) Kept() Defaults {
	d.keeps, d.Timeout = true, sandbox.Never
	if d.IdlePolicy == sandbox.IdleDelete {
		d.IdlePolicy = sandbox.IdleStop
	}
	return d
}

// Environment is a template for sandboxes: defaults for requests.
type Environment struct {
	Name        string `json:"name" doc:"Name that requests use"`
	Image       string `json:"image" doc:"OCI image; empty: the provider's own root filesystem"`
	Description string `json:"description" doc:"Purpose of the environment"`

	Command   []string          `json:"command,omitempty" doc:"Command that replaces the image's own"`
	Args      []string          `json:"args,omitempty" doc:"Default arguments"`
	Env       map[string]string `json:"env,omitempty" doc:"Default environment variables; those of the request take precedence"`
	Workdir   string            `json:"workdir,omitempty" doc:"Working directory"`
	Port      int               `json:"port,omitempty" doc:"TCP port of its server, unless that is Cove's own sandbox server"`
	ReadyPath string            `json:"ready_path,omitempty" doc:"Path that replies 200 when the server is ready"`
	Ports     []int             `json:"ports,omitempty" doc:"Additional ports that programs inside serve"`

	CPU         Quantity `json:"cpu,omitempty" doc:"CPU request: its share when CPUs are busy"`
	Memory      Quantity `json:"memory,omitempty" doc:"Memory request"`
	CPULimit    Quantity `json:"cpu_limit,omitempty" doc:"CPU limit"`
	MemoryLimit Quantity `json:"memory_limit,omitempty" doc:"Memory limit"`
	DiskLimit   Quantity `json:"disk_limit,omitempty" doc:"Disk limit"`
	DiskRate    Quantity `json:"disk_rate_limit,omitempty" doc:"Disk throughput limit in bytes per second"`
	Bandwidth   Quantity `json:"bandwidth_limit,omitempty" doc:"Network bandwidth limit in bytes per second"`

	Isolation     string   `json:"isolation,omitempty" doc:"Isolation mechanism"`
	Sudo          *bool    `json:"sudo,omitempty" doc:"Whether its user can become root with sudo; default true"`
	Network       *Policy  `json:"network,omitempty" doc:"Egress policy"`
	Timeout       *float64 `json:"timeout,omitempty" doc:"Minutes until the timeout policy applies; -1: never"`
	TimeoutPolicy string   `json:"timeout_policy,omitempty" doc:"Action at the timeout: delete, stop or pause"`

	IdleTimeout *float64          `json:"idle_timeout,omitempty" doc:"Minutes without use until the idle policy applies; -1: never"`
	IdlePolicy  string            `json:"idle_policy,omitempty" doc:"Action if idle: delete, stop (or scaledown) or pause"`
	Labels      map[string]string `json:"labels,omitempty" doc:"Labels of its sandboxes"`

	Pool int `json:"pool,omitempty" doc:"Size of its warm pool, so that a create takes milliseconds"`
}

// Spec is a sandbox with the values of this environment. It shares no memory with the environment.
func (e Environment) Spec(d Defaults) (sandbox.Spec, error) {
	s := sandbox.Spec{
		Environment: e.Name, Image: e.Image, Command: e.Command, Args: e.Args, Env: e.Env, Workdir: e.Workdir, Ports: e.Ports,
		Server:    sandbox.Server{Port: e.Port, ReadyPath: e.ReadyPath},
		Resources: d.Resources, Isolation: e.Isolation, Network: d.Network, Labels: e.Labels,
		Lifetime: sandbox.Lifetime{Timeout: d.Timeout, IdleTimeout: d.IdleTimeout, IdlePolicy: d.IdlePolicy},
	}
	if d.keeps {
		s.Lifetime.Keep = d.Keep
	}
	if err := (Amounts{e.CPU, e.Memory, e.CPULimit, e.MemoryLimit, e.DiskLimit, e.DiskRate, e.Bandwidth}).Apply(&s.Resources); err != nil {
		return s, err
	}
	if err := e.Network.Apply(&s.Network); err != nil {
		return s, err
	}
	s.NoRoot = e.Sudo != nil && !*e.Sudo
	s = s.Clone()
	return s, Lease{e.Timeout, e.IdleTimeout, e.IdlePolicy, e.TimeoutPolicy}.Apply(&s)
}

// Policy is an egress policy.
type Policy struct {
	Mode  string   `json:"mode" default:"" doc:"none, allow (only the list), ask (others wait for approval), or open (all public addresses)"`
	Allow []string `json:"allow" nullable:"true" doc:"Names, *.names, addresses, ranges; :port; GET name/path/*. ! denies; first match wins"`
}

// Apply writes the policy to n and validates it. A nil policy is a no-op.
func (p *Policy) Apply(n *sandbox.Network) error {
	if p == nil {
		return nil
	}
	mode := sandbox.NetworkMode(p.Mode)
	if mode == "" {
		mode = n.Mode
		if len(p.Allow) > 0 {
			mode = sandbox.NetworkAllow
		}
	}
	*n = sandbox.Network{Mode: mode, Allow: p.Allow}
	_, err := egress.Parse(*n)
	return err
}

// Lease is the lifetime of a sandbox, as in requests and environments.
type Lease struct {
	Timeout, Idle *float64 // minutes
	Policy        string
	End           string // action when Timeout is reached
}

// Apply overrides the parts of the lifetime that are set.
func (l Lease) Apply(s *sandbox.Spec) error {
	for _, f := range []struct {
		what    string
		minutes *float64
		to      *time.Duration
	}{{"timeout", l.Timeout, &s.Lifetime.Timeout}, {"idle_timeout", l.Idle, &s.Lifetime.IdleTimeout}} {
		switch {
		case f.minutes == nil || *f.minutes == 0:
		case *f.minutes == -1:
			*f.to = sandbox.Never
		case !(*f.minutes > 0) || *f.minutes > 1e6:
			return fmt.Errorf("%s %v: use minutes, or -1 for never", f.what, *f.minutes)
		default:
			*f.to = time.Duration(*f.minutes * float64(time.Minute))
		}
	}
	switch l.End {
	case "":
	case "delete":
		s.Lifetime.EndPolicy, s.Lifetime.Period = "", 0
	case "stop", "pause":
		s.Lifetime.EndPolicy, s.Lifetime.Period = sandbox.IdlePolicy(l.End), max(s.Lifetime.Timeout, 0)
	default:
		return fmt.Errorf("timeout_policy %.40q: use delete, stop or pause", l.End)
	}
	switch l.Policy {
	case "":
		return nil
	case "scaledown":
		s.Lifetime.IdlePolicy = sandbox.IdleStop
		naming.Annotate(s, naming.AnnotationScaledown, "true")
	case "delete", "stop", "pause":
		s.Lifetime.IdlePolicy = sandbox.IdlePolicy(l.Policy)
		delete(s.Annotations, naming.AnnotationScaledown)
	default:
		return fmt.Errorf("idle_policy %.40q: use delete, stop, scaledown or pause", l.Policy)
	}
	return nil
}

// Minutes formats a timeout; -1 is never.
func Minutes(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return d.Minutes()
}
