package agentsandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Pauses between attempts to create a sandbox.
const (
	minRetry = 2 * time.Second
	maxRetry = 2 * time.Minute
)

// sync makes an object and its sandbox agree, and returns when to look again.
func (s *Service) sync(ctx context.Context, k key) time.Time {
	o, kind, known := s.get(k)
	switch {
	case !known:
		return time.Time{} // it is queued once everything is known
	case k.resource == pools:
		return s.syncPool(ctx, k, kind, o)
	case k.resource == templates:
		return time.Time{}
	}
	here := o != nil && o.Metadata.Deleted == nil
	for uid, id := range s.ownedBy(k) {
		if here && uid == o.Metadata.UID {
			continue
		}
		if err := s.end(ctx, k, uid, id); err != nil {
			s.Log.Error("cannot delete the sandbox of a deleted object; trying again", "sandbox", id, "object", k.name, "error", err)
			return time.Now().Add(minRetry)
		}
	}
	if !here {
		s.forgetTries(k)
		return time.Time{}
	}
	return s.serve(ctx, k, kind, o)
}

// serve makes the sandbox of an object, and tells how it is.
func (s *Service) serve(ctx context.Context, k key, kind string, o *object) time.Time {
	life, now := o.lifetime(k.resource), time.Now()
	at := life.ShutdownTime
	if done, ok := o.Status.find(finishedCondition); ok && done.Status == "True" && life.TTL != nil {
		if ttl := done.Changed.Add(time.Duration(*life.TTL) * time.Second); at == nil || ttl.Before(*at) {
			at = &ttl
		}
	}
	if at != nil && !at.After(now) {
		return s.expire(ctx, k, kind, o)
	}
	var again time.Time
	if id, ok := s.ownedBy(k)[o.Metadata.UID]; ok {
		again = s.report(ctx, k, kind, o, id)
	} else if _, made := o.Status.find(createdCondition); made {
		s.finish(ctx, k, kind, o, "SandboxMissing", "the sandbox does not exist any more; delete this object and create it again to get another")
	} else {
		again = s.create(ctx, k, kind, o)
	}
	if at != nil && (again.IsZero() || at.Before(again)) {
		again = *at
	}
	return again
}

// expire ends the sandbox of an object whose time is up, then the object if it asks for that.
func (s *Service) expire(ctx context.Context, k key, kind string, o *object) time.Time {
	if id, ok := s.ownedBy(k)[o.Metadata.UID]; ok {
		if err := s.end(ctx, k, o.Metadata.UID, id); err != nil {
			s.Log.Error("cannot delete the sandbox of an expired object; trying again", "sandbox", id, "object", k.name, "error", err)
			return time.Now().Add(minRetry)
		}
	}
	if strings.HasPrefix(o.lifetime(k.resource).ShutdownPolicy, "Delete") {
		if err := s.Cluster.Remove(ctx, kind, k.namespace, k.name, o.Metadata.UID); err != nil && !errors.Is(err, sandbox.ErrNotFound) {
			return s.later(k, "delete", err)
		}
		return time.Time{}
	}
	reason := "ClaimExpired"
	if k.resource == sandboxes {
		reason = "SandboxExpired"
	}
	return s.finish(ctx, k, kind, o, reason, "its time is up, and its sandbox was deleted")
}

// later logs why something must be tried again.
func (s *Service) later(k key, what string, err error) time.Time {
	if errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrInUse) || errors.Is(err, context.Canceled) {
		return time.Time{} // another hub does
	}
	s.Log.Warn("cannot "+what+" an object; trying again", "resource", k.resource, "namespace", k.namespace, "object", k.name, "error", err)
	return time.Now().Add(maxRetry)
}

// as is a context for operations of an owner.
func as(ctx context.Context, owner string) context.Context {
	return op.WithCall(ctx, &op.Call{Subject: owner, Role: "user", Via: "claim"})
}

// making is what is needed to create the sandbox of an object.
type making struct {
	key    key
	uid    string
	env    environment.Environment
	name   string
	vars   map[string]string
	labels map[string]string
}

// recorded returns what changes sandboxes, as operations that are in the audit log.
func (s *Service) recorded() map[string]op.Op {
	out := map[string]op.Op{}
	add := func(name string, run func(context.Context, any) (any, error)) {
		out[name] = s.Record(op.Op{Spec: op.Spec{Name: name}, Call: run})
	}
	add(CreateOp, func(ctx context.Context, in any) (any, error) {
		m := in.(making)
		return s.Sandboxes.MakeFrom(ctx, m.env, lifecycle.CreateIn{Name: m.name, Env: m.vars, Labels: m.labels}, func(spec *sandbox.Spec) {
			naming.Annotate(spec, naming.AnnotationClaim, mark(m.key, m.uid))
		})
	})
	add("claim_delete", func(ctx context.Context, in any) (any, error) {
		return s.Sandboxes.Delete(ctx, lifecycle.NameIn{Name: in.(string)})
	})
	add("claim_stop", func(ctx context.Context, in any) (any, error) {
		return s.Sandboxes.Stop(ctx, lifecycle.NameIn{Name: in.(string)})
	})
	add("claim_start", func(ctx context.Context, in any) (any, error) {
		return s.Sandboxes.Start(ctx, lifecycle.NameIn{Name: in.(string)})
	})
	return out
}

// end deletes the sandbox of an object. Its owner is who it was made for, even if the namespace has another by now.
func (s *Service) end(ctx context.Context, k key, uid, id string) error {
	sb, err := s.Provider.Get(ctx, id)
	if err == nil {
		_, err = s.ops["claim_delete"].Call(as(ctx, sb.Spec.Owner), id)
	}
	if e, ok := op.AsError(err); ok && e.Code == op.NotFound || errors.Is(err, sandbox.ErrNotFound) {
		err = nil
	}
	if err == nil {
		s.disown(k, uid)
	}
	return err
}

// create makes the sandbox of an object.
func (s *Service) create(ctx context.Context, k key, kind string, o *object) time.Time {
	m, reason, refused := s.plan(k, o)
	if reason != "" {
		return s.tell(ctx, k, kind, o, condition{Status: "False", Reason: reason, Message: refused})
	}
	s.noteTry(k)
	var sb sandbox.Sandbox
	var err error
	for _, name := range namesFor(k.name, o.Metadata.UID) {
		m.name = name
		var out any
		out, err = s.ops[CreateOp].Call(as(ctx, s.Owners[k.namespace]), m)
		if err == nil {
			sb = out.(sandbox.Sandbox)
		}
		if e, ok := op.AsError(err); !ok || e.Code != op.Conflict {
			break
		}
	}
	if err != nil {
		return s.refuse(ctx, k, kind, o, err)
	}
	s.forgetTries(k)
	s.own(k, o.Metadata.UID, sb.ID)
	return s.report(ctx, k, kind, o, sb.ID)
}

// namesFor are the names that the sandbox of an object may have: its own, and one that nobody else has.
func namesFor(name, uid string) []string {
	var out []string
	if sandbox.CheckName(name) == nil && !sandbox.IsReserved(name) {
		out = append(out, name)
	}
	sum := sha256.Sum256([]byte(uid))
	short := strings.Map(func(r rune) rune {
		if r == '.' {
			return '-'
		}
		return r
	}, name[:min(len(name), sandbox.MaxName-9)])
	return append(out, short+"-"+hex.EncodeToString(sum[:4]))
}

// refuse tells why a sandbox could not be made. What only another template can change is not tried again.
func (s *Service) refuse(ctx context.Context, k key, kind string, o *object, err error) time.Time {
	if ctx.Err() != nil || errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrInUse) {
		return time.Time{} // another hub will do it
	}
	e, ok := op.AsError(err)
	if !ok {
		s.Log.Error("cannot create the sandbox of an object", "resource", k.resource, "namespace", k.namespace, "object", k.name, "error", err)
		e = &op.Error{Code: op.Internal, Msg: "the sandbox could not be created; the hub's log has the details"}
	}
	s.mu.Lock()
	tries, now := s.spaces[k.namespace].tries, time.Now()
	again := now.Add(min(minRetry<<min(tries[k].count, 10), maxRetry))
	tries[k] = attempts{count: tries[k].count + 1, last: now, full: e.Code == op.Exhausted}
	s.mu.Unlock()
	reason := "CreateFailed"
	switch e.Code {
	case op.Invalid, op.Denied:
		reason, again = "InvalidTemplate", time.Time{}
	case op.Exhausted:
		reason = "QuotaExceeded"
	}
	if told := s.tell(ctx, k, kind, o, condition{Status: "False", Reason: reason, Message: e.Msg}); !told.IsZero() {
		return told
	}
	return again
}

// noteTry notes that an object which had failed is tried again.
func (s *Service) noteTry(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if tries := s.spaces[k.namespace].tries; tries[k].count > 0 {
		t := tries[k]
		t.last = time.Now()
		tries[k] = t
	}
}

func (s *Service) forgetTries(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spaces[k.namespace].tries, k)
}

// plan says what sandbox an object asks for, or why there can be none.
func (s *Service) plan(k key, o *object) (m making, reason, refused string) {
	m = making{key: k, uid: o.Metadata.UID, labels: o.Spec.Additional.Labels}
	from, name := o, environment.Custom
	if o.Size > 0 {
		return m, "InvalidTemplate", tooLarge(k.resource, o)
	}
	if k.resource == claims {
		pool, template, problem := s.resolve(k.namespace, o)
		if problem != "" {
			return m, "TemplateNotFound", problem
		}
		if from = template; from.Size > 0 {
			return m, "InvalidTemplate", tooLarge(templates, from)
		}
		if pool != "" {
			name = poolName(k.namespace, pool)
		}
	}
	env, problems := from.toEnvironment(s.Owners[k.namespace], name)
	if k.resource == claims {
		problems = append(problems, m.claim(o, from, env)...)
	}
	if k.resource == sandboxes && o.suspended() {
		problems = append(problems, "operatingMode: a sandbox must have run before it can be suspended; set it to Running")
	}
	m.env = env
	if len(problems) > 0 {
		return m, "InvalidTemplate", "a sandbox cannot be made of this: " + strings.Join(problems, "; ")
	}
	return m, "", ""
}

func tooLarge(resource string, o *object) string {
	return fmt.Sprintf("%s %q has %d bytes; use at most %d", resource, o.Metadata.Name, o.Size, maxObject)
}

// claim adds what a claim says beyond its template, and returns what it may not say.
func (m *making) claim(o, template *object, env environment.Environment) (problems []string) {
	if len(o.Spec.Additional.Annotations) > 0 {
		problems = append(problems, "additionalPodMetadata.annotations: annotations of a Pod are the hub's; use labels")
	}
	if len(o.Spec.VolumeClaimTemplates) > 0 {
		problems = append(problems, "volumeClaimTemplates: "+noVolumes)
	}
	m.vars = map[string]string{}
	for _, v := range o.Spec.Env {
		_, there := env.Env[v.Name]
		switch {
		case template.Spec.Injection != "Allowed" && template.Spec.Injection != "Overrides":
			return append(problems, fmt.Sprintf("env: template %q does not allow it; set its "+
				"envVarsInjectionPolicy to Allowed or Overrides", template.Metadata.Name))
		case there && template.Spec.Injection == "Allowed":
			problems = append(problems, fmt.Sprintf("env: %s is set by template %q, whose envVarsInjectionPolicy "+
				"would have to be Overrides", v.Name, template.Metadata.Name))
		}
		m.vars[v.Name] = v.Value
	}
	return problems
}

// resolve finds the pool and the template of a claim.
func (s *Service) resolve(namespace string, o *object) (pool string, template *object, problem string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.spaces[namespace].objects
	ref := o.Spec.TemplateRef.Name
	switch pool = o.Spec.WarmPoolRef.Name; {
	case pool == "" && o.Spec.WarmPool != "none" && o.Spec.WarmPool != "default":
		pool = o.Spec.WarmPool
	}
	if pool == "" && o.Spec.WarmPool != "none" { // any pool of the template
		for name, p := range all[pools] {
			if p.Spec.TemplateRef.Name == ref && (pool == "" || name < pool) {
				pool = name
			}
		}
	} else if pool != "" {
		p, ok := all[pools][pool]
		if !ok {
			return "", nil, fmt.Sprintf("no SandboxWarmPool %q in namespace %q; create it", pool, namespace)
		}
		if o.Spec.WarmPoolRef.Name != "" {
			ref = p.Spec.TemplateRef.Name
		} else if p.Spec.TemplateRef.Name != ref {
			return "", nil, fmt.Sprintf("SandboxWarmPool %q is of template %q, not %q; name another", pool, p.Spec.TemplateRef.Name, ref)
		}
	}
	if template = all[templates][ref]; template == nil {
		return "", nil, fmt.Sprintf("no SandboxTemplate %q in namespace %q; create it", ref, namespace)
	}
	return pool, template, ""
}
