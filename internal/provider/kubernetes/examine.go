package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/volumesnapshot"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Finding is one result of Examine.
type Finding struct {
	OK        bool
	What, Fix string
}

// right is what a role may allow.
type right struct{ group, resource, verbs string }

// rights are those that the hub uses in a namespace of sandboxes. The roles of
// deploy/kubernetes allow the same, which tests compare.
func (c *Config) rights(namespace string) []right {
	all := []right{
		{"", "pods", "get list watch create patch delete"},
		{"", "pods/log", "get"},
		{"", "pods/resize", "patch"},
		{"", "secrets", "get list create patch delete"},
		{"", "persistentvolumeclaims", "get list create delete"},
		{"networking.k8s.io", "networkpolicies", "get create update"},
	}
	if namespace == c.Namespace {
		all = append(all, right{"coordination.k8s.io", "leases", "get create update"})
	}
	if c.SnapshotClass != "" {
		all = append(all, right{volumesnapshot.Group, "volumesnapshots", "get list create patch delete"})
	}
	if c.Reach == ReachAPI {
		all = append(all, right{"", "pods/portforward", "get create"})
	}
	return all
}

// examineTime bounds an examination, also of a cluster that does not answer.
const examineTime = 20 * time.Second

// Examine checks whether a cluster can run sandboxes and what it can do for them. It changes
// nothing there; into the snapshot store it writes one object, which it deletes. Usable says that
// sandboxes can be created, as far as one can tell without doing so.
func Examine(ctx context.Context, cfg Config) (usable bool, list []Finding) {
	if err := cfg.fill(); err != nil {
		return false, []Finding{{false, err.Error(), "see docs/kubernetes.md"}}
	}
	c, err := api.Connect(cfg.Access, cfg.Namespace)
	if err != nil {
		return false, []Finding{{false, err.Error(), "see docs/kubernetes.md"}}
	}
	defer c.HTTP.CloseIdleConnections()
	s := &session{cfg: cfg, client: c}
	e := &examiner{session: s, runner: &runner{session: s, volumes: &volumes{session: s}}}
	ctx, cancel := context.WithTimeout(ctx, examineTime)
	defer cancel()
	if !e.reach(ctx) {
		return false, e.list
	}
	usable = true
	for _, e.place = range e.places() {
		allowed := e.checkRights(ctx)
		e.showLevel(ctx)
		usable = e.tryPods(ctx) && allowed && usable
	}
	e.checkNodes(ctx)
	e.listClasses(ctx)
	e.tryStore(ctx)
	return usable, e.list
}

// examiner collects findings.
type examiner struct {
	*session
	runner *runner
	place  *client // for the namespace that is examined
	list   []Finding
}

func (e *examiner) add(ok bool, fix, format string, args ...any) {
	e.list = append(e.list, Finding{ok, fmt.Sprintf(format, args...), fix})
}

// read gets what is not in a namespace.
func (e *examiner) read(ctx context.Context, path string, out any) error {
	_, err := e.client.Do(ctx, api.Call{Method: http.MethodGet, URL: e.client.Server.JoinPath(path).String()}, out)
	return err
}

// post sends what keeps nothing.
func (e *examiner) post(ctx context.Context, address string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, err = e.client.Do(ctx, api.Call{Method: http.MethodPost, URL: address, Media: api.JSON, Body: body}, out)
	return err
}

// reach reports whether the API server answers us.
func (e *examiner) reach(ctx context.Context) bool {
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	switch err := e.read(ctx, "version", &version); {
	case api.HasCode(err, http.StatusUnauthorized):
		e.add(false, "use the token of a service account (kubectl create token) or a client certificate",
			"the API server %s does not accept the credentials: %v", e.cfg.Access.Server, err)
	case err != nil:
		e.add(false, "check the address in the kubeconfig, its certificate authority and the network",
			"the API server %s does not answer: %v", e.cfg.Access.Server, err)
	default:
		e.add(true, "", "Kubernetes %s at %s", version.GitVersion, e.cfg.Access.Server)
		return true
	}
	return false
}

// checkRights asks for every right that the hub uses.
func (e *examiner) checkRights(ctx context.Context) bool {
	missing, all := []string{}, 0
	for _, r := range e.cfg.rights(e.place.Namespace) {
		for _, verb := range strings.Fields(r.verbs) {
			all++
			ok, err := e.may(ctx, verb, r)
			if err != nil {
				e.add(false, "check the API server's log", "cannot ask for the rights in namespace %q: %v", e.place.Namespace, err)
				return false
			}
			if !ok {
				missing = append(missing, verb+" "+strings.TrimPrefix(r.group+"/"+r.resource, "/"))
			}
		}
	}
	if len(missing) > 0 {
		e.add(false, "grant the role of deploy/kubernetes/install.yaml, and for a hub outside the cluster get and "+
			"create on pods/portforward", "rights in namespace %q: %s", e.place.Namespace, strings.Join(missing, ", "))
		return false
	}
	e.add(true, "", "rights in namespace %q: all %d", e.place.Namespace, all)
	return true
}

func (e *examiner) may(ctx context.Context, verb string, r right) (bool, error) {
	resource, sub, _ := strings.Cut(r.resource, "/")
	var review accessReview
	review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
	review.Spec.Attributes = accessAttributes{Namespace: e.place.Namespace, Verb: verb, Group: r.group, Resource: resource, Subresource: sub}
	err := e.post(ctx, e.client.Server.JoinPath("apis/authorization.k8s.io/v1/selfsubjectaccessreviews").String(), review, &review)
	return review.Status.Allowed, err
}

// showLevel shows the Pod Security level of the namespace, if we may see it.
func (e *examiner) showLevel(ctx context.Context) {
	var ns object
	err := e.read(ctx, "api/v1/namespaces/"+e.place.Namespace, &ns)
	level := ns.Metadata.Labels["pod-security.kubernetes.io/enforce"]
	switch {
	case api.IsMissing(err):
		e.add(false, "kubectl create namespace "+e.place.Namespace, "namespace %q does not exist", e.place.Namespace)
	case err != nil:
		return // the hub's role does not allow it
	case level == "" || level == "privileged":
		e.add(false, "kubectl label namespace "+e.place.Namespace+" pod-security.kubernetes.io/enforce="+e.level(),
			"Pod Security level of namespace %q: none, so others who may create Pods there can have the node", e.place.Namespace)
	default:
		e.add(true, "", "Pod Security level of namespace %q: %s", e.place.Namespace, level)
	}
}

// level is the strictest that sandboxes satisfy.
func (e *examiner) level() string {
	if e.cfg.Root {
		return "baseline"
	}
	return "restricted"
}

// tryPods asks whether the API server would accept the Pods of sandboxes: Pod Security, quotas, limits
// and RuntimeClasses decide. Nothing is created.
func (e *examiner) tryPods(ctx context.Context) (ok bool) {
	ok = true
	for i, isolation := range e.isolation() {
		sb := sandbox.Sandbox{ID: "cove-doctor", Created: time.Now(), Spec: sandbox.Spec{Name: "cove-doctor",
			Image: "cove-doctor", Isolation: isolation}}
		trial := e.runner.makePod(&box{rec: record{Sandbox: sb}})
		trial.Metadata.OwnerReferences = nil
		err := e.post(ctx, e.place.Address(pods, nil, url.Values{"dryRun": {"All"}}), trial, nil)
		switch {
		case err == nil:
			e.add(true, "", "namespace %q accepts sandboxes with isolation %s", e.place.Namespace, isolation)
			continue
		case strings.Contains(err.Error(), "violates PodSecurity"):
			e.add(false, "kubectl label --overwrite namespace "+e.place.Namespace+
				" pod-security.kubernetes.io/enforce="+e.level(),
				"namespace %q does not accept sandboxes with isolation %s: %v", e.place.Namespace, isolation, err)
		case strings.Contains(err.Error(), "RuntimeClass"):
			e.add(false, "create the RuntimeClass, or remove it from kubernetes_runtime_class and "+
				"kubernetes_runtime_classes", "isolation %s: %v", isolation, err)
		default:
			e.add(false, "", "namespace %q does not accept sandboxes with isolation %s: %v", e.place.Namespace, isolation, err)
		}
		ok = ok && i > 0 // the first is the default
	}
	return ok
}

// checkNodes shows which nodes can map users, if we may see nodes.
func (e *examiner) checkNodes(ctx context.Context) {
	const what, fix = "user namespaces (kubernetes_user_namespaces, hostUsers: false)",
		"requires Kubernetes 1.33 and containerd 2 or CRI-O on the nodes"
	var nodes api.List[node]
	if err := e.read(ctx, "api/v1/nodes", &nodes); err != nil {
		e.add(!e.cfg.UserNamespaces, "run cove doctor with a kubeconfig that may list nodes", "%s: cannot see the nodes", what)
		return
	}
	able := 0
	for _, n := range nodes.Items {
		for _, h := range n.Status.RuntimeHandlers {
			if h.Name == e.cfg.RuntimeClass && h.Features.UserNamespaces {
				able++
			}
		}
	}
	e.add(able > 0, fix, "%s: %d of %d nodes", what, able, len(nodes.Items))
}

// listClasses shows what else the cluster has, if we may see it.
func (e *examiner) listClasses(ctx context.Context) {
	var classes api.List[object]
	if err := e.read(ctx, "apis/node.k8s.io/v1/runtimeclasses", &classes); err == nil {
		names := []string{}
		for _, c := range classes.Items {
			names = append(names, c.Metadata.Name)
		}
		slices.Sort(names)
		e.add(len(names) > 0, "install gVisor or Kata on the nodes and create a RuntimeClass",
			"RuntimeClasses (kubernetes_runtime_classes): %s", orNone(names))
	}
}

// checkCuts looks for VolumeSnapshots, and their class if we may see it.
func (e *examiner) checkCuts(ctx context.Context) {
	store := e.newCuts()
	_, _, err := store.Load(ctx)
	if err != nil {
		e.add(false, "see docs/kubernetes.md", "snapshots of homes: %v", err)
		return
	}
	switch known, err := store.Check(ctx); {
	case err != nil:
		e.add(false, "kubectl get volumesnapshotclass lists those that there are", "snapshots of homes: %v", err)
	case !known:
		e.add(true, "", "snapshots of homes: the cluster has VolumeSnapshots; the hub may not see whether it has "+
			"the class %q", e.cfg.SnapshotClass)
	default:
		e.add(true, "", "snapshots of homes: VolumeSnapshotClass %q", e.cfg.SnapshotClass)
	}
}

// tryStore looks for what keeps snapshots. In an S3-compatible store it writes, reads and deletes one small object.
func (e *examiner) tryStore(ctx context.Context) {
	switch {
	case e.cfg.SnapshotClass != "":
		e.checkCuts(ctx)
		return
	case e.cfg.Snapshots.Endpoint == "":
		e.add(false, "set kubernetes_snapshot_class, or kubernetes_snapshot_endpoint and the other settings of an "+
			"S3-compatible store", "snapshots and forks: there is no store for them")
		return
	}
	b, err := bucket.New(e.cfg.Snapshots)
	if err != nil {
		e.add(false, "see docs/kubernetes.md", "%v", err)
		return
	}
	defer b.Close()
	if err := b.Examine(ctx); err != nil {
		e.add(false, "check the endpoint, the bucket, the region and the keys, and that they may write, read, list "+
			"and delete", "snapshot store %s: %v", b, err)
		return
	}
	e.add(true, "", "snapshot store %s: can be written, read and listed", b)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
