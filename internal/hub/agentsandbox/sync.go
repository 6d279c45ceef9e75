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

// sync synchronizes an object and its sandbox, and returns when to check again.
func (s *Service) sync(ctx context.Context, k key) time.Time {
	o, kind, known := s.get(k)
	switch {
	case !known:
		return time.Time{} // queued when all objects are known
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
			s.Log.Error("cannot delete sandbox of deleted object; retrying", "sandbox", id, "object", k.name, "error", err)
			return time.Now().Add(minRetry)
		}
	}
	if !here {
		s.forgetTries(k)
		return time.Time{}
	}
	return s.serve(ctx, k, kind, o)
}

// serve creates the sandbox of an object and reports its state.
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
		s.finish(ctx, k, kind, o, "SandboxMissing", "the sandbox was deleted; recreate this object to get a new one")
	} else {
		again = s.create(ctx, k, kind, o)
	}
	if at != nil && (again.IsZero() || at.Before(again)) {
		again = *at
	}
	return again
}

// expire deletes the sandbox of an expired object, and the object if its policy requires that.
func (s *Service) expire(ctx context.Context, k key, kind string, o *object) time.Time {
	if id, ok := s.ownedBy(k)[o.Metadata.UID]; ok {
		if err := s.end(ctx, k, o.Metadata.UID, id); err != nil {
			s.Log.Error("cannot delete sandbox of expired object; retrying", "sandbox", id, "object", k.name, "error", err)
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
	return s.finish(ctx, k, kind, o, reason, "expired; the sandbox was deleted")
}

// later logs an error and returns when to retry.
func (s *Service) later(k key, action string, err error) time.Time {
	if errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrInUse) || errors.Is(err, context.Canceled) {
		return time.Time{} // another hub is active
	}
	s.Log.Warn("cannot synchronize object; retrying", "action", action, "resource", k.resource,
		"namespace", k.namespace, "object", k.name, "error", err)
	return time.Now().Add(maxRetry)
}

// as returns a context for operations of an owner.
func as(ctx context.Context, owner string) context.Context {
	return op.WithCall(ctx, &op.Call{Subject: owner, Role: "user", Via: "claim"})
}

// making describes the sandbox of an object.
type making struct {
	key    key
	uid    string
	env    environment.Environment
	name   string
	vars   map[string]string
	labels map[string]string
}

// recorded returns the operations that change sandboxes, which the audit log records.
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

// end deletes the sandbox of an object, on behalf of the owner that it was created for.
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

// create creates the sandbox of an object.
func (s *Service) create(ctx context.Context, k key, kind string, o *object) time.Time {
	m, reason, refused := s.plan(k, o)
	if reason != "" {
		return s.setConditions(ctx, k, kind, o, condition{Status: "False", Reason: reason, Message: refused})
	}
	s.recordTry(k)
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

// namesFor returns candidates for the name of the sandbox: the name of the object, and a unique one.
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

// refuse reports why a sandbox could not be created. It does not retry if only a change of the template
// can help.
func (s *Service) refuse(ctx context.Context, k key, kind string, o *object, err error) time.Time {
	if ctx.Err() != nil || errors.Is(err, sandbox.ErrClosed) || errors.Is(err, sandbox.ErrInUse) {
		return time.Time{} // another hub will create it
	}
	e, ok := op.AsError(err)
	if !ok {
		s.Log.Error("cannot create sandbox of object", "resource", k.resource, "namespace", k.namespace, "object", k.name, "error", err)
		e = &op.Error{Code: op.Internal, Msg: "cannot create the sandbox; see the log of the hub"}
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
	if reported := s.setConditions(ctx, k, kind, o, condition{Status: "False", Reason: reason, Message: e.Msg}); !reported.IsZero() {
		return reported
	}
	return again
}

// recordTry records a retry of a failed object.
func (s *Service) recordTry(k key) {
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

// plan returns the sandbox that an object describes, or why it is unsupported.
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
	problems = append(problems, s.unenforced(env)...)
	if k.resource == claims {
		problems = append(problems, m.claim(o, from, env)...)
	}
	if k.resource == sandboxes && o.suspended() {
		problems = append(problems, "operatingMode: a new sandbox cannot be suspended; set it to Running")
	}
	m.env = env
	if len(problems) > 0 {
		return m, "InvalidTemplate", "unsupported fields: " + strings.Join(problems, "; ")
	}
	return m, "", ""
}

func tooLarge(resource string, o *object) string {
	return fmt.Sprintf("%s %q has %d bytes; use at most %d", resource, o.Metadata.Name, o.Size, maxObject)
}

// claim adds the fields of a claim to those of its template, and returns the unsupported ones.
func (m *making) claim(o, template *object, env environment.Environment) (problems []string) {
	if len(o.Spec.Additional.Annotations) > 0 {
		problems = append(problems, "additionalPodMetadata.annotations: annotations of Pods are reserved for the hub; use labels")
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
			problems = append(problems, fmt.Sprintf("env: %s is set by template %q; set its envVarsInjectionPolicy "+
				"to Overrides", v.Name, template.Metadata.Name))
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
			return "", nil, fmt.Sprintf("SandboxWarmPool %q has template %q, not %q; use another pool", pool, p.Spec.TemplateRef.Name, ref)
		}
	}
	if template = all[templates][ref]; template == nil {
		return "", nil, fmt.Sprintf("no SandboxTemplate %q in namespace %q; create it", ref, namespace)
	}
	return pool, template, ""
}
