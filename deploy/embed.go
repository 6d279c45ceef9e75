// Package deploy holds what an installation consists of. Of that, the hub itself needs the
// seccomp profile.
package deploy

import _ "embed"

// Seccomp is the seccomp profile of containers, for Docker: the engine's default, plus the
// user, process and network namespaces that Chromium's own sandbox needs, minus what
// these would open: packet filters, netlink other than routing, raw packets and rare socket
// families.
//
//go:embed seccomp.json
var Seccomp string
