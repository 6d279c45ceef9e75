package display

import (
	"context"
	"time"
)

// HandoverIn is a request of an agent.
type HandoverIn struct {
	Message string  `json:"message" arg:"true" minLength:"1" maxLength:"200" doc:"What the person should do, such as: Sign in to the shop"`
	Timeout float64 `json:"timeout" default:"600" minimum:"1" maximum:"3600" doc:"Timeout in seconds"`
}

// HelpMessage is what the call asks of a person.
func (in HandoverIn) HelpMessage() string { return in.Message }

// HandoverOut reports whether a person has helped.
type HandoverOut struct {
	Done bool `json:"done" doc:"Whether a person has taken over and released the mouse and keyboard"`
}

// Handover waits until a person has taken over the mouse and keyboard, and has released them.
func (s *Service) Handover(ctx context.Context, in HandoverIn) (HandoverOut, error) {
	timer := time.NewTimer(time.Duration(in.Timeout * float64(time.Second)))
	defer timer.Stop()
	taken := false
	for {
		now, _, changed := s.control.state()
		if taken && now.Holder != Person {
			return HandoverOut{Done: true}, nil
		}
		taken = taken || now.Holder == Person
		select {
		case <-ctx.Done():
			return HandoverOut{}, ctx.Err()
		case <-s.life.Done():
			return HandoverOut{}, nil
		case <-timer.C:
			return HandoverOut{}, nil
		case <-changed:
		}
	}
}
