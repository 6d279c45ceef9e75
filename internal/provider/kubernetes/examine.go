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
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/box"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/bucket"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/create"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/disks"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/volumesnapshot"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Finding is one result of Examine.
type Finding struct {
	OK        bool
	What, Fix string
}

// right is a rule of a role.
type right struct{ group, resource, verbs string }

// rights returns the rights that the hub uses in a namespace. Tests compare them with the roles of
// deploy/kubernetes.
func rights(c *Config, namespace string) []right {
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

// examineTimeout bounds an examination.
const examineTimeout = 20 * time.Second

// Examine checks whether a cluster can run sandboxes, and what it supports. It does not change the cluster; it
// writes and deletes one object in the snapshot store. Usable says that the checks found no reason why sandboxes
// cannot be created.
func Examine(ctx context.Context, cfg Config) (usable bool, list []Finding) {
	if err := cfg.Complete(); err != nil {
		return false, []Finding{{false, err.Error(), "see docs/kubernetes.md"}}
	}
	s, err := cluster.Connect(cfg)
	if err != nil {
		return false, []Finding{{false, err.Error(), "see docs/kubernetes.md"}}
	}
	defer s.Client.HTTP.CloseIdleConnections()
	e := &examiner{Session: s}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	if !e.reach(ctx) {
		return false, e.list
	}
	usable = true
	for _, e.ns = range e.Namespaces() {
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
	*cluster.Session
	ns   *api.Client // for the namespace that is examined
	list []Finding
}

func (e *examiner) add(ok bool, fix, format string, args ...any) {
	e.list = append(e.list, Finding{ok, fmt.Sprintf(format, args...), fix})
}

// read gets an object outside namespaces.
func (e *examiner) read(ctx context.Context, path string, out any) error {
	_, err := e.Client.Do(ctx, api.Call{Method: http.MethodGet, URL: e.Client.Server.JoinPath(path).String()}, out)
	return err
}

// post sends a request that stores nothing.
func (e *examiner) post(ctx context.Context, address string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	_, err = e.Client.Do(ctx, api.Call{Method: http.MethodPost, URL: address, Media: api.JSON, Body: body}, out)
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
			"the API server %s does not accept the credentials: %v", e.Config.Access.Server, err)
	case err != nil:
		e.add(false, "check the address in the kubeconfig, its certificate authority and the network",
			"the API server %s does not answer: %v", e.Config.Access.Server, err)
	default:
		e.add(true, "", "Kubernetes %s at %s", version.GitVersion, e.Config.Access.Server)
		return true
	}
	return false
}

// checkRights checks every right that the hub uses.
func (e *examiner) checkRights(ctx context.Context) bool {
	missing, all := []string{}, 0
	for _, r := range rights(&e.Config, e.ns.Namespace) {
		for _, verb := range strings.Fields(r.verbs) {
			all++
			ok, err := e.may(ctx, verb, r)
			if err != nil {
				e.add(false, "check the API server's log", "cannot check the rights in namespace %q: %v", e.ns.Namespace, err)
				return false
			}
			if !ok {
				missing = append(missing, verb+" "+strings.TrimPrefix(r.group+"/"+r.resource, "/"))
			}
		}
	}
	if len(missing) > 0 {
		e.add(false, "grant the role of deploy/kubernetes/install.yaml, and for a hub outside the cluster get and "+
			"create on pods/portforward", "rights in namespace %q: %s", e.ns.Namespace, strings.Join(missing, ", "))
		return false
	}
	e.add(true, "", "rights in namespace %q: all %d", e.ns.Namespace, all)
	return true
}

func (e *examiner) may(ctx context.Context, verb string, r right) (bool, error) {
	resource, sub, _ := strings.Cut(r.resource, "/")
	var review accessReview
	review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
	review.Spec.Attributes = accessAttributes{Namespace: e.ns.Namespace, Verb: verb, Group: r.group, Resource: resource, Subresource: sub}
	err := e.post(ctx, e.Client.Server.JoinPath("apis/authorization.k8s.io/v1/selfsubjectaccessreviews").String(), review, &review)
	return review.Status.Allowed, err
}

// showLevel shows the Pod Security level of the namespace, if the hub may read it.
func (e *examiner) showLevel(ctx context.Context) {
	var ns api.Object
	err := e.read(ctx, "api/v1/namespaces/"+e.ns.Namespace, &ns)
	level := ns.Metadata.Labels["pod-security.kubernetes.io/enforce"]
	switch {
	case api.IsMissing(err):
		e.add(false, "kubectl create namespace "+e.ns.Namespace, "namespace %q does not exist", e.ns.Namespace)
	case err != nil:
		return // the role of the hub does not allow it
	case level == "" || level == "privileged":
		e.add(false, "kubectl label namespace "+e.ns.Namespace+" pod-security.kubernetes.io/enforce="+e.level(),
			"Pod Security level of namespace %q: none; anyone who may create Pods there can take over the node", e.ns.Namespace)
	default:
		e.add(true, "", "Pod Security level of namespace %q: %s", e.ns.Namespace, level)
	}
}

// level returns the strictest Pod Security level that sandboxes satisfy.
func (e *examiner) level() string {
	if e.Config.Root {
		return "baseline"
	}
	return "restricted"
}

// tryPods checks with a dry run whether the API server accepts the Pods of sandboxes, which depends on Pod
// Security, quotas, limits and RuntimeClasses.
func (e *examiner) tryPods(ctx context.Context) (ok bool) {
	ok = true
	creator := &create.Creator{Session: e.Session}
	for i, isolation := range e.Isolation() {
		sb := sandbox.Sandbox{ID: "cove-doctor", Created: time.Now(), Spec: sandbox.Spec{Name: "cove-doctor",
			Image: "cove-doctor", Isolation: isolation}}
		trial := creator.Manifest(box.New(e.Session, box.Record{Sandbox: sb}))
		trial.Metadata.OwnerReferences = nil
		err := e.post(ctx, e.ns.Address(cluster.Pods, nil, url.Values{"dryRun": {"All"}}), trial, nil)
		switch {
		case err == nil:
			e.add(true, "", "namespace %q accepts sandboxes with isolation %s", e.ns.Namespace, isolation)
			continue
		case strings.Contains(err.Error(), "violates PodSecurity"):
			e.add(false, "kubectl label --overwrite namespace "+e.ns.Namespace+
				" pod-security.kubernetes.io/enforce="+e.level(),
				"namespace %q does not accept sandboxes with isolation %s: %v", e.ns.Namespace, isolation, err)
		case strings.Contains(err.Error(), "RuntimeClass"):
			e.add(false, "create the RuntimeClass, or remove it from kubernetes_runtime_class and "+
				"kubernetes_runtime_classes", "isolation %s: %v", isolation, err)
		default:
			e.add(false, "", "namespace %q does not accept sandboxes with isolation %s: %v", e.ns.Namespace, isolation, err)
		}
		ok = ok && i > 0 // the first is the default
	}
	return ok
}

// checkNodes shows how many nodes support user namespaces, if the hub may read nodes.
func (e *examiner) checkNodes(ctx context.Context) {
	const what, fix = "user namespaces (kubernetes_user_namespaces, hostUsers: false)",
		"requires Kubernetes 1.33 and containerd 2 or CRI-O on the nodes"
	var nodes api.List[node]
	if err := e.read(ctx, "api/v1/nodes", &nodes); err != nil {
		e.add(!e.Config.UserNamespaces, "run cove doctor with a kubeconfig that may list nodes", "%s: cannot list the nodes", what)
		return
	}
	supporting := 0
	for _, n := range nodes.Items {
		for _, h := range n.Status.RuntimeHandlers {
			if h.Name == e.Config.RuntimeClass && h.Features.UserNamespaces {
				supporting++
			}
		}
	}
	e.add(supporting > 0, fix, "%s: %d of %d nodes", what, supporting, len(nodes.Items))
}

// listClasses shows the RuntimeClasses, if the hub may read them.
func (e *examiner) listClasses(ctx context.Context) {
	var classes api.List[api.Object]
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

// checkHomeSnapshots checks the support for VolumeSnapshots, and their class if the hub may read it.
func (e *examiner) checkHomeSnapshots(ctx context.Context) {
	store := disks.NewHomeSnapshots(e.Session)
	_, _, err := store.Load(ctx)
	if err != nil {
		e.add(false, "see docs/kubernetes.md", "snapshots of homes: %v", err)
		return
	}
	switch known, err := store.Check(ctx); {
	case err != nil:
		e.add(false, "kubectl get volumesnapshotclass lists existing classes", "snapshots of homes: %v", err)
	case !known:
		e.add(true, "", "snapshots of homes: the cluster supports VolumeSnapshots; the hub may not read whether "+
			"class %q exists", e.Config.SnapshotClass)
	default:
		e.add(true, "", "snapshots of homes: VolumeSnapshotClass %q", e.Config.SnapshotClass)
	}
}

// tryStore checks the snapshot store. In an S3-compatible store it writes, reads and deletes one small object.
func (e *examiner) tryStore(ctx context.Context) {
	switch {
	case e.Config.SnapshotClass != "":
		e.checkHomeSnapshots(ctx)
		return
	case e.Config.Snapshots.Endpoint == "":
		e.add(false, "set kubernetes_snapshot_class, or kubernetes_snapshot_endpoint and the other settings of an "+
			"S3-compatible store", "snapshots and forks: no store is configured")
		return
	}
	b, err := bucket.New(e.Config.Snapshots)
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
