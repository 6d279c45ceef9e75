package sandbox

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// The limits of a Spec. They are below the limits of argument lists of the kernel and of Kubernetes
// objects, so that every provider can run a valid Spec.
const (
	MaxName   = 50
	maxText   = 255
	maxList   = 256
	maxArgs   = 96 << 10
	maxLabels = 64
	maxNote   = 4 << 10
)

// Validate returns ErrInvalid if s is invalid. Providers can use a valid Spec as data: no field can escape
// from an argument list, an environment, a file name or a manifest.
func (s Spec) Validate() error {
	for _, check := range []func() error{
		s.checkNames, s.checkProcess, s.checkServer, s.checkResources,
		s.checkNetwork, func() error { return CheckVolumes(s.Volumes) }, s.checkLabels, s.checkLifetime,
	} {
		if err := check(); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	return nil
}

// CheckName returns an error for an invalid name of a sandbox, volume or snapshot.
func CheckName(name string) error {
	if name == "" || len(name) > MaxName {
		return fmt.Errorf("name %.60q: use 1 to %d characters", name, MaxName)
	}
	for _, c := range []byte(name) {
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-') {
			return fmt.Errorf("name %q: use only lower-case letters, digits and -", name)
		}
	}
	if name[0] == '-' || name[len(name)-1] == '-' {
		return fmt.Errorf("name %q: begin and end with a letter or digit", name)
	}
	return nil
}

func (s Spec) checkNames() error {
	if s.Name != "" {
		if err := CheckName(s.Name); err != nil {
			return err
		}
	}
	if s.Snapshot != "" {
		if err := CheckName(s.Snapshot); err != nil {
			return fmt.Errorf("snapshot: %w", err)
		}
	}
	for _, f := range []struct{ what, value, also string }{
		{"owner", s.Owner, "._@-"},
		{"environment", s.Environment, "._-"},
		{"isolation", s.Isolation, "._-"},
		{"image", s.Image, "._-/:@+"},
	} {
		if err := checkText(f.what, f.value, f.also); err != nil {
			return err
		}
	}
	return nil
}

// checkText accepts letters, digits and the characters of also, but no leading dash, which programs could
// interpret as an option.
func checkText(what, value, also string) error {
	if len(value) > maxText {
		return fmt.Errorf("%s is longer than %d characters", what, maxText)
	}
	if strings.HasPrefix(value, "-") {
		return fmt.Errorf("%s %q begins with -", what, value)
	}
	for _, c := range []byte(value) {
		if !alnum(c) && strings.IndexByte(also, c) < 0 {
			return fmt.Errorf("%s %q: use only letters, digits and %s", what, value, also)
		}
	}
	return nil
}

func alnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func (s Spec) checkProcess() error {
	size := 0
	for _, a := range slices.Concat(s.Command, s.Args) {
		size += len(a) + 1
		if strings.IndexByte(a, 0) >= 0 {
			return fmt.Errorf("argument %q contains a NUL byte", a)
		}
	}
	if len(s.Command) > 0 && s.Command[0] == "" {
		return fmt.Errorf("the first element of command is empty")
	}
	for k, v := range s.Env {
		size += len(k) + len(v) + 2
		if k == "" || k[0] >= '0' && k[0] <= '9' {
			return fmt.Errorf("env %q: begin the name with a letter or _", k)
		}
		if err := checkText("env", k, "._-"); err != nil {
			return err
		}
		if strings.IndexByte(v, 0) >= 0 {
			return fmt.Errorf("env %s contains a NUL byte", k)
		}
	}
	if size > maxArgs {
		return fmt.Errorf("command, args and env are %d bytes together, more than %d", size, maxArgs)
	}
	if s.Root && s.NoRoot {
		return fmt.Errorf("root and no root exclude each other")
	}
	if s.Workdir != "" {
		return checkPath("workdir", s.Workdir)
	}
	return nil
}

func checkPath(what, p string) error {
	if !path.IsAbs(p) || path.Clean(p) != p || len(p) > maxText || strings.IndexByte(p, 0) >= 0 {
		return fmt.Errorf("%s %.80q: use a clean absolute path of at most %d characters", what, p, maxText)
	}
	return nil
}

func (s Spec) checkServer() error {
	if s.Server.Port != 0 {
		if err := CheckPort(s.Server.Port); err != nil {
			return err
		}
	}
	if p := s.Server.ReadyPath; p != "" &&
		(p[0] != '/' || len(p) > maxText || strings.ContainsFunc(p, func(r rune) bool { return r <= ' ' || r >= 0x7f })) {
		return fmt.Errorf("ready path %.80q: begin with / and use printable ASCII", p)
	}
	if t := s.Server.ReadyTimeout; t < 0 || t > time.Hour {
		return fmt.Errorf("ready timeout %v: use up to an hour", t)
	}
	if len(s.Ports) > maxList {
		return fmt.Errorf("%d ports, more than %d", len(s.Ports), maxList)
	}
	for i, p := range s.Ports {
		if err := CheckPort(p); err != nil {
			return err
		}
		if slices.Contains(s.Ports[:i], p) {
			return fmt.Errorf("port %d is listed twice", p)
		}
	}
	return nil
}

// CheckPort returns an error for an invalid TCP port.
func CheckPort(p int) error {
	if p < 1 || p > 65535 {
		return fmt.Errorf("port %d: use 1 to 65535", p)
	}
	return nil
}

func (s Spec) checkResources() error {
	r := s.Resources
	for _, f := range []struct {
		what       string
		value, min int64
	}{
		{"cpu", r.CPU, 1}, {"cpu limit", r.CPULimit, 10},
		{"memory", r.Memory, 1}, {"memory limit", r.MemoryLimit, 16 << 20},
		{"pids", r.Pids, 16}, {"disk", r.Disk, 1 << 20}, {"files", r.Files, 64},
		{"disk rate", r.DiskRate, 64 << 10}, {"bandwidth", r.Bandwidth, 4 << 10},
	} {
		if f.value < 0 || f.value > 0 && f.value < f.min {
			return fmt.Errorf("%s %d: use at least %d", f.what, f.value, f.min)
		}
	}
	if r.MemoryLimit > 0 && r.Memory > r.MemoryLimit {
		return fmt.Errorf("memory %d is more than its limit %d", r.Memory, r.MemoryLimit)
	}
	if r.CPULimit > 0 && r.CPU > r.CPULimit {
		return fmt.Errorf("cpu %d is more than its limit %d", r.CPU, r.CPULimit)
	}
	return nil
}

func (s Spec) checkNetwork() error {
	switch s.Network.Mode {
	case "", NetworkNone, NetworkAllow, NetworkAsk, NetworkOpen:
	default:
		return fmt.Errorf("network %q: use none, allow, ask or open", s.Network.Mode)
	}
	if len(s.Network.Allow) > maxList {
		return fmt.Errorf("%d network rules, more than %d", len(s.Network.Allow), maxList)
	}
	for _, rule := range s.Network.Allow {
		if rule == "" {
			return fmt.Errorf("a network rule is empty")
		}
		if err := checkText("network rule", rule, "!.-:*[]/_ ,~@+="); err != nil {
			return err
		}
	}
	return nil
}

// CheckVolumes returns an error if a sandbox cannot have these volumes together.
func CheckVolumes(volumes []Volume) error {
	if len(volumes) > 32 {
		return fmt.Errorf("%d volumes, more than 32", len(volumes))
	}
	for i, v := range volumes {
		if err := CheckName(v.Name); err != nil {
			return fmt.Errorf("volume: %w", err)
		}
		if err := checkPath("volume target", v.Target); err != nil {
			return err
		}
		top, _, _ := strings.Cut(v.Target[1:], "/")
		// A mount there could hide files of the isolation, or the server itself.
		if slices.Contains([]string{"", "proc", "sys", "dev", "run", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "etc"}, top) {
			return fmt.Errorf("volume target %q: mount elsewhere, such as under /home, /mnt or /data", v.Target)
		}
		for _, other := range volumes[:i] {
			if within(other.Target, v.Target) || within(v.Target, other.Target) {
				return fmt.Errorf("volume targets %q and %q overlap", other.Target, v.Target)
			}
		}
	}
	return nil
}

func within(dir, p string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

func (s Spec) checkLabels() error {
	for what, m := range map[string]map[string]string{"label": s.Labels, "annotation": s.Annotations} {
		if len(m) > maxLabels {
			return fmt.Errorf("%d %ss, more than %d", len(m), what, maxLabels)
		}
		for k, v := range m {
			if k == "" || len(k) > 63 || !alnum(k[0]) || !alnum(k[len(k)-1]) {
				return fmt.Errorf("%s %.70q: use 1 to 63 characters that begin and end with a letter or digit", what, k)
			}
			if err := checkText(what, k, "._-/"); err != nil {
				return err
			}
			if what == "annotation" {
				if len(v) > maxNote {
					return fmt.Errorf("annotation %s is longer than %d bytes", k, maxNote)
				}
				continue
			}
			if len(v) > 63 || v != "" && (!alnum(v[0]) || !alnum(v[len(v)-1])) {
				return fmt.Errorf("label %s=%.70q: use up to 63 characters that begin and end with a letter or digit", k, v)
			}
			if err := checkText("label "+k, v, "._-"); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s Spec) checkLifetime() error {
	l := s.Lifetime
	if l.Timeout < Never || l.IdleTimeout < Never {
		return fmt.Errorf("a timeout is negative")
	}
	switch l.EndPolicy {
	case "", IdleDelete, IdleStop, IdlePause:
	default:
		return fmt.Errorf("end policy %q: use delete, stop or pause", l.EndPolicy)
	}
	if l.Period < 0 {
		return fmt.Errorf("period %v: use a positive duration, or 0 for none", l.Period)
	}
	if l.Keep < Never {
		return fmt.Errorf("keep %v: use a positive duration, 0 for none, or -1 for no limit", l.Keep)
	}
	switch l.IdlePolicy {
	case "", IdleDelete, IdleStop, IdlePause:
		return nil
	}
	return fmt.Errorf("idle policy %q: use delete, stop or pause", l.IdlePolicy)
}

// CheckUpdate returns ErrInvalid if an existing sandbox cannot change from s to next.
func (s Spec) CheckUpdate(next Spec) error {
	if next.Name == "" {
		return fmt.Errorf("%w: name is empty", ErrInvalid)
	}
	if err := next.Validate(); err != nil {
		return err
	}
	if len(s.Volumes) > 0 && next.Owner != s.Owner {
		return fmt.Errorf("%w: a sandbox with volumes cannot change its owner", ErrInvalid)
	}
	// Compare JSON, in which an empty list equals a missing one.
	fixed := func(s Spec) []byte {
		s.Name, s.Owner, s.Labels, s.Annotations = "", "", nil, nil
		s.Lifetime, s.Network, s.Resources = Lifetime{}, Network{}, Resources{}
		s.Env, s.Workdir = nil, ""
		b, _ := json.Marshal(s)
		return b
	}
	if !bytes.Equal(fixed(s), fixed(next)) {
		return fmt.Errorf("%w: only name, owner, labels, annotations, lifetime, network, resources, env and workdir can change", ErrInvalid)
	}
	return nil
}
