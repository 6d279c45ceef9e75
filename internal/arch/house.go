package arch

import _ "embed"

// House is the rules of this repository.
var House = Rules{
	Module:    "github.com/cove-sandbox/cove/",
	Packages:  packages,
	Tests:     tests,
	Libraries: libraries,
	Calls:     calls,
	Sleep:     []string{"internal/testenv"},
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
tag:
spell:
config: spell tag
op: tag

# mechanisms +
/api:
/client:
/deploy:
archive:
atomicfile:
certificate:
inotify:
isolate/entrance:
isolate/internal/poll:
metric:
peer:
proc:
socks:
subpath:
sudo:
testenv:
workbook:
xmlscan:
/web:
origin:
auth: origin peer
authority: atomicfile
egress: authority sandbox socks
isolate/cgroup: isolate/internal/poll
markdown: workbook xmlscan
outlet: peer
health: metric op
isolate: isolate/cgroup isolate/entrance isolate/internal/poll sandbox
isolate/hostroot: isolate
diskcopy:
tunnel:
container: diskcopy isolate isolate/entrance proc tunnel
replica: atomicfile tunnel
span: op
toolset: op spell
ticket: op

# mechanisms of a sandbox +
guest/internal/cdp:
guest/internal/environ:
guest/internal/pathname:
guest/internal/pty:
guest/internal/vt:
guest/internal/x11:
guest/internal/grep: proc
guest/internal/kernel: guest/internal/environ proc
guest/internal/cell: guest/internal/kernel
guest/internal/connect: op
guest/internal/cookie: guest/internal/cdp op
guest/internal/document: op proc workbook xmlscan
guest/internal/pyerr: guest/internal/pathname op
guest/internal/session: guest/internal/pathname op
guest/internal/tab: guest/internal/cdp
guest/internal/film: op proc
guest/internal/har: guest/internal/tab
guest/internal/keyboard: guest/internal/tab
guest/internal/locate: guest/internal/cdp guest/internal/keyboard guest/internal/tab op

# services of a sandbox
guest/activity: guest/internal/pathname inotify op
guest/agent: atomicfile
guest/bind: atomicfile guest/internal/pathname op
guest/browser: atomicfile guest/internal/cdp guest/internal/cookie op proc
guest/desktop: guest/internal/x11 op proc
guest/display: guest/internal/pathname guest/internal/x11 op proc
guest/glance: op
guest/hook: op proc
guest/interpreter: guest/internal/cell guest/internal/kernel op
guest/envd: guest/internal/connect guest/internal/environ guest/internal/pty op proc
guest/info: op proc
guest/mcphub: atomicfile op proc
guest/observe: atomicfile op
guest/outbound: atomicfile authority guest/internal/environ op outlet proc socks
guest/page: atomicfile guest/internal/cdp guest/internal/cookie guest/internal/document guest/internal/film guest/internal/har
	guest/internal/keyboard guest/internal/locate guest/internal/pathname guest/internal/tab op proc spell
guest/toolbox: op toolset
guest/port: op
guest/preview: auth op origin subpath
guest/skill: archive atomicfile guest/internal/pathname op proc
guest/watch: atomicfile guest/internal/pathname inotify op
guest/workbench: auth op origin proc subpath
guest/bash: guest/internal/environ guest/internal/pathname guest/internal/session op proc
guest/code: guest/internal/cell guest/internal/kernel op
guest/convert: guest/internal/document guest/internal/pathname guest/internal/pyerr op proc
guest/file: archive atomicfile guest/internal/document guest/internal/grep guest/internal/pathname guest/internal/pyerr op proc
guest/jupyter: guest/internal/cell guest/internal/kernel guest/internal/pathname guest/internal/session op proc
guest/node: guest/internal/cell guest/internal/environ guest/internal/kernel guest/internal/pathname guest/internal/session op proc
guest/shell: guest/internal/environ guest/internal/pathname guest/internal/pty guest/internal/session guest/internal/vt op proc

# providers, with their mechanisms +
provider/local/internal/record:
provider/local/internal/tree: sandbox
provider/docker: atomicfile container isolate sandbox
provider/kubernetes/internal/access:
provider/kubernetes/internal/api: provider/kubernetes/internal/access
provider/kubernetes/internal/bucket:
provider/kubernetes/internal/catalog: sandbox
provider/kubernetes/internal/archive: provider/kubernetes/internal/bucket provider/kubernetes/internal/catalog sandbox
provider/kubernetes/internal/volumesnapshot: provider/kubernetes/internal/api provider/kubernetes/internal/catalog sandbox
provider/kubernetes: atomicfile container isolate provider/kubernetes/internal/access provider/kubernetes/internal/api
	provider/kubernetes/internal/archive provider/kubernetes/internal/bucket provider/kubernetes/internal/catalog
	provider/kubernetes/internal/volumesnapshot sandbox tunnel
provider/mem: sandbox
provider/providertest/payload: sandbox
provider/local/internal/image: atomicfile egress provider/local/internal/record sandbox
provider/local/internal/layer: provider/local/internal/record provider/local/internal/tree sandbox
provider/providertest: provider/providertest/payload sandbox testenv
provider/local/internal/disk: isolate isolate/hostroot provider/local/internal/image provider/local/internal/layer
	provider/local/internal/record provider/local/internal/tree sandbox
provider/local/internal/socket: isolate provider/local/internal/tree sandbox
provider/local/internal/runner: isolate isolate/cgroup isolate/hostroot provider/local/internal/disk provider/local/internal/record
	provider/local/internal/socket provider/local/internal/tree sandbox
provider/local: isolate provider/local/internal/disk provider/local/internal/image provider/local/internal/layer
	provider/local/internal/record provider/local/internal/runner provider/local/internal/socket provider/local/internal/tree sandbox

# mechanisms of the hub +
hub/internal/address: sandbox
hub/internal/quota:
hub/internal/task:
hub/internal/audit: atomicfile
hub/internal/ship: atomicfile hub/internal/audit
hub/internal/history: sandbox
hub/internal/note: sandbox
hub/internal/pool: sandbox
hub/internal/tenant: atomicfile hub/internal/quota sandbox
hub/internal/caller: hub/internal/tenant op
hub/internal/fault: op sandbox
hub/internal/imageref: op sandbox
hub/internal/page: op
hub/internal/secret: atomicfile egress
hub/internal/token: atomicfile

# rooms of the hub, and the hub that composes them +
hub/environment: egress hub/internal/note op sandbox
hub/access: auth hub/internal/address hub/internal/caller hub/internal/fault hub/internal/page hub/internal/tenant op sandbox
hub/account: egress hub/environment hub/internal/caller hub/internal/fault hub/internal/quota metric op sandbox
hub/fleet: authority egress hub/internal/address hub/internal/caller hub/internal/fault hub/internal/history hub/internal/note
	hub/internal/task metric op sandbox
hub/record: atomicfile hub/internal/caller op sandbox
hub/trail: hub/internal/audit hub/internal/fault metric op sandbox span
hub/vault: authority egress hub/internal/caller hub/internal/fault hub/internal/note hub/internal/pool hub/internal/secret op sandbox
hub/gateway: auth hub/access hub/fleet hub/internal/address hub/internal/fault hub/internal/note hub/internal/page hub/internal/token
	hub/trail op origin sandbox span subpath
hub/lifecycle: egress hub/account hub/environment hub/fleet hub/internal/address hub/internal/caller hub/internal/fault
	hub/internal/history hub/internal/imageref hub/internal/note hub/vault metric op sandbox
hub/disk: hub/account hub/internal/caller hub/internal/fault hub/internal/imageref hub/internal/task hub/lifecycle op sandbox
hub/claim: hub/environment hub/internal/history hub/internal/imageref hub/internal/note hub/internal/task hub/lifecycle op sandbox
hub/e2b: hub/disk hub/environment hub/fleet hub/internal/address hub/internal/caller hub/internal/fault hub/internal/note
	hub/internal/token hub/lifecycle op sandbox
hub/tool: hub/fleet hub/lifecycle op sandbox toolset
hub: atomicfile auth authority egress hub/access hub/account hub/claim hub/disk hub/e2b hub/environment hub/fleet hub/gateway
	hub/internal/audit hub/internal/history hub/internal/pool hub/internal/quota hub/internal/secret hub/internal/ship hub/internal/task
	hub/internal/tenant hub/internal/token hub/lifecycle hub/record hub/tool hub/trail hub/vault metric op sandbox span toolset

# surfaces
surface/cli: op peer spell
surface/rest: op origin
surface/mcp: op span spell toolset

# what both programs share
app/host: auth config surface/cli surface/mcp

# programs
app: app/host auth config guest/activity guest/agent guest/bash guest/bind guest/browser guest/code guest/convert guest/desktop
	guest/display guest/envd guest/file guest/glance guest/hook guest/info guest/interpreter guest/jupyter guest/mcphub guest/node
	guest/observe guest/outbound guest/page guest/port guest/preview guest/shell guest/skill guest/toolbox guest/watch guest/workbench
	health metric op origin outlet proc span surface/cli surface/mcp surface/rest ticket toolset /web
app/cove: /api /client /deploy app/host archive atomicfile auth certificate config health hub isolate metric op peer proc provider/docker
	provider/kubernetes provider/local replica sandbox surface/cli surface/mcp surface/rest ticket /web

# mains
/cmd/aio-markdown: markdown
/cmd/cove-container: container
/cmd/cove-init: isolate sudo
/cmd/aio: app app/host config proc surface/cli
/cmd/cove: app/cove app/host config isolate surface/cli

# examples
/examples/fleet: /client

# tests and rules
/bench:
/bench/scale:
arch:
guide:
/test/attack:
/test/attack/route: app app/cove config op
/test/cluster: testenv
/test/contract:
/test/e2b:
/test/dist:
/test/e2e:
/test/lane:
/test/mcp:
/test/page:
/test/sdk:
`
