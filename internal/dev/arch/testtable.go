package arch

// tests lists what the tests of a package import beyond what the package may import.
// They may always import their own package and internal/dev/testenv. Tests of one half do
// not import the other, except where they show that both work together.
//
// Paths are below internal/ unless they begin with a slash.
const tests = `
/client: auth guest/bash guest/file guest/port guest/shell api/health hub api/op system/proc provider/mem sandbox surface/rest
network/relay: network/egress sandbox
system/isolate: system/isolate/control system/isolate/gvisor system/isolate/hostroot system/isolate/outputlog
	system/isolate/unixsocket /test/attack
guest/internal/vt: guest/internal/pty
guest/internal/document: document/markdown
guest/activity: guest/bash guest/e2b/envd system/proc surface/rest
guest/bind: surface/rest
guest/browser: auth guest/display surface/rest
guest/e2b/desktop: guest/display
guest/display: guest/browser guest/internal/cdp surface/rest
guest/page: guest/browser guest/display guest/internal/cdp
guest/preview: surface/rest
guest/proxy: network/egress sandbox
guest/workbench: surface/rest
guest/code: guest/jupyter guest/node system/proc surface/rest
guest/convert: document/markdown
guest/file: filesystem/atomicfile guest/internal/document guest/internal/pyerr
guest/shell: surface/rest
provider/docker: /deploy provider/providertest provider/providertest/outbound /test/cluster
provider/kubernetes/internal/bucket: /test/cluster
provider/kubernetes/internal/archive: /test/cluster
provider/kubernetes: /client provider/providertest provider/providertest/outbound /test/cluster
provider/mem: provider/providertest provider/providertest/payload
provider/local: provider/providertest provider/providertest/outbound
hub/internal/pool: guest/bind api/op provider/local provider/mem surface/rest
hub/internal/caller: sandbox
hub/e2b: telemetry/metric
hub/fleet: hub/internal/tenant
hub: api/identity hub/internal/naming network/relay provider/local provider/mem surface/mcp surface/mcp/upstream surface/rest
surface/cli: surface/cli/query surface/rest
app: dev/guide
app/cove: provider/mem recipe
/bench: /client app config hub api/op network/egress provider/mem sandbox surface/rest /test/cluster
/bench/scale: /client provider/kubernetes network/tunnel /test/cluster
/test/cluster: /client /test/attack
/test/e2b: /client
/test/e2e: /client dev/guide /test/attack /test/attack/route
/test/framework: /client
/test/newcomer: dev/guide /test/dist
/test/page: /client /test/attack/route
`
