package kubernetes

import "github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"

// Kinds of objects, as paths of the API.
const (
	policies = "apis/networking.k8s.io/v1/networkpolicies"
	leases   = "apis/coordination.k8s.io/v1/leases"
)

// Objects of the API, with the fields that the provider sets or reads.

type networkPolicy struct {
	api.Object
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
	api.Object
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
	api.Object
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

type node struct {
	api.Object
	Status struct {
		RuntimeHandlers []struct {
			Name     string `json:"name"`
			Features struct {
				UserNamespaces bool `json:"userNamespaces"`
			} `json:"features"`
		} `json:"runtimeHandlers"`
	} `json:"status"`
}
