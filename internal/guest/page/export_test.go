package page

import (
	"github.com/cove-sandbox/cove/internal/guest/page/internal/action"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/captcha"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/capture"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/network"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/prompt"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/state"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/tablist"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/wait"
)

// Parts are the services that a Service composes.
type Parts struct {
	Navigation *navigation.Service
	Wait       *wait.Service
	Action     *action.Service
	Capture    *capture.Service
	Content    *content.Service
	Tabs       *tablist.Service
	Prompt     *prompt.Service
	Captcha    *captcha.Service
	State      *state.Service
	Network    *network.Service
}

// Parts returns the services that s composes.
func (s *Service) Parts() Parts {
	return Parts{s.navigation, s.wait, s.action, s.capture, s.content, s.tabs, s.prompt, s.captcha, s.state, s.network}
}
