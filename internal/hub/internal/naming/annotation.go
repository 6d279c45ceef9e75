package naming

import "github.com/cove-sandbox/cove/internal/sandbox"

// Annotations of a sandbox, which the provider stores with it.
const (
	AnnotationLastActive = "cove/last-active" // when it was last used, in Unix seconds
	AnnotationApp        = "cove/app"         // free text of the caller
	AnnotationScaledown  = "cove/scaledown"   // the idle policy stop was requested by its other name
	AnnotationMetadata   = "cove/metadata"    // key-value pairs of an E2B client, as JSON
	AnnotationAutoResume = "cove/auto-resume" // requests of E2B clients wake it
	AnnotationClosed     = "cove/closed"      // its ports are not public
	AnnotationMask       = "cove/mask-host"   // Host header of requests of E2B clients to its ports; ${PORT} is the port
	AnnotationTemplate   = "cove/template"    // the template that an E2B client named
	AnnotationTrust      = "cove/trust"       // its programs trust the hub's certificate authority
	AnnotationSecrets    = "cove/secrets"     // names of the secrets that it uses, comma-separated
	AnnotationNetworks   = "cove/networks"    // IDs of the private networks that it is in, comma-separated
	AnnotationClaim      = "cove/claim"       // the cluster object that it serves: resource/namespace/name/uid
)

// Annotate sets an annotation.
func Annotate(s *sandbox.Spec, key, value string) {
	if s.Annotations == nil {
		s.Annotations = map[string]string{}
	}
	s.Annotations[key] = value
}
