// Package page operates the pages of the browser in a sandbox.
//
// It composes the services below page/internal, which share one driver, and lists their operations. Package browser owns
// the browser itself.
package page

import (
	"errors"
	"log/slog"
	"slices"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/action"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/captcha"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/capture"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/navigation"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/network"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/prompt"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/state"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/tablist"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/wait"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Browser is the browser whose pages are operated.
type Browser = driver.Browser

// Config of the service.
type Config struct {
	Browser   Browser
	Runner    *proc.Runner
	Home      string
	Workspace string
	Log       *slog.Logger
}

// Service operates pages.
type Service struct {
	driver     *driver.Driver
	navigation *navigation.Service
	wait       *wait.Service
	action     *action.Service
	capture    *capture.Service
	content    *content.Service
	tabs       *tablist.Service
	prompt     *prompt.Service
	captcha    *captcha.Service
	state      *state.Service
	network    *network.Service
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	d := driver.New(driver.Config{
		Browser: c.Browser, Base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, Log: c.Log,
	})
	page := content.New(d, c.Runner)
	return &Service{
		driver: d, navigation: navigation.New(d), wait: wait.New(d), action: action.New(d, page),
		capture: capture.New(d, page, c.Runner), content: page, tabs: tablist.New(d), prompt: prompt.New(d),
		captcha: captcha.New(d), state: state.New(d), network: network.New(d),
	}
}

// Close ends the recording and closes the connection. The browser keeps running.
func (s *Service) Close() error { return errors.Join(s.capture.Close(), s.driver.Close()) }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return slices.Concat(
		s.navigation.Ops(), s.wait.Ops(), s.action.Ops(), s.capture.Ops(), s.content.Ops(),
		s.tabs.Ops(), s.network.DownloadOps(), s.prompt.Ops(), s.tabs.ContextOps(), s.captcha.Ops(),
		s.state.Ops(), s.network.Ops(),
	)
}
