package e2b

import (
	"context"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/fleet"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// ConnectIn selects a sandbox to wake.
type ConnectIn struct {
	ID      string `path:"id" doc:"ID of the sandbox"`
	Timeout *int   `json:"timeout" minimum:"0" doc:"Seconds until the timeout, unless a running sandbox has more left; default 300"`
	Memory  *bool  `json:"memory" doc:"false: restart it with only its disk"`
}

// Connect wakes a sandbox and extends its timeout.
func (s *Service) Connect(ctx context.Context, in ConnectIn) (Created, error) {
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return Created{}, err
	}
	life := standardTime
	if in.Timeout != nil {
		life = time.Duration(*in.Timeout) * time.Second
	}
	asleep := sb.State != sandbox.Running
	if asleep {
		op.CallOf(ctx).Status = http.StatusCreated
		if in.Memory != nil && !*in.Memory && sb.State == sandbox.Paused {
			if _, err := s.Sandboxes.Change(ctx, in.ID, s.Provider.Stop); err != nil {
				return Created{}, err
			}
		}
		if err := s.wake(ctx, in.ID); err != nil {
			return Created{}, err
		}
	}
	// The timeout of a sandbox that slept can be shortened.
	if sb, err = s.extend(ctx, in.ID, life, asleep); err != nil {
		return Created{}, err
	}
	return s.created(ctx, sb), nil
}

// wake starts or resumes a sandbox.
func (s *Service) wake(ctx context.Context, id string) error {
	_, err := s.Sandboxes.Change(ctx, id, func(ctx context.Context, id string) error {
		sb, err := s.Provider.Get(ctx, id)
		if err == nil && sb.State == sandbox.Paused {
			return s.Provider.Resume(ctx, id)
		}
		return s.Fleet.Start(ctx, id, s.Provider.Start)
	})
	return err
}

// extend sets the timeout of a sandbox. Without shorten, the timeout is never earlier than before.
func (s *Service) extend(ctx context.Context, id string, life time.Duration, shorten bool) (sandbox.Sandbox, error) {
	if life > s.MaxTimeout {
		return sandbox.Sandbox{}, op.Errorf(op.Invalid, "timeout %d: use at most %d seconds", int(life.Seconds()), int(s.MaxTimeout.Seconds()))
	}
	sb, err := s.Fleet.Find(ctx, id)
	if err != nil {
		return sb, err
	}
	end := time.Now().Add(max(life, time.Millisecond))
	if at, ok := fleet.Expiry(sb); !shorten && (ok && at.After(end) || !ok && sb.Spec.Lifetime.Timeout <= 0) {
		return sb, nil
	}
	sb, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
		spec.Lifetime.Timeout = end.Sub(sb.Created)
		if life > 0 || spec.Lifetime.Period == 0 {
			spec.Lifetime.Period = max(life, time.Second)
		}
		return nil
	})
	if err != nil {
		return sb, fault.FromProvider(id, err)
	}
	s.Fleet.Observe(sb)
	return sb, nil
}

// ResumeIn selects a sandbox to wake for an older client.
type ResumeIn struct {
	ID        string `path:"id" doc:"ID of the sandbox"`
	Timeout   *int   `json:"timeout" minimum:"0" doc:"Seconds from now until the timeout; default 15"`
	AutoPause *bool  `json:"autoPause" doc:"Pause it at the timeout instead of deleting it"`
}

// Resume wakes a sleeping sandbox.
func (s *Service) Resume(ctx context.Context, in ResumeIn) (Created, error) {
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return Created{}, err
	}
	if sb.State == sandbox.Running {
		return Created{}, op.Errorf(op.Conflict, "sandbox %q is already running", in.ID)
	}
	if in.AutoPause != nil {
		_, err = s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
			spec.Lifetime.EndPolicy = ""
			if *in.AutoPause {
				spec.Lifetime.EndPolicy = sandbox.IdlePause
			}
			return nil
		})
		if err != nil {
			return Created{}, fault.FromProvider(in.ID, err)
		}
	}
	life := int(oldTime.Seconds())
	if in.Timeout != nil {
		life = *in.Timeout
	}
	return s.Connect(ctx, ConnectIn{ID: in.ID, Timeout: &life})
}

// PauseIn selects a sandbox to pause.
type PauseIn struct {
	ID      string `path:"id" doc:"ID of the sandbox"`
	Memory  bool   `json:"memory" default:"true" nullable:"true" doc:"Keep its memory; false: stop it"`
	Healthy *bool  `json:"requireHealthyGuest" doc:"Ignored: a sandbox is paused even if its server does not respond"`
}

// Pause pauses a sandbox. Its timeout does not run while it is paused.
func (s *Service) Pause(ctx context.Context, in PauseIn) (op.None, error) {
	sb, err := s.Fleet.Find(ctx, in.ID)
	if err != nil {
		return op.None{}, err
	}
	if sb.State != sandbox.Running {
		return op.None{}, op.Errorf(op.Conflict, "sandbox %q is already paused", in.ID)
	}
	do := s.Provider.Stop
	if in.Memory && s.Provider.Abilities().Pause {
		do = s.Provider.Pause
	}
	if sb.Spec.Lifetime.Period == 0 {
		// Our own API created it: the timeout would delete it while it is paused.
		_, err := s.Provider.Update(ctx, sb.ID, func(spec *sandbox.Spec) error {
			spec.Lifetime.Period = max(spec.Lifetime.Timeout, standardTime)
			return nil
		})
		if err != nil {
			return op.None{}, fault.FromProvider(in.ID, err)
		}
	}
	_, err = s.Sandboxes.Change(ctx, in.ID, do)
	return op.None{}, err
}

// TimeoutIn is a new timeout.
type TimeoutIn struct {
	ID      string `path:"id" doc:"ID of the sandbox"`
	Timeout int    `json:"timeout" minimum:"0" doc:"Seconds from now; 0: immediately"`
}

// SetTimeout sets the timeout of a sandbox.
func (s *Service) SetTimeout(ctx context.Context, in TimeoutIn) (op.None, error) {
	_, err := s.extend(ctx, in.ID, time.Duration(in.Timeout)*time.Second, true)
	return op.None{}, err
}

// RefreshIn extends a timeout.
type RefreshIn struct {
	ID       string `path:"id" doc:"ID of the sandbox"`
	Duration int    `json:"duration" default:"60" minimum:"0" maximum:"3600" nullable:"true" doc:"Seconds from now"`
}

// Refresh extends the timeout of a sandbox.
func (s *Service) Refresh(ctx context.Context, in RefreshIn) (op.None, error) {
	_, err := s.extend(ctx, in.ID, time.Duration(in.Duration)*time.Second, false)
	return op.None{}, err
}
