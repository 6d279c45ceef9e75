package kubernetes

import (
	"context"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
)

// ensurePolicy creates the NetworkPolicy of all sandboxes of a namespace, before the first Pod needs it. One
// is enough, since all have the same: nothing may leave, and only the hub may come in, at one
// port. With port forwarding, connections begin inside the Pod, and nobody may come in.
func (s *session) ensurePolicy(ctx context.Context, place *client) error {
	name := "cove-sandboxes-" + s.cfg.Name
	want := networkPolicy{object: api.NewObject("networking.k8s.io/v1", "NetworkPolicy",
		meta{Name: name, Labels: map[string]string{labelHub: s.cfg.Name}})}
	want.Spec = networkPolicySpec{
		PodSelector: labelSelector{map[string]string{labelHub: s.cfg.Name, labelKind: kindSandbox}}, PolicyTypes: []string{"Ingress", "Egress"},
		Ingress: []ingressRule{}, Egress: []struct{}{},
	}
	if s.cfg.Reach == ReachPod {
		want.Spec.Ingress = append(want.Spec.Ingress, ingressRule{
			From:  []policyPeer{{PodSelector: labelSelector{map[string]string{labelRole: roleHub}}}},
			Ports: []policyPort{{"TCP", Port}},
		})
	}
	var now networkPolicy
	err := place.Get(ctx, policies, name, &now)
	if api.IsMissing(err) {
		return place.Create(ctx, policies, want, nil)
	}
	if err != nil {
		return err
	}
	want.Metadata.ResourceVersion = now.Metadata.ResourceVersion
	return place.Replace(ctx, policies, name, want, nil)
}
