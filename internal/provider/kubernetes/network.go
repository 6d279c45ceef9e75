package kubernetes

import (
	"context"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
)

// ensurePolicy creates the NetworkPolicy of all sandboxes of a namespace, before the first Pod requires it. It
// denies all outgoing traffic, and all incoming traffic except from the hub to one port. With port forwarding,
// connections start inside the Pod, so no incoming traffic is allowed.
func ensurePolicy(ctx context.Context, s *cluster.Session, ns *api.Client) error {
	name := "cove-sandboxes-" + s.Config.Name
	want := networkPolicy{Object: api.NewObject("networking.k8s.io/v1", "NetworkPolicy",
		api.Meta{Name: name, Labels: map[string]string{cluster.LabelHub: s.Config.Name}})}
	want.Spec = networkPolicySpec{
		PodSelector: labelSelector{map[string]string{cluster.LabelHub: s.Config.Name, cluster.LabelKind: cluster.KindSandbox}},
		PolicyTypes: []string{"Ingress", "Egress"}, Ingress: []ingressRule{}, Egress: []struct{}{},
	}
	if s.Config.Reach == ReachPod {
		want.Spec.Ingress = append(want.Spec.Ingress, ingressRule{
			From:  []policyPeer{{PodSelector: labelSelector{map[string]string{cluster.LabelRole: cluster.RoleHub}}}},
			Ports: []policyPort{{"TCP", Port}},
		})
	}
	var now networkPolicy
	err := ns.Get(ctx, policies, name, &now)
	if api.IsMissing(err) {
		return ns.Create(ctx, policies, want, nil)
	}
	if err != nil {
		return err
	}
	want.Metadata.ResourceVersion = now.Metadata.ResourceVersion
	return ns.Replace(ctx, policies, name, want, nil)
}
