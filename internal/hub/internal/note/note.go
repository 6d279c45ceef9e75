// Package note names the hub's own records on a sandbox, which the provider
// keeps as annotations.
package note

import "github.com/cove-sandbox/cove/internal/sandbox"

// The records.
const (
	Active    = "cove/last-active" // when it was last used, in Unix seconds
	App       = "cove/app"         // the caller's free text
	Scaledown = "cove/scaledown"   // the idle policy stop was requested by its other name
	Metadata  = "cove/metadata"    // the key-value pairs of an E2B client, as JSON
	Resume    = "cove/auto-resume" // requests of E2B clients wake it
	Closed    = "cove/closed"      // its ports are not public
	Template  = "cove/template"    // the template that an E2B client named
	Secrets   = "cove/secrets"     // names of the secrets it was given, comma-separated
	Claim     = "cove/claim"       // the object of a cluster that it serves: resource/namespace/name/uid
)

// Set writes a record.
func Set(s *sandbox.Spec, key, value string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
}
