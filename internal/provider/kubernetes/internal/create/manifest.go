package create

import "github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"

// Pod is the manifest of a Pod, with the fields that the provider sets.
type Pod struct {
	api.Object
	Spec podSpec `json:"spec"`
}

type podSpec struct {
	Hostname                      string           `json:"hostname,omitempty"`
	RestartPolicy                 string           `json:"restartPolicy"`
	AutomountServiceAccountToken  *bool            `json:"automountServiceAccountToken"`
	EnableServiceLinks            *bool            `json:"enableServiceLinks"`
	HostUsers                     *bool            `json:"hostUsers,omitempty"`
	RuntimeClassName              string           `json:"runtimeClassName,omitempty"`
	TerminationGracePeriodSeconds *int64           `json:"terminationGracePeriodSeconds,omitempty"`
	DNSPolicy                     string           `json:"dnsPolicy"`
	DNSConfig                     dnsConfig        `json:"dnsConfig"`
	SecurityContext               podSecurity      `json:"securityContext"`
	ImagePullSecrets              []localReference `json:"imagePullSecrets,omitempty"`
	InitContainers                []containerSpec  `json:"initContainers"`
	Containers                    []containerSpec  `json:"containers"`
	Volumes                       []volumeSpec     `json:"volumes"`
}

type dnsConfig struct {
	Nameservers []string `json:"nameservers"`
}

type localReference struct {
	Name string `json:"name"`
}

type podSecurity struct {
	RunAsNonRoot        *bool    `json:"runAsNonRoot,omitempty"`
	RunAsUser           *int64   `json:"runAsUser,omitempty"`
	RunAsGroup          *int64   `json:"runAsGroup,omitempty"`
	FSGroup             *int64   `json:"fsGroup,omitempty"`
	FSGroupChangePolicy string   `json:"fsGroupChangePolicy,omitempty"`
	SeccompProfile      seccomp  `json:"seccompProfile"`
	Sysctls             []sysctl `json:"sysctls,omitempty"`
}

type sysctl struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type seccomp struct {
	Type             string `json:"type"`
	LocalhostProfile string `json:"localhostProfile,omitempty"`
}

type containerSecurity struct {
	Privileged               bool         `json:"privileged"`
	AllowPrivilegeEscalation *bool        `json:"allowPrivilegeEscalation"`
	ReadOnlyRootFilesystem   bool         `json:"readOnlyRootFilesystem,omitempty"`
	RunAsNonRoot             *bool        `json:"runAsNonRoot,omitempty"`
	RunAsUser                *int64       `json:"runAsUser,omitempty"`
	Capabilities             capabilities `json:"capabilities"`
}

type capabilities struct {
	Drop []string `json:"drop"`
	Add  []string `json:"add,omitempty"`
}

type containerSpec struct {
	Name            string            `json:"name"`
	Image           string            `json:"image,omitempty"`
	ImagePullPolicy string            `json:"imagePullPolicy,omitempty"`
	Command         []string          `json:"command,omitempty"`
	Resources       resources         `json:"resources"`
	Ports           []portSpec        `json:"ports,omitempty"`
	ReadinessProbe  *probeSpec        `json:"readinessProbe,omitempty"`
	SecurityContext containerSecurity `json:"securityContext"`
	VolumeMounts    []mountSpec       `json:"volumeMounts"`
}

// resources are the resources of a container.
type resources struct {
	Requests map[string]string `json:"requests,omitempty"`
	Limits   map[string]string `json:"limits,omitempty"`
}

type portSpec struct {
	Name          string `json:"name"`
	ContainerPort int    `json:"containerPort"`
}

type probeSpec struct {
	TCPSocket      tcpSocket `json:"tcpSocket"`
	PeriodSeconds  int       `json:"periodSeconds"`
	TimeoutSeconds int       `json:"timeoutSeconds"`
}

type tcpSocket struct {
	Port int `json:"port"`
}

type mountSpec struct {
	Name      string `json:"name"`
	MountPath string `json:"mountPath"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}

type volumeSpec struct {
	Name     string          `json:"name"`
	EmptyDir *emptyDirSource `json:"emptyDir,omitempty"`
	Secret   *secretSource   `json:"secret,omitempty"`
	Claim    *claimSource    `json:"persistentVolumeClaim,omitempty"`
}

type emptyDirSource struct {
	Medium    string `json:"medium,omitempty"`
	SizeLimit string `json:"sizeLimit,omitempty"`
}

type secretSource struct {
	SecretName  string    `json:"secretName"`
	DefaultMode int       `json:"defaultMode"`
	Items       []keyPath `json:"items"`
}

type keyPath struct {
	Key  string `json:"key"`
	Path string `json:"path"`
}

type claimSource struct {
	ClaimName string `json:"claimName"`
	ReadOnly  bool   `json:"readOnly,omitempty"`
}
