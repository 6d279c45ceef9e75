package kubernetes

import (
	"cmp"
	"maps"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// runner makes Pods and takes them through their lives. It knows nothing of other sandboxes.
type runner struct {
	*session
	volumes *volumes
	pods    podCache
}

// The ports of a Pod: where it serves the tunnel, and which is open while its server is ready.
const (
	Port      = 7443
	readyPort = 7444
)

// mainContainer is the name of the container that is the sandbox.
const mainContainer = "sandbox"

// plan is what the first process of a Pod does.
func (r *runner) plan(spec sandbox.Spec) containerinit.Plan {
	env := map[string]string{
		"LANG": "C.UTF-8", "HOME": isolate.Home, "USER": isolate.User, "LOGNAME": isolate.User,
		// What the user installs without root lands in the home.
		"NPM_CONFIG_PREFIX": isolate.Home + "/.local", "PIP_BREAK_SYSTEM_PACKAGES": "1",
	}
	maps.Copy(env, r.cfg.Env)
	maps.Copy(env, spec.Env)
	env[sandbox.EnvEgress] = "unix:" + containerinit.Egress
	env[sandbox.EnvListen] = "unix:" + control.ServerSocket
	if spec.Server.Port != 0 {
		env[sandbox.EnvListen] = "tcp:127.0.0.1:" + strconv.Itoa(spec.Server.Port)
	}
	plan := containerinit.Plan{
		Command: slices.Concat(spec.Command, spec.Args), Workdir: spec.Workdir, SwitchUser: true,
		Inherit: true, Path: []string{isolate.Home + "/.local/bin", isolate.Programs},
		Files:  uint64(cmp.Or(spec.Resources.Files, r.cfg.Defaults.Files)),
		Tunnel: &containerinit.Tunnel{Listen: ":" + strconv.Itoa(Port), Hub: r.hub.pin, Ready: ":" + strconv.Itoa(readyPort)},
		Probe:  containerinit.Probe{Port: spec.Server.Port, Path: cmp.Or(spec.Server.ReadyPath, "/readyz")},
	}
	if len(spec.Command) == 0 {
		plan.Command = slices.Concat(r.cfg.Command, spec.Args)
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

// resources are the limits of a spec.
func (r *runner) resources(want sandbox.Resources) resources {
	d := r.cfg.Defaults
	limit := cmp.Or(want.MemoryLimit, max(d.MemoryLimit, want.Memory))
	out := resources{
		Limits: map[string]string{"memory": number(limit), "ephemeral-storage": number(cmp.Or(want.Disk, d.Disk))},
		// A request that is left open would be the limit.
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

// rootCapabilities are those that root inside keeps: what package managers and sudo need, and
// the Pod Security level "baseline" allows.
var rootCapabilities = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL",
	"NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}

// restricted is the security of a container that cannot become root.
func restricted() containerSecurity {
	user := int64(isolate.UID)
	return containerSecurity{AllowPrivilegeEscalation: new(bool), RunAsNonRoot: ptr(true), RunAsUser: &user,
		Capabilities: capabilities{Drop: []string{"ALL"}}}
}

func ptr[T any](v T) *T { return &v }

// Sizes of what is in memory; it counts as the sandbox's.
const (
	shmSize    = "1Gi" // Chromium needs much
	socketSize = "1Mi"
)

// makePod is the Pod of a sandbox.
func (r *runner) makePod(b *box) pod {
	sb := b.rec.Sandbox
	spec, user, grace := sb.Spec, int64(isolate.UID), int64(r.cfg.StopGrace/time.Second)
	p := pod{object: api.NewObject("v1", "Pod", meta{Name: b.rec.podName(), Labels: r.labels(sb),
		Annotations: notes(sb), OwnerReferences: b.owner()})}
	p.Spec = podSpec{
		Hostname: spec.Name, RestartPolicy: "Never", AutomountServiceAccountToken: new(bool), EnableServiceLinks: new(bool),
		RuntimeClassName: r.runtimeClass(spec.Isolation), TerminationGracePeriodSeconds: &grace,
		DNSPolicy: "None", DNSConfig: dnsConfig{Nameservers: []string{"127.0.0.1"}}, // names are resolved by the hub's proxy
		SecurityContext: podSecurity{FSGroup: &user, FSGroupChangePolicy: "OnRootMismatch", SeccompProfile: seccomp{Type: "RuntimeDefault"}},
	}
	if r.cfg.Seccomp != "" {
		p.Spec.SecurityContext.SeccompProfile = seccomp{Type: "Localhost", LocalhostProfile: r.cfg.Seccomp}
	}
	if r.cfg.UserNamespaces {
		p.Spec.HostUsers = new(bool)
	}
	for _, name := range r.cfg.PullSecrets {
		p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, localReference{name})
	}
	security := restricted()
	if r.cfg.Root && !spec.NoRoot {
		security = containerSecurity{AllowPrivilegeEscalation: ptr(true), RunAsUser: new(int64),
			Capabilities: capabilities{Drop: []string{"ALL"}, Add: rootCapabilities}}
	} else {
		p.Spec.SecurityContext.RunAsNonRoot, p.Spec.SecurityContext.RunAsUser, p.Spec.SecurityContext.RunAsGroup = ptr(true), &user, &user
	}
	limits := r.resources(spec.Resources)
	// Not a program that the node starts inside: a hundred sandboxes would keep a processor busy.
	probe := &probeSpec{TCPSocket: tcpSocket{readyPort}, PeriodSeconds: 5, TimeoutSeconds: 5}
	mounts, volumes := r.mounts(sb, b.home())
	p.Spec.Volumes = volumes
	p.Spec.InitContainers = []containerSpec{{
		Name: "programs", Image: r.cfg.Programs, ImagePullPolicy: "IfNotPresent",
		Command:   []string{r.cfg.Installer, containerinit.InstallVerb, isolate.Programs},
		Resources: limits, SecurityContext: restricted(), VolumeMounts: []mountSpec{{Name: "programs", MountPath: isolate.Programs}},
	}}
	p.Spec.Containers = []containerSpec{{
		Name: mainContainer, Image: r.image(b), ImagePullPolicy: "IfNotPresent",
		Command:   []string{path.Join(isolate.Programs, path.Base(r.cfg.Installer))},
		Resources: limits, Ports: []portSpec{{"tunnel", Port}}, ReadinessProbe: probe, SecurityContext: security, VolumeMounts: mounts,
	}}
	return p
}

// image is that of the next Pod. A copy of a disk fits only the very image that it was made of.
func (r *runner) image(b *box) string {
	if b.src != nil && b.src.Pin != "" {
		return b.src.Pin
	}
	return cmp.Or(b.rec.Base, b.rec.Sandbox.Spec.Image, r.cfg.Image)
}

// owner makes the cluster remove an object with the Secret of the sandbox.
func (b *box) owner() []ownerReference {
	return []ownerReference{{APIVersion: "v1", Kind: "Secret", Name: b.rec.Sandbox.ID, UID: b.uid}}
}

func (r *runner) runtimeClass(isolation string) string {
	switch isolation {
	case "":
		return r.cfg.RuntimeClass
	case Kind:
		return ""
	}
	return isolation
}

// mounts are the folders of a sandbox that are not its image's.
func (r *runner) mounts(sb sandbox.Sandbox, claim string) (mounts []mountSpec, volumes []volumeSpec) {
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
	home := volumeSpec{EmptyDir: &emptyDirSource{SizeLimit: number(cmp.Or(sb.Spec.Resources.Disk, r.cfg.Defaults.Disk))}}
	if r.cfg.Persistent {
		home = volumeSpec{Claim: &claimSource{ClaimName: claim}}
	}
	add(mountSpec{Name: "home", MountPath: isolate.Home}, home)
	for i, v := range sb.Spec.Volumes {
		add(mountSpec{Name: "volume-" + strconv.Itoa(i), MountPath: v.Target, ReadOnly: v.ReadOnly},
			volumeSpec{Claim: &claimSource{ClaimName: r.volumes.name(sb.Spec.Owner, v.Name), ReadOnly: v.ReadOnly}})
	}
	return mounts, volumes
}
