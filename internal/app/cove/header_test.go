package cove

import (
	"maps"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
)

// TestHeadersGoToTheirOwnReceiver: the key of a tracing vendor is never sent to receivers of the
// audit log, and their keys are never sent to the vendor.
func TestHeadersGoToTheirOwnReceiver(t *testing.T) {
	t.Parallel()
	c, err := hubConfig(config.Cove{OTLPHeaders: map[string]string{"x-vendor": "secret"},
		AuditForwardHeaders: map[string]string{"x-audit": "other"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"x-audit": "other"}; !maps.Equal(c.Audit.ForwardHeaders, want) {
		t.Errorf("receivers of the audit log: got %v, want %v", c.Audit.ForwardHeaders, want)
	}
	if want := map[string]string{"x-vendor": "secret"}; !maps.Equal(c.Traces.Headers, want) {
		t.Errorf("receiver of traces: got %v, want %v", c.Traces.Headers, want)
	}
}
