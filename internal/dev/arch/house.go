package arch

import _ "embed"

// House is the rules of this repository.
var House = Rules{
	Module:    "github.com/cove-sandbox/cove/",
	Packages:  packages,
	Tests:     tests,
	Libraries: libraries,
	Calls:     calls,
	Sleep:     []string{"internal/dev/testenv"},
	// Protocols have as many methods as the protocol has messages.
	ManyMethods: []string{"internal/guest/internal/..."},
	Limits: map[string]Limit{
		"package-size":  {3500, "lines", "split it by noun"},
		"main-size":     {60, "lines", "move what the program does to internal/app"},
		"function-size": {80, "lines", "split it"},
		"method-count":  {40, "methods", "split the type"},
		"line-length":   {0, "lines with more than 140 columns", "wrap them"},
		"sleep":         {0, "sleeps", "wait for an event, with testenv.Poll in a test, or in a select with another case"},
	},
	Exceptions: known,
	MaxColumns: 140,
	MaxEqual:   12,
}

// known lists what exceeded a limit before the limit was introduced.
//
//go:embed exceptions.txt
var known string

// packages lists every package with the packages of this module that it may import. A
// package may import only packages above it: those of the sections before and, if the
// title of its section ends with "+", those of its own section.
//
// Paths are below internal/ unless they begin with a slash. A line that begins with a
// tab continues the line before.
const packages = `
# nouns +
sandbox:
api/tag:
api/spell:
config: api/spell api/tag
api/op: api/tag

# mechanisms +
/api:
/client:
/deploy:
filesystem/archive:
filesystem/atomicfile:
network/certificate:
filesystem/inotify:
system/isolate/entrance:
system/isolate/internal/poll:
telemetry/metric:
auth/peer:
system/proc:
network/socks:
filesystem/subpath:
system/sudo:
dev/testenv:
document/workbook:
document/xmlscan:
/web:
auth/origin:
auth: auth/origin auth/peer
network/authority: filesystem/atomicfile
network/egress: network/authority sandbox network/socks
system/isolate/cgroup: system/isolate/internal/poll
document/markdown: document/workbook document/xmlscan
network/relay: auth/peer
api/health: telemetry/metric api/op
system/isolate: system/isolate/cgroup system/isolate/entrance system/isolate/internal/poll sandbox
system/isolate/hostroot: system/isolate
system/diskcopy:
network/tunnel:
system/containerinit: system/diskcopy system/isolate system/isolate/entrance system/proc network/tunnel
hub/replica: filesystem/atomicfile network/tunnel
telemetry/span: api/op
api/toolset: api/op api/spell
ticket: api/op

# mechanisms of a sandbox +
guest/internal/cdp:
guest/internal/environ:
guest/internal/pathname:
guest/internal/pty:
guest/internal/vt:
guest/internal/x11:
guest/internal/grep: system/proc
guest/internal/kernel: guest/internal/environ system/proc
guest/internal/cell: guest/internal/kernel
guest/internal/connect: api/op
guest/internal/cookie: guest/internal/cdp api/op
guest/internal/document: api/op system/proc document/workbook document/xmlscan
guest/internal/pyerr: guest/internal/pathname api/op
guest/internal/session: guest/internal/pathname api/op
guest/internal/tab: guest/internal/cdp
guest/internal/film: api/op system/proc
guest/internal/har: guest/internal/tab
guest/internal/keyboard: guest/internal/tab
guest/internal/locate: guest/internal/cdp guest/internal/keyboard guest/internal/tab api/op

# services of a sandbox
guest/activity: guest/internal/pathname filesystem/inotify api/op
guest/agentconfig: filesystem/atomicfile
guest/bind: filesystem/atomicfile guest/internal/pathname api/op
guest/browser: filesystem/atomicfile guest/internal/cdp guest/internal/cookie api/op system/proc
guest/e2b/desktop: guest/internal/x11 api/op system/proc
guest/display: guest/internal/pathname guest/internal/x11 api/op system/proc
guest/glance: api/op
guest/hook: api/op system/proc
guest/e2b/interpreter: guest/internal/cell guest/internal/kernel api/op
guest/e2b/envd: guest/internal/connect guest/internal/environ guest/internal/pty api/op system/proc
guest/info: api/op system/proc
guest/mcphub: filesystem/atomicfile api/op system/proc
guest/observe: filesystem/atomicfile api/op
guest/proxy: filesystem/atomicfile network/authority guest/internal/environ api/op network/relay system/proc
	network/socks
guest/page: filesystem/atomicfile guest/internal/cdp guest/internal/cookie guest/internal/document guest/internal/film
	guest/internal/har guest/internal/keyboard guest/internal/locate guest/internal/pathname guest/internal/tab api/op
	system/proc api/spell
guest/toolcatalog: api/op api/toolset
guest/port: api/op
guest/preview: auth api/op auth/origin filesystem/subpath
guest/skill: filesystem/archive filesystem/atomicfile guest/internal/pathname api/op system/proc
guest/watch: filesystem/atomicfile guest/internal/pathname filesystem/inotify api/op
guest/workbench: auth api/op auth/origin system/proc filesystem/subpath
guest/bash: guest/internal/environ guest/internal/pathname guest/internal/session api/op system/proc
guest/code: guest/internal/cell guest/internal/kernel api/op
guest/convert: guest/internal/document guest/internal/pathname guest/internal/pyerr api/op system/proc
guest/file: filesystem/archive filesystem/atomicfile guest/internal/document guest/internal/grep
	guest/internal/pathname guest/internal/pyerr api/op system/proc
guest/jupyter: guest/internal/cell guest/internal/kernel guest/internal/pathname guest/internal/session api/op
	system/proc
guest/node: guest/internal/cell guest/internal/environ guest/internal/kernel guest/internal/pathname
	guest/internal/session api/op system/proc
guest/shell: guest/internal/environ guest/internal/pathname guest/internal/pty guest/internal/session
	guest/internal/vt api/op system/proc

# providers, with their mechanisms +
provider/local/internal/record:
provider/local/internal/tree: sandbox
provider/docker: filesystem/atomicfile system/containerinit system/isolate sandbox
provider/kubernetes/internal/access:
provider/kubernetes/internal/api: provider/kubernetes/internal/access
provider/kubernetes/internal/bucket:
provider/kubernetes/internal/catalog: sandbox
provider/kubernetes/internal/archive: provider/kubernetes/internal/bucket provider/kubernetes/internal/catalog sandbox
provider/kubernetes/internal/volumesnapshot: provider/kubernetes/internal/api provider/kubernetes/internal/catalog
	sandbox
provider/kubernetes/internal/cluster: system/containerinit provider/kubernetes/internal/access
	provider/kubernetes/internal/api provider/kubernetes/internal/bucket sandbox network/tunnel
provider/kubernetes/internal/box: system/containerinit provider/kubernetes/internal/api
	provider/kubernetes/internal/catalog provider/kubernetes/internal/cluster sandbox network/tunnel
provider/kubernetes/internal/watch: provider/kubernetes/internal/api provider/kubernetes/internal/cluster sandbox
provider/kubernetes/internal/create: system/containerinit system/isolate provider/kubernetes/internal/api
	provider/kubernetes/internal/box provider/kubernetes/internal/cluster provider/kubernetes/internal/watch sandbox
provider/kubernetes/internal/connect: provider/kubernetes/internal/api provider/kubernetes/internal/box
	provider/kubernetes/internal/cluster provider/kubernetes/internal/create provider/kubernetes/internal/watch
	sandbox network/tunnel
provider/kubernetes/internal/disks: provider/kubernetes/internal/api provider/kubernetes/internal/archive
	provider/kubernetes/internal/box provider/kubernetes/internal/catalog provider/kubernetes/internal/cluster
	provider/kubernetes/internal/connect provider/kubernetes/internal/create provider/kubernetes/internal/volumesnapshot
	sandbox network/tunnel
provider/kubernetes: filesystem/atomicfile system/containerinit provider/kubernetes/internal/access
	provider/kubernetes/internal/api provider/kubernetes/internal/box provider/kubernetes/internal/bucket
	provider/kubernetes/internal/catalog provider/kubernetes/internal/cluster provider/kubernetes/internal/connect
	provider/kubernetes/internal/create provider/kubernetes/internal/disks provider/kubernetes/internal/volumesnapshot
	provider/kubernetes/internal/watch sandbox
provider/mem: sandbox
provider/providertest/payload: sandbox
provider/local/internal/image: filesystem/atomicfile network/egress provider/local/internal/record sandbox
provider/local/internal/layer: provider/local/internal/record provider/local/internal/tree sandbox
provider/providertest: provider/providertest/payload sandbox dev/testenv
provider/local/internal/disk: system/isolate system/isolate/hostroot provider/local/internal/image
	provider/local/internal/layer provider/local/internal/record provider/local/internal/tree sandbox
provider/local/internal/socket: system/isolate provider/local/internal/tree sandbox
provider/local/internal/runner: system/isolate system/isolate/cgroup system/isolate/hostroot
	provider/local/internal/disk provider/local/internal/record provider/local/internal/socket
	provider/local/internal/tree sandbox
provider/local: system/isolate provider/local/internal/disk provider/local/internal/image
	provider/local/internal/layer provider/local/internal/record provider/local/internal/runner
	provider/local/internal/socket provider/local/internal/tree sandbox

# mechanisms of the hub +
hub/internal/address: sandbox
hub/internal/quota:
hub/internal/task:
hub/internal/audit: filesystem/atomicfile
hub/internal/ship: filesystem/atomicfile hub/internal/audit
hub/internal/history: sandbox
hub/internal/note: sandbox
hub/internal/pool: sandbox
hub/internal/tenant: filesystem/atomicfile hub/internal/quota sandbox
hub/internal/caller: hub/internal/tenant api/op
hub/internal/fault: api/op sandbox
hub/internal/imageref: api/op sandbox
hub/internal/page: api/op
hub/internal/secretstore: filesystem/atomicfile network/egress
hub/internal/token: filesystem/atomicfile

# rooms of the hub, and the hub that composes them +
hub/environment: network/egress hub/internal/note api/op sandbox
hub/access: auth hub/internal/address hub/internal/caller hub/internal/fault hub/internal/page hub/internal/tenant
	api/op sandbox
hub/usage: network/egress hub/environment hub/internal/caller hub/internal/fault hub/internal/quota telemetry/metric
	api/op sandbox
hub/fleet: network/authority network/egress hub/internal/address hub/internal/caller hub/internal/fault
	hub/internal/history hub/internal/note hub/internal/task telemetry/metric api/op sandbox
hub/activity: filesystem/atomicfile hub/internal/caller api/op sandbox
hub/audit: hub/internal/audit hub/internal/fault telemetry/metric api/op sandbox telemetry/span
hub/secret: network/authority network/egress hub/internal/caller hub/internal/fault hub/internal/note
	hub/internal/pool hub/internal/secretstore api/op sandbox
hub/gateway: auth hub/access hub/fleet hub/internal/address hub/internal/fault hub/internal/note hub/internal/page
	hub/internal/token hub/audit api/op auth/origin sandbox telemetry/span filesystem/subpath
hub/lifecycle: network/egress hub/usage hub/environment hub/fleet hub/internal/address hub/internal/caller
	hub/internal/fault hub/internal/history hub/internal/imageref hub/internal/note hub/secret telemetry/metric api/op
	sandbox
hub/disk: hub/usage hub/internal/caller hub/internal/fault hub/internal/imageref hub/internal/task hub/lifecycle
	api/op sandbox
hub/agentsandbox: hub/environment hub/internal/history hub/internal/imageref hub/internal/note hub/internal/task
	hub/lifecycle api/op sandbox
hub/e2b: hub/disk hub/environment hub/fleet hub/internal/address hub/internal/caller hub/internal/fault
	hub/internal/note hub/internal/token hub/lifecycle api/op sandbox
hub/toolcatalog: hub/fleet hub/lifecycle api/op sandbox api/toolset
hub: filesystem/atomicfile auth network/authority network/egress hub/access hub/usage hub/agentsandbox hub/disk
	hub/e2b hub/environment hub/fleet hub/gateway hub/internal/audit hub/internal/history hub/internal/pool
	hub/internal/quota hub/internal/secretstore hub/internal/ship hub/internal/task hub/internal/tenant hub/internal/token
	hub/lifecycle hub/activity hub/toolcatalog hub/audit hub/secret telemetry/metric api/op sandbox telemetry/span
	api/toolset

# surfaces
surface/cli: api/op auth/peer api/spell
surface/rest: api/op auth/origin
surface/mcp: api/op telemetry/span api/spell api/toolset

# what both programs share
app/host: auth config surface/cli surface/mcp

# programs
app: app/host auth config guest/activity guest/agentconfig guest/bash guest/bind guest/browser guest/code
	guest/convert guest/e2b/desktop guest/display guest/e2b/envd guest/file guest/glance guest/hook guest/info
	guest/e2b/interpreter guest/jupyter guest/mcphub guest/node guest/observe guest/proxy guest/page guest/port
	guest/preview guest/shell guest/skill guest/toolcatalog guest/watch guest/workbench api/health telemetry/metric api/op
	auth/origin network/relay system/proc telemetry/span surface/cli surface/mcp surface/rest ticket api/toolset /web
app/cove: /api /client /deploy app/host filesystem/archive filesystem/atomicfile auth network/certificate config
	api/health hub system/isolate telemetry/metric api/op auth/peer system/proc provider/docker provider/kubernetes
	provider/local hub/replica sandbox surface/cli surface/mcp surface/rest ticket /web

# mains
/cmd/aio-markdown: document/markdown
/cmd/cove-container: system/containerinit
/cmd/cove-init: system/isolate system/sudo
/cmd/aio: app app/host config system/proc surface/cli
/cmd/cove: app/cove app/host config system/isolate surface/cli

# examples
/examples/fleet: /client

# tests and rules
/bench:
/bench/scale:
dev/arch:
dev/guide:
/test/attack:
/test/attack/route: app app/cove config api/op
/test/cluster: dev/testenv
/test/contract:
/test/e2b:
/test/dist:
/test/e2e:
/test/lane:
/test/mcp:
/test/page:
/test/sdk:
`
