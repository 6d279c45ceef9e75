// Package page operates the pages of the sandbox's browser: it navigates, clicks, fills, reads, waits, and controls tabs,
// cookies, stored state, network and dialogs.
//
// It owns one connection to the browser and what was listed to callers. Elements are found and acted on by
// guest/internal/locate, tabs are modeled by guest/internal/tab. The browser itself belongs to guest/browser.
package page

import (
	"context"
	"log/slog"
	"slices"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/film"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Browser is the browser whose pages are operated.
type Browser interface {
	// Reach keeps the browser running until release. pipe connects to it, recent are the ids of its tabs, most recently
	// used first.
	Reach(ctx context.Context) (pipe *cdp.Pipe, recent []string, release func(), err error)
	// HintRestart adds to the reply that the browser was restarted since the last one.
	HintRestart(ctx context.Context)
	// Downloads is the folder of downloaded files.
	Downloads() string
}

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
	cfg  Config
	base pathname.Base

	opening chan struct{} // held while a connection is opened

	mu       sync.Mutex
	pipe     *cdp.Pipe    // of the browser that is connected
	tabs     *tab.Browser // nil before the first use
	listed   map[string]listing
	pictures map[string][]string // last snapshot of each tab, by line
	record   *film.Film
	chosen   chosen
	closed   bool
	kept     kept // settings that survive a restart of the browser
}

// New returns the service. It has no side effects.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return &Service{
		cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, opening: make(chan struct{}, 1),
		listed: map[string]listing{}, pictures: map[string][]string{},
	}
}

// Close ends the connection and a recording. The browser keeps running.
func (s *Service) Close() error {
	s.mu.Lock()
	b, r := s.tabs, s.record
	s.tabs, s.closed = nil, true
	s.mu.Unlock()
	if r != nil {
		r.Stop()
	}
	if b != nil {
		b.Close()
	}
	return nil
}

func spec(name, route, sdk, verb, doc string) op.Spec {
	return op.Spec{Name: name, Route: route, Tag: "browser", SDK: "browser." + sdk, Verb: "browser " + verb, Doc: doc}
}

func reading(s op.Spec) op.Spec { s.ReadOnly = true; return s }

// Ops lists the operations.
func (s *Service) Ops() []op.Op {
	return slices.Concat(s.navigationOps(), s.actionOps(), s.readingOps(), s.tabOps(), s.stateOps(), s.networkOps())
}
