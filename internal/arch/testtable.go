package arch

// tests lists what the tests of a package import beyond what the package may import.
// They may always import their own package and internal/testenv. Tests of one half do
// not import the other, except where they show that both work together.
//
// Paths are below internal/ unless they begin with a slash.
const tests = `
/client: auth guest/bash guest/file guest/shell health hub op proc provider/mem sandbox surface/rest
outlet: egress sandbox
isolate: isolate/hostroot /test/attack
guest/internal/vt: guest/internal/pty
guest/internal/document: markdown
guest/activity: guest/bash guest/envd proc surface/rest
guest/bind: surface/rest
guest/browser: auth guest/display surface/rest
guest/desktop: guest/display
guest/display: guest/browser guest/internal/cdp surface/rest
guest/page: guest/browser guest/display
guest/preview: surface/rest
guest/workbench: surface/rest
guest/code: guest/jupyter guest/node proc surface/rest
guest/convert: markdown
guest/shell: surface/rest
provider/docker: /deploy provider/providertest /test/cluster
provider/kubernetes/internal/bucket: /test/cluster
provider/kubernetes/internal/archive: /test/cluster
provider/kubernetes: /client provider/providertest /test/cluster
provider/mem: provider/providertest provider/providertest/payload
provider/local: provider/providertest
hub/internal/pool: guest/bind op provider/local provider/mem surface/rest
hub/internal/caller: sandbox
hub/fleet: hub/internal/tenant
hub: hub/internal/imageref hub/internal/note provider/local provider/mem surface/mcp surface/rest
surface/cli: surface/rest
app: guide
app/cove: provider/mem
/bench: /client app config hub op provider/mem sandbox surface/rest /test/cluster
/bench/scale: /client provider/kubernetes tunnel /test/cluster
/test/cluster: /client /test/attack
/test/e2b: /client
/test/e2e: /client guide /test/attack /test/attack/route
/test/page: /client /test/attack/route
`
