// Package create builds the Pods of sandboxes: what their first process does, their manifests and limits. It
// creates, resizes and removes them.
package create

import (
	"cmp"
	"encoding/json"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/watch"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// Creator creates Pods.
type Creator struct {
	*cluster.Session
	Pods *watch.Cache
}

// Ports of a Pod.
const (
	Port      = 7443 // the tunnel
	readyPort = 7444 // open while the server is ready
)

// Plan returns what the first process of a Pod does.
func (c *Creator) Plan(spec sandbox.Spec) containerinit.Plan {
	env := map[string]string{
		"LANG": "C.UTF-8", "HOME": isolate.Home, "USER": isolate.User, "LOGNAME": isolate.User,
		// Packages that the user installs without root are stored in the home.
		"NPM_CONFIG_PREFIX": isolate.Home + "/.local", "PIP_BREAK_SYSTEM_PACKAGES": "1",
	}
	maps.Copy(env, c.Config.Env)
	maps.Copy(env, spec.Env)
	env[sandbox.EnvEgress] = "unix:" + containerinit.Egress
	env[sandbox.EnvListen] = "unix:" + control.ServerSocket
	if spec.Server.Port != 0 {
		env[sandbox.EnvListen] = "tcp:127.0.0.1:" + strconv.Itoa(spec.Server.Port)
	}
	plan := containerinit.Plan{
		Command: slices.Concat(spec.Command, spec.Args), Workdir: spec.Workdir, SwitchUser: true,
		Inherit: true, Path: []string{isolate.Home + "/.local/bin", isolate.Programs},
		Files:  uint64(cmp.Or(spec.Resources.Files, c.Config.Defaults.Files)),
		Tunnel: &containerinit.Tunnel{Listen: ":" + strconv.Itoa(Port), Hub: c.Hub.Pin, Ready: ":" + strconv.Itoa(readyPort)},
		Probe:  containerinit.Probe{Port: spec.Server.Port, Path: ReadyPath(spec)},
	}
	if len(spec.Command) == 0 {
		plan.Command = slices.Concat(c.Config.Command, spec.Args)
	}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		plan.Env = append(plan.Env, name+"="+env[name])
	}
	for _, v := range spec.Volumes {
		if !v.ReadOnly {
			plan.Volumes = append(plan.Volumes, v.Target)
		}
	}
	return plan
}

// EncodePlan returns the plan of the next Pod of a sandbox.
func (c *Creator) EncodePlan(b *box.Box) ([]byte, error) {
	plan := c.Plan(b.Record.Sandbox.Spec)
	plan.Fill = b.FillsDisk()
	return json.Marshal(plan)
}

// ReadyPath returns the path at which the server reports that it is ready.
func ReadyPath(spec sandbox.Spec) string { return cmp.Or(spec.Server.ReadyPath, "/readyz") }

// resources returns the limits of a Pod.
func (c *Creator) resources(want sandbox.Resources) resources {
	d := c.Config.Defaults
	limit := cmp.Or(want.MemoryLimit, max(d.MemoryLimit, want.Memory))
	out := resources{
		Limits: map[string]string{"memory": number(limit), "ephemeral-storage": number(cmp.Or(want.Disk, d.Disk))},
		// Without a request, Kubernetes uses the limit.
		Requests: map[string]string{"memory": number(cmp.Or(want.Memory, d.Memory, min(limit, 64<<20))),
			"cpu": number(cmp.Or(want.CPU, d.CPU)) + "m", "ephemeral-storage": "0"},
	}
	if cpu := cmp.Or(want.CPULimit, d.CPULimit); cpu > 0 {
		out.Limits["cpu"] = number(cpu) + "m"
		out.Requests["cpu"] = number(min(cpu, cmp.Or(want.CPU, d.CPU))) + "m"
	}
	return out
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// rootCapabilities are the capabilities of root inside: package managers and sudo require them, and the Pod
// Security level "baseline" allows them.
var rootCapabilities = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
	"NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}

// restricted is the security context of a container that cannot become root.
func restricted() containerSecurity {
	user := int64(isolate.UID)
	return containerSecurity{AllowPrivilegeEscalation: new(bool), RunAsNonRoot: ptr(true), RunAsUser: &user,
		Capabilities: capabilities{Drop: []string{"ALL"}}}
}

func ptr[T any](v T) *T { return &v }

// resolver is where the first process answers queries. It is no root, so the port requires a sysctl, which the Pod Security level
// "restricted" allows.
const resolver = "127.0.0.53"

// Sizes of volumes in memory, which count towards the memory limit.
const (
	shmSize    = "1Gi" // Chromium needs much
	socketSize = "1Mi"
)

// Manifest returns the next Pod of a sandbox.
func (c *Creator) Manifest(b *box.Box) Pod {
	sb := b.Record.Sandbox
	spec, user, grace := sb.Spec, int64(isolate.UID), int64(c.Config.StopGrace/time.Second)
	p := Pod{Object: api.NewObject("v1", "Pod", api.Meta{Name: b.Record.PodName(), Labels: c.Labels(sb),
		Annotations: cluster.Annotations(sb), OwnerReferences: b.OwnerReferences()})}
	p.Spec = podSpec{
		Hostname: spec.Name, RestartPolicy: "Never", AutomountServiceAccountToken: new(bool), EnableServiceLinks: new(bool),
		RuntimeClassName: c.runtimeClass(spec.Isolation), TerminationGracePeriodSeconds: &grace,
		DNSPolicy: "None", DNSConfig: dnsConfig{Nameservers: []string{resolver}},
		SecurityContext: podSecurity{FSGroup: &user, FSGroupChangePolicy: "OnRootMismatch", SeccompProfile: seccomp{Type: "RuntimeDefault"},
			Sysctls: []sysctl{{"net.ipv4.ip_unprivileged_port_start", "0"}}},
	}
	if c.Config.Seccomp != "" {
		p.Spec.SecurityContext.SeccompProfile = seccomp{Type: "Localhost", LocalhostProfile: c.Config.Seccomp}
	}
	if c.Config.UserNamespaces {
		p.Spec.HostUsers = new(bool)
	}
	for _, name := range c.Config.PullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, localReference{name})
	}
	security := restricted()
	if c.Config.Root && !spec.NoRoot {
		security = containerSecurity{AllowPrivilegeEscalation: ptr(true), RunAsUser: new(int64),
			Capabilities: capabilities{Drop: []string{"ALL"}, Add: rootCapabilities}}
	} else {
		p.Spec.SecurityContext.RunAsNonRoot, p.Spec.SecurityContext.RunAsUser, p.Spec.SecurityContext.RunAsGroup = ptr(true), &user, &user
	}
	limits := c.resources(spec.Resources)
	// Not an exec probe: with a hundred sandboxes, those would use a whole CPU.
	probe := &probeSpec{TCPSocket: tcpSocket{readyPort}, PeriodSeconds: 5, TimeoutSeconds: 5}
	mounts, volumes := c.mounts(sb, b.HomeClaim())
	p.Spec.Volumes = volumes
	p.Spec.InitContainers = []containerSpec{{
		Name: "programs", Image: c.Config.Programs, ImagePullPolicy: "IfNotPresent",
		Command:   []string{c.Config.Installer, containerinit.InstallVerb, isolate.Programs},
		Resources: limits, SecurityContext: restricted(), VolumeMounts: []mountSpec{{Name: "programs", MountPath: isolate.Programs}},
	}}
	p.Spec.Containers = []containerSpec{{
		Name: cluster.Container, Image: c.image(b), ImagePullPolicy: "IfNotPresent",
		Command:   []string{path.Join(isolate.Programs, path.Base(c.Config.Installer))},
		Resources: limits, Ports: []portSpec{{"tunnel", Port}}, ReadinessProbe: probe, SecurityContext: security, VolumeMounts: mounts,
	}}
	return p
}

// image returns the image of the next Pod. A copy of a disk requires exactly the image it was made from.
func (c *Creator) image(b *box.Box) string {
	if b.Source != nil && b.Source.Pin != "" {
		return b.Source.Pin
	}
	return cmp.Or(b.Record.Base, b.Record.Sandbox.Spec.Image, c.Config.Image)
}

func (c *Creator) runtimeClass(isolation string) string {
	switch isolation {
	case "":
		return c.Config.RuntimeClass
	case cluster.IsolationContainer:
		return ""
	}
	return isolation
}

// mounts returns the mounts of a sandbox.
func (c *Creator) mounts(sb sandbox.Sandbox, claim string) (mounts []mountSpec, volumes []volumeSpec) {
	add := func(mount mountSpec, volume volumeSpec) {
		volume.Name = mount.Name
		mounts, volumes = append(mounts, mount), append(volumes, volume)
	}
	memory := func(name, target, size string) {
		add(mountSpec{Name: name, MountPath: target}, volumeSpec{EmptyDir: &emptyDirSource{Medium: "Memory", SizeLimit: size}})
	}
	add(mountSpec{Name: "programs", MountPath: isolate.Programs, ReadOnly: true}, volumeSpec{EmptyDir: &emptyDirSource{}})
	keys := []keyPath{}
	for _, name := range []string{containerinit.PlanName, containerinit.CertName, containerinit.KeyName} {
		keys = append(keys, keyPath{name, name})
	}
	add(mountSpec{Name: "hub", MountPath: containerinit.HubDir, ReadOnly: true},
		volumeSpec{Secret: &secretSource{SecretName: sb.ID, DefaultMode: 0o440, Items: keys}})
	memory("control", containerinit.ControlDir, socketSize)
	memory("server", path.Dir(control.ServerSocket), socketSize)
	memory("shm", "/dev/shm", shmSize)
	home := volumeSpec{EmptyDir: &emptyDirSource{SizeLimit: number(cmp.Or(sb.Spec.Resources.Disk, c.Config.Defaults.Disk))}}
	if c.Config.Persistent {
		home = volumeSpec{Claim: &claimSource{ClaimName: claim}}
	}
	add(mountSpec{Name: "home", MountPath: isolate.Home}, home)
	for i, v := range sb.Spec.Volumes {
		add(mountSpec{Name: volumePrefix + strconv.Itoa(i), MountPath: v.Target, ReadOnly: v.ReadOnly},
			volumeSpec{Claim: &claimSource{ClaimName: c.VolumeClaim(sb.Spec.Owner, v.Name), ReadOnly: v.ReadOnly}})
	}
	return mounts, volumes
}

// volumePrefix begins the names of mounts of volumes.
const volumePrefix = "volume-"

// copyPlan is the key of the plan of a Pod that only mounts the home, in the Secret of the sandbox.
const copyPlan = "copy.json"

// CopyManifest returns a Pod that mounts the home of a sandbox and runs no program, and the data that it needs in
// the Secret of the sandbox.
func (c *Creator) CopyManifest(b *box.Box) (Pod, map[string][]byte, error) {
	plan := c.Plan(b.Record.Sandbox.Spec)
	plan.Hold, plan.Command, plan.Env = true, nil, nil
	data, err := json.Marshal(plan)
	if err != nil {
		return Pod{}, nil, err
	}
	p := c.Manifest(b)
	p.Metadata.Name = b.Record.Sandbox.ID + "-copy"
	p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v volumeSpec) bool { return strings.HasPrefix(v.Name, volumePrefix) })
	main := &p.Spec.Containers[0]
	main.Image, main.ReadinessProbe = c.Config.Programs, nil
	main.VolumeMounts = slices.DeleteFunc(main.VolumeMounts, func(m mountSpec) bool { return strings.HasPrefix(m.Name, volumePrefix) })
	for _, v := range p.Spec.Volumes {
		if v.Secret != nil {
			v.Secret.Items[slices.IndexFunc(v.Secret.Items, func(k keyPath) bool { return k.Key == containerinit.PlanName })].Key = copyPlan
		}
	}
	return p, map[string][]byte{copyPlan: data}, nil
}
