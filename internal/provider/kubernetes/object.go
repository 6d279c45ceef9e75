package kubernetes

import "github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"

// What every object has.
type (
	client         = api.Client
	object         = api.Object
	meta           = api.Meta
	ownerReference = api.OwnerReference
)

// The kinds of objects, by the paths of the API.
const (
	pods     = "api/v1/pods"
	secrets  = "api/v1/secrets"
	claims   = "api/v1/persistentvolumeclaims"
	policies = "apis/networking.k8s.io/v1/networkpolicies"
	leases   = "apis/coordination.k8s.io/v1/leases"
)

// The objects of the API that we use, with the fields that we set or read.

type secret struct {
	object
	Type string            `json:"type,omitempty"`
	Data map[string][]byte `json:"data,omitempty"`
}

type pod struct {
	object
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
	RunAsNonRoot        *bool   `json:"runAsNonRoot,omitempty"`
	RunAsUser           *int64  `json:"runAsUser,omitempty"`
	RunAsGroup          *int64  `json:"runAsGroup,omitempty"`
	FSGroup             *int64  `json:"fsGroup,omitempty"`
	FSGroupChangePolicy string  `json:"fsGroupChangePolicy,omitempty"`
	SeccompProfile      seccomp `json:"seccompProfile"`
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

// podState is what we read of a Pod.
type podState struct {
	object
	Status podStatus `json:"status"`
}

type podStatus struct {
	Phase                 string            `json:"phase"`
	Reason                string            `json:"reason"`
	Message               string            `json:"message"`
	PodIP                 string            `json:"podIP"`
	Conditions            []condition       `json:"conditions"`
	InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
	ContainerStatuses     []containerStatus `json:"containerStatuses"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type containerStatus struct {
	Name    string         `json:"name"`
	ImageID string         `json:"imageID"`
	State   containerState `json:"state"`
}

type containerState struct {
	Waiting    *waitingState    `json:"waiting"`
	Running    *struct{}        `json:"running"`
	Terminated *terminatedState `json:"terminated"`
}

type waitingState struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type terminatedState struct {
	ExitCode int    `json:"exitCode"`
	Signal   int    `json:"signal"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

type claim struct {
	object
	Spec   claimSpec `json:"spec"`
	Status struct {
		Phase    string            `json:"phase,omitempty"`
		Capacity map[string]string `json:"capacity,omitempty"`
	} `json:"status,omitzero"`
}

type claimSpec struct {
	AccessModes      []string    `json:"accessModes"`
	StorageClassName *string     `json:"storageClassName,omitempty"`
	Resources        resources   `json:"resources"`
	DataSource       *dataSource `json:"dataSource,omitempty"`
}

// dataSource is what a volume is made of.
type dataSource struct {
	APIGroup string `json:"apiGroup"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
}

type networkPolicy struct {
	object
	Spec networkPolicySpec `json:"spec"`
}

type networkPolicySpec struct {
	PodSelector labelSelector `json:"podSelector"`
	PolicyTypes []string      `json:"policyTypes"`
	Ingress     []ingressRule `json:"ingress"`
	Egress      []struct{}    `json:"egress"`
}

type labelSelector struct {
	MatchLabels map[string]string `json:"matchLabels,omitempty"`
}

type ingressRule struct {
	From  []policyPeer `json:"from"`
	Ports []policyPort `json:"ports"`
}

type policyPeer struct {
	NamespaceSelector labelSelector `json:"namespaceSelector"`
	PodSelector       labelSelector `json:"podSelector"`
}

type policyPort struct {
	Protocol string `json:"protocol"`
	Port     int    `json:"port"`
}

type lease struct {
	object
	Spec leaseSpec `json:"spec"`
}

type leaseSpec struct {
	HolderIdentity       string `json:"holderIdentity"`
	LeaseDurationSeconds int    `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          string `json:"acquireTime,omitempty"`
	RenewTime            string `json:"renewTime,omitempty"`
	LeaseTransitions     int    `json:"leaseTransitions"`
}

type accessReview struct {
	object
	Spec struct {
		Attributes accessAttributes `json:"resourceAttributes"`
	} `json:"spec"`
	Status struct {
		Allowed bool `json:"allowed"`
	} `json:"status"`
}

type accessAttributes struct {
	Namespace   string `json:"namespace"`
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
}

// node is what we read of a node.
type node struct {
	object
	Status struct {
		RuntimeHandlers []struct {
			Name     string `json:"name"`
			Features struct {
				UserNamespaces bool `json:"userNamespaces"`
			} `json:"features"`
		} `json:"runtimeHandlers"`
	} `json:"status"`
}
