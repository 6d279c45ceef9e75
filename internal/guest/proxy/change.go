package proxy

import (
	"context"
	"net"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Mapping is a mapping in a response.
type Mapping struct {
	Source       string `json:"source"`
	Target       string `json:"target"`
	SourceHost   string `json:"source_host"`
	SourcePath   string `json:"source_path"`
	InternalPort int    `json:"internal_port" doc:"Port of the proxy that serves the host"`
}

func (s *Service) describe(m mapping) Mapping {
	return Mapping{m.source, m.target, m.host, m.path, s.port()}
}

// port is the port of the proxy.
func (s *Service) port() int {
	if s.cfg.Address == nil {
		return 0
	}
	_, port, err := net.SplitHostPort(s.cfg.Address())
	if err != nil {
		return 0
	}
	n, _ := parsePort(port)
	return n
}

// change replaces the rules, points programs to the proxy if necessary, and closes connections that bypass a new mapping.
func (s *Service) change(ctx context.Context, next func(rules) (*rules, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := next(*s.rules.Load())
	if err != nil {
		return err
	}
	s.rules.Store(r)
	for l := range s.links {
		if r.covered(l.host, l.port) {
			l.Close()
		}
	}
	s.point(ctx, r)
	return nil
}

// ListMappings returns the mappings in matching order.
func (s *Service) ListMappings(context.Context, op.None) ([]Mapping, error) {
	list := []Mapping{}
	for _, m := range s.rules.Load().mappings {
		list = append(list, s.describe(m))
	}
	return list, nil
}

// MappingIn is a new mapping.
type MappingIn struct {
	Source string `json:"source" doc:"[scheme://]host[:port][/path]; * in the host matches any characters"`
	Target string `json:"target" doc:"[host:]port[/path] of the service; the host must be this machine"`
}

// AddMapping adds or replaces a mapping.
func (s *Service) AddMapping(ctx context.Context, in MappingIn) (Mapping, error) {
	m, err := parseMapping(in.Source, in.Target, s.cfg.Deny)
	if err != nil {
		return Mapping{}, op.Errorf(op.Invalid, "%w", err)
	}
	err = s.change(ctx, func(r rules) (*rules, error) {
		if len(r.mappings) >= maxMappings {
			return nil, op.Errorf(op.Exhausted, "mapping limit reached (%d); remove one first", maxMappings)
		}
		return r.withMapping(m), nil
	})
	if err != nil {
		return Mapping{}, err
	}
	return s.describe(m), nil
}

// SourceIn identifies a mapping.
type SourceIn struct {
	Source string `path:"source" doc:"Source of the mapping, URL-encoded"`
}

// RemoveMapping removes a mapping.
func (s *Service) RemoveMapping(ctx context.Context, in SourceIn) (any, error) {
	var want mapping
	if err := want.parseSource(strings.TrimSpace(in.Source)); err != nil {
		return nil, op.Errorf(op.Invalid, "invalid source %.200q: %w", in.Source, err)
	}
	err := s.change(ctx, func(r rules) (*rules, error) {
		left := slices.DeleteFunc(slices.Clone(r.mappings), want.sameSource)
		if len(left) == len(r.mappings) {
			return nil, op.Errorf(op.NotFound, "no mapping with source %q; list mappings with GET /v1/proxy/mappings", in.Source)
		}
		r.mappings = left
		return &r, nil
	})
	return nil, err
}

// PatternIn is a pattern for hosts.
type PatternIn struct {
	Pattern string `json:"pattern" doc:"A name with its subdomains, *.name, .name, an address or a network"`
}

// ListExcludes returns the patterns.
func (s *Service) ListExcludes(context.Context, op.None) ([]string, error) {
	list := []string{}
	for _, p := range s.rules.Load().exclude {
		list = append(list, p.text)
	}
	return list, nil
}

// AddExclude adds a pattern.
func (s *Service) AddExclude(ctx context.Context, in PatternIn) (any, error) {
	p, err := parsePattern(in.Pattern)
	if err != nil {
		return nil, op.Errorf(op.Invalid, "%w", err)
	}
	return nil, s.change(ctx, func(r rules) (*rules, error) {
		if slices.ContainsFunc(r.exclude, func(have pattern) bool { return have.text == p.text }) {
			return &r, nil
		}
		if len(r.exclude) >= maxPatterns {
			return nil, op.Errorf(op.Exhausted, "pattern limit reached (%d); remove one first", maxPatterns)
		}
		r.exclude = append(slices.Clone(r.exclude), p)
		return &r, nil
	})
}

// RemoveExclude removes a pattern.
func (s *Service) RemoveExclude(ctx context.Context, in PatternIn) (any, error) {
	text := strings.ToLower(strings.TrimSpace(in.Pattern))
	return nil, s.change(ctx, func(r rules) (*rules, error) {
		left := slices.DeleteFunc(slices.Clone(r.exclude), func(p pattern) bool { return p.text == text })
		if len(left) == len(r.exclude) {
			return nil, op.Errorf(op.NotFound, "no such pattern: %.80q; list them with GET /v1/proxy/excludes", in.Pattern)
		}
		r.exclude = left
		return &r, nil
	})
}
