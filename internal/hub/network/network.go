// Package network owns private networks, in which sandboxes of one owner reach each other by name, such as db:5432.
//
// It owns the networks, their members and the connections between them, which it closes as soon as a member leaves or the
// network is deleted. The provider stores the networks of a sandbox with the sandbox. The egress proxies ask it what a name
// stands for; see egress.Config. Sandboxes of other owners never see a network or its members, and no sandbox reaches the own
// ports of another, such as that of its server.
package network

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/caller"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	maxMembers = 256 // sandboxes of a network
	maxJoined  = 16  // networks of a sandbox
)

// Config of a Service.
type Config struct {
	Provider sandbox.Provider
	Fleet    *fleet.Fleet
	Store    *Store
}

// Service implements the operations.
type Service struct {
	Config
	members sync.Mutex // held while members are counted and added
	links   links
}

// New returns a service.
func New(cfg Config) *Service {
	return &Service{Config: cfg, links: links{open: map[*link]bool{}, from: map[string]int{}, to: map[string]int{}, in: map[string]int{}}}
}

const one = "/api/v1/network/{network}"

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "network_create", Route: "POST /api/v1/network", Tag: "network",
			Doc: "Create a private network. Sandboxes that join it reach each other by name on every port."}, s.Create),
		op.New(op.Spec{Name: "network_list", Access: op.AccessRead, Route: "GET /api/v1/network", Tag: "network", ReadOnly: true,
			Columns: []string{"name", "sandboxes", "created"},
			Doc:     "List private networks and their sandboxes."}, s.List),
		op.New(op.Spec{Name: "network_delete", Route: "DELETE " + one, Tag: "network", Verb: "network rm", Destructive: true,
			Doc: "Delete a private network. Connections between its sandboxes are closed."}, s.Delete),
		op.New(op.Spec{Name: "network_join", Route: "PUT " + one + "/sandbox/{name}", Tag: "network", Verb: "network join",
			Doc: "Add a sandbox to a private network. Other sandboxes of the network reach its services, also those on its " +
				"loopback address, as name:port or name.network.internal:port."}, s.Join),
		op.New(op.Spec{Name: "network_leave", Route: "DELETE " + one + "/sandbox/{name}", Tag: "network", Verb: "network leave",
			Doc: "Remove a sandbox from a private network. Its connections to and from the others are closed."}, s.Leave),
	}
}

// CreateIn describes a new network.
type CreateIn struct {
	Name string `json:"name" arg:"true" doc:"Name (a-z, 0-9 and -, at most 50)"`
}

// Out is a network.
type Out struct {
	Name      string    `json:"name"`
	User      string    `json:"user,omitempty"`
	Created   time.Time `json:"created"`
	Sandboxes []string  `json:"sandboxes" doc:"Names of its sandboxes"`
}

// Create creates a network.
func (s *Service) Create(ctx context.Context, in CreateIn) (Out, error) {
	op.CallOf(ctx).TargetName = fault.Clip(in.Name)
	if err := checkNewName(in.Name); err != nil {
		return Out{}, op.Errorf(op.Invalid, "network: %w", err)
	}
	if able := s.Provider.Abilities(); !able.Egress {
		return Out{}, fault.CannotDo(able.Provider, "connect sandboxes")
	}
	e, err := s.Store.add(caller.Owner(ctx), in.Name)
	return Out{Name: e.Name, User: e.Owner, Created: e.Created, Sandboxes: []string{}}, err
}

// local are names without a dot that programs look up to find a service of their machine or network.
var local = []string{"localhost", "localdomain", "metadata", "instance-data", "kubernetes", "wpad", "isatap", "gateway", "host"}

// checkMember returns an error for a name by which no sandbox is reached, because programs expect another service there.
func checkMember(name string) error {
	if sandbox.IsReserved(name) || slices.Contains(local, name) {
		return op.Errorf(op.Invalid, "sandboxes named %q cannot be in a network, because programs expect another service at this "+
			"name; rename the sandbox", name)
	}
	return nil
}

// domain is the end of the full names of sandboxes. It is reserved for private use, so it never replaces a public name.
const domain = ".internal"

// foreign are names below the domain that clouds and container engines use.
var foreign = []string{"google", "ec2", "compute", "azure", "docker", "containers", "cluster", "svc"}

// checkNewName returns an error for the name of a network whose full names programs expect elsewhere.
func checkNewName(name string) error {
	if err := sandbox.CheckName(name); err != nil {
		return err
	}
	if slices.Contains(foreign, name) || checkMember(name) != nil {
		return fmt.Errorf("name %q is reserved, because programs expect other services at *.%[1]s%s; choose another name", name, domain)
	}
	return nil
}

// ids returns the IDs of the networks of a sandbox, of which some may no longer exist.
func ids(spec sandbox.Spec) []string {
	if list := spec.Annotations[naming.AnnotationNetworks]; list != "" {
		return strings.Split(list, ",")
	}
	return nil
}

// of returns the networks of a sandbox.
func (s *Service) of(spec sandbox.Spec) (out []entry) {
	for _, id := range ids(spec) {
		if e, ok := s.Store.get(spec.Owner, id); ok {
			out = append(out, e)
		}
	}
	return out
}

// Names returns the names of the networks of a sandbox.
func (s *Service) Names(spec sandbox.Spec) (out []string) {
	for _, e := range s.of(spec) {
		out = append(out, e.Name)
	}
	slices.Sort(out)
	return out
}

// Assign adds a new sandbox to networks.
func (s *Service) Assign(ctx context.Context, spec *sandbox.Spec, names []string) error {
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		e, err := s.Store.find(spec.Owner, name)
		if err != nil {
			return err
		}
		if err := s.checkRoom(ctx, e); err != nil {
			return err
		}
		if err := s.add(spec, e); err != nil {
			return err
		}
	}
	return nil
}

// add adds a network to a Spec, and drops those that no longer exist.
func (s *Service) add(spec *sandbox.Spec, e entry) error {
	if err := checkMember(spec.Name); err != nil {
		return err
	}
	var list []string
	for _, other := range s.of(*spec) {
		if other.ID != e.ID {
			list = append(list, other.ID)
		}
	}
	if len(list) >= maxJoined {
		return op.Errorf(op.Exhausted, "limit of %d networks of a sandbox reached; leave one with cove network leave", maxJoined)
	}
	naming.Annotate(spec, naming.AnnotationNetworks, strings.Join(append(list, e.ID), ","))
	return nil
}

// checkRoom returns an error if a network has as many members as possible.
func (s *Service) checkRoom(ctx context.Context, e entry) error {
	members, err := s.membersOf(ctx, e.Owner)
	if err == nil && len(members[e.ID]) >= maxMembers {
		err = op.Errorf(op.Exhausted, "network %q has %d sandboxes, which is the limit; create another network", e.Name, maxMembers)
	}
	return err
}

// membersOf returns the names of the members of an owner's networks, by ID of the network.
func (s *Service) membersOf(ctx context.Context, owner string) (map[string][]string, error) {
	list, err := s.Provider.List(ctx, sandbox.Filter{Owner: owner})
	if err != nil {
		return nil, fault.FromProvider("", err)
	}
	out := map[string][]string{}
	for _, sb := range list {
		for _, e := range s.of(sb.Spec) {
			out[e.ID] = append(out[e.ID], sb.Spec.Name)
		}
	}
	return out, nil
}

// List lists networks.
func (s *Service) List(ctx context.Context, in caller.UserIn) ([]Out, error) {
	chosen, err := caller.Select(ctx, in.User)
	if err != nil {
		return nil, err
	}
	members, err := s.membersOf(ctx, chosen.Filter())
	if err != nil {
		return nil, err
	}
	out := []Out{}
	for _, e := range s.Store.list(chosen.Has) {
		names := append([]string{}, members[e.ID]...)
		slices.Sort(names)
		out = append(out, Out{Name: e.Name, User: e.Owner, Created: e.Created, Sandboxes: names})
	}
	return out, nil
}

// DeleteIn names a network.
type DeleteIn struct {
	Network string `path:"network" doc:"Name of the network"`
	User    string `query:"user" default:"" doc:"Tenant that owns it; admins only"`
}

// Delete deletes a network.
func (s *Service) Delete(ctx context.Context, in DeleteIn) (string, error) {
	op.CallOf(ctx).TargetName = fault.Clip(in.Network)
	chosen, err := caller.Select(ctx, in.User)
	if err != nil {
		return "", err
	}
	e, err := s.Store.find(chosen.Owner, in.Network)
	if err != nil {
		return "", err
	}
	if err := s.Store.remove(e.ID); err != nil {
		return "", err
	}
	s.cut()
	return "Network " + e.Name + " deleted successfully", nil
}

// MemberIn names a network and a sandbox.
type MemberIn struct {
	Network string `path:"network" doc:"Name of the network"`
	Name    string `path:"name" doc:"Name of the sandbox"`
}

// MemberOut is a sandbox and its networks.
type MemberOut struct {
	Name     string   `json:"name"`
	Networks []string `json:"networks"`
}

// Join adds a sandbox to a network.
func (s *Service) Join(ctx context.Context, in MemberIn) (MemberOut, error) {
	s.members.Lock()
	defer s.members.Unlock()
	return s.change(ctx, in, func(spec *sandbox.Spec, e entry) error { return s.add(spec, e) })
}

// Leave removes a sandbox from a network.
func (s *Service) Leave(ctx context.Context, in MemberIn) (MemberOut, error) {
	out, err := s.change(ctx, in, func(spec *sandbox.Spec, e entry) error {
		list := ids(*spec)
		i := slices.Index(list, e.ID)
		if i < 0 {
			return op.Errorf(op.NotFound, "sandbox %q is not in network %q", spec.Name, e.Name)
		}
		naming.Annotate(spec, naming.AnnotationNetworks, strings.Join(slices.Delete(list, i, i+1), ","))
		return nil
	})
	s.cut()
	return out, err
}

// change changes the networks of a sandbox.
func (s *Service) change(ctx context.Context, in MemberIn, change func(*sandbox.Spec, entry) error) (MemberOut, error) {
	sb, err := s.Fleet.Find(ctx, in.Name)
	if err != nil {
		return MemberOut{}, err
	}
	e, err := s.Store.find(sb.Spec.Owner, in.Network)
	if err != nil {
		return MemberOut{}, err
	}
	if !slices.Contains(ids(sb.Spec), e.ID) {
		if err := s.checkRoom(ctx, e); err != nil {
			return MemberOut{}, err
		}
	}
	var failed error
	sb, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		failed = change(spec, e)
		return failed
	})
	switch {
	case failed != nil:
		return MemberOut{}, failed
	case err != nil:
		return MemberOut{}, fault.FromProvider(in.Name, err)
	}
	s.Fleet.Observe(sb)
	return MemberOut{Name: sb.Spec.Name, Networks: append([]string{}, s.Names(sb.Spec)...)}, nil
}
