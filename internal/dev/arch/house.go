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
	Words:      words,
	MaxEqual:   12,
}

// known lists what exceeded a limit before the limit was introduced.
//
//go:embed exceptions.txt
var known string

// packages lists every package with the packages of this module that it may import. A
// package may import only packages above it: those of the sections before and, if the
// title of its section ends with "+", those of the same section.
//
// Paths are below internal/ unless they begin with a slash. A line that begins with a
// tab continues the line before.
const packages = `
# nouns +
sandbox:
api/tag:
api/spell:
config: api/spell api/tag
api/card:
recipe:
api/identity:
api/op: api/tag

# mechanisms +
/api:
/client:
/deploy:
filesystem/archive:
filesystem/atomicfile:
filesystem/buildcontext:
recipe/dockerfile: recipe
filesystem/inotify:
filesystem/lockfile:
network/certificate: filesystem/atomicfile
system/isolate/cgroup:
system/isolate/entrance:
system/seccomp:
system/isolate/internal/thread:
system/isolate/outputlog:
telemetry/metric:
auth/peer:
system/disposition:
system/proc: system/disposition
system/pyenv: system/proc
network/socks:
network/outbound: network/socks
filesystem/subpath:
system/sudo:
dev/testenv:
document/office:
/web:
auth/origin:
auth: api/card auth/origin auth/peer
network/egress/internal/bandwidth:
network/egress/internal/clienthello:
network/egress/internal/count:
network/egress/internal/httptarget:
network/egress/internal/learn:
network/egress: network/certificate network/egress/internal/bandwidth network/egress/internal/clienthello
	network/egress/internal/count network/egress/internal/httptarget network/egress/internal/learn network/outbound sandbox network/socks
document/markdown: document/office
network/relay: auth/peer
system/referee: network/outbound network/socks
api/health: telemetry/metric api/op
system/isolate/unixsocket: system/isolate/internal/thread
system/isolate/control: system/isolate/entrance system/isolate/unixsocket
system/isolate/internal/protocol: system/isolate/cgroup
system/isolate/internal/rootfs: system/isolate/internal/protocol
system/isolate: system/isolate/cgroup system/isolate/internal/protocol system/isolate/internal/rootfs
	system/seccomp system/isolate/internal/thread sandbox
system/isolate/gvisor: system/isolate system/isolate/control
system/isolate/hostroot: system/isolate
system/isolate/initprocess: system/disposition system/isolate/cgroup system/isolate/control system/isolate/gvisor
	system/isolate/internal/protocol system/referee system/isolate/internal/rootfs
	system/seccomp system/isolate/outputlog
network/tunnel:
system/containerinit: system/isolate system/isolate/control system/isolate/entrance system/isolate/unixsocket system/proc
	network/tunnel system/referee system/seccomp
hub/replica: filesystem/atomicfile filesystem/lockfile network/tunnel
telemetry/span: api/op
api/toolset: api/op api/spell

# mechanisms of a sandbox +
guest/internal/cdp: api/op
guest/internal/environ:
guest/internal/pathname:
guest/internal/pty:
guest/internal/vt:
guest/internal/x11: filesystem/atomicfile
guest/internal/grep: system/proc
guest/internal/kernel: guest/internal/environ system/proc
guest/internal/connect: api/op
guest/internal/document: api/op system/proc document/office
guest/internal/pyerr: guest/internal/pathname api/op
guest/internal/session: guest/internal/pathname api/op
guest/internal/tab: guest/internal/cdp api/op
guest/internal/locate: guest/internal/cdp guest/internal/tab api/op

# parts of the page service +
guest/page/internal/driver: filesystem/atomicfile guest/internal/cdp guest/internal/locate guest/internal/pathname
	guest/internal/tab api/op
guest/page/internal/captcha: guest/internal/locate guest/internal/tab guest/page/internal/driver api/op
guest/page/internal/content: guest/internal/document guest/internal/locate guest/internal/tab
	guest/page/internal/driver api/op system/proc
guest/page/internal/action: guest/internal/locate guest/internal/tab guest/page/internal/content
	guest/page/internal/driver api/op
guest/page/internal/capture: guest/internal/cdp guest/internal/locate guest/internal/tab guest/page/internal/content
	guest/page/internal/driver api/op system/proc
guest/page/internal/navigation: guest/internal/tab guest/page/internal/driver api/op
guest/page/internal/network: guest/internal/tab guest/page/internal/driver api/op
guest/page/internal/prompt: guest/internal/tab guest/page/internal/driver api/op api/spell
guest/page/internal/state: guest/internal/cdp guest/internal/locate guest/internal/tab guest/page/internal/driver api/op
guest/page/internal/tablist: guest/internal/tab guest/page/internal/driver guest/page/internal/navigation api/op
guest/page/internal/wait: guest/internal/locate guest/internal/tab guest/page/internal/driver api/op

# parts of the services of a sandbox +
guest/file/internal/line:
guest/file/internal/mode:
guest/file/internal/access: filesystem/atomicfile guest/internal/pathname guest/internal/pyerr api/op system/proc
guest/file/internal/text: guest/file/internal/access guest/file/internal/line guest/internal/pyerr api/op
guest/file/internal/editor: filesystem/atomicfile guest/file/internal/access guest/file/internal/line
	guest/file/internal/mode guest/internal/document guest/internal/pathname guest/internal/pyerr api/op
guest/file/internal/tree: filesystem/atomicfile guest/file/internal/access guest/file/internal/mode guest/internal/grep
	guest/internal/pathname guest/internal/pyerr api/op system/proc
guest/file/internal/transfer: filesystem/archive guest/file/internal/access guest/internal/document
	guest/internal/pathname guest/internal/pyerr api/op system/proc

# services of a sandbox
guest/activity: guest/internal/pathname filesystem/inotify api/op
guest/agentconfig: filesystem/atomicfile
guest/build: filesystem/archive api/op system/proc
guest/bind: filesystem/atomicfile guest/internal/pathname api/op
guest/browser: filesystem/atomicfile filesystem/lockfile guest/internal/cdp api/op system/proc
guest/e2b/desktop: guest/internal/x11 api/op system/proc
guest/display: filesystem/lockfile guest/internal/pathname guest/internal/x11 api/op system/proc
guest/glance: api/op
guest/mirror: api/op
guest/hook: api/op system/proc
guest/e2b/interpreter: guest/internal/kernel api/op
guest/e2b/envd: guest/internal/connect guest/internal/environ guest/internal/pty api/op system/proc
guest/info: api/identity api/op system/proc
guest/mcphub: filesystem/atomicfile api/op system/proc
guest/observe: filesystem/atomicfile api/op
guest/proxy: filesystem/atomicfile network/certificate guest/internal/environ api/op network/relay system/proc
	network/socks
guest/page: guest/internal/pathname guest/page/internal/action guest/page/internal/captcha guest/page/internal/capture
	guest/page/internal/content guest/page/internal/driver guest/page/internal/navigation guest/page/internal/network
	guest/page/internal/prompt guest/page/internal/state guest/page/internal/tablist guest/page/internal/wait api/op
	system/proc
guest/toolcatalog: api/op api/toolset
guest/port: api/op
guest/preview: auth api/card api/op auth/origin filesystem/subpath
guest/skill: filesystem/archive filesystem/atomicfile guest/internal/pathname api/op system/proc
guest/watch: filesystem/atomicfile guest/internal/pathname filesystem/inotify api/op
guest/workbench: auth api/op auth/origin system/proc filesystem/subpath
guest/bash: guest/internal/environ guest/internal/pathname guest/internal/session api/op system/proc
guest/code: guest/internal/kernel api/op
guest/convert: guest/internal/document guest/internal/pathname guest/internal/pyerr api/op system/proc
guest/file: filesystem/archive guest/file/internal/access guest/file/internal/editor guest/file/internal/text
	guest/file/internal/transfer guest/file/internal/tree api/op system/proc
guest/jupyter: guest/internal/kernel guest/internal/pathname guest/internal/session api/op
	system/proc system/pyenv
guest/node: guest/internal/environ guest/internal/kernel guest/internal/pathname
	guest/internal/session api/op system/proc
guest/shell: guest/internal/environ guest/internal/pathname guest/internal/pty guest/internal/session
	guest/internal/vt api/op system/proc

# providers, with their mechanisms +
provider/local/internal/record: filesystem/atomicfile
provider/local/internal/tree: sandbox
provider/docker: filesystem/atomicfile filesystem/lockfile system/containerinit system/isolate
	system/isolate/control system/isolate/unixsocket sandbox
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
provider/kubernetes/internal/create: system/containerinit system/isolate system/isolate/control provider/kubernetes/internal/api
	provider/kubernetes/internal/box provider/kubernetes/internal/cluster provider/kubernetes/internal/watch sandbox
provider/kubernetes/internal/connect: provider/kubernetes/internal/api provider/kubernetes/internal/box
	provider/kubernetes/internal/cluster provider/kubernetes/internal/create provider/kubernetes/internal/watch
	sandbox network/tunnel
provider/kubernetes/internal/disks: provider/kubernetes/internal/api provider/kubernetes/internal/archive
	provider/kubernetes/internal/box provider/kubernetes/internal/catalog provider/kubernetes/internal/cluster
	provider/kubernetes/internal/connect provider/kubernetes/internal/create provider/kubernetes/internal/volumesnapshot
	sandbox network/tunnel
provider/kubernetes: filesystem/atomicfile filesystem/lockfile system/containerinit provider/kubernetes/internal/access
	provider/kubernetes/internal/api provider/kubernetes/internal/box provider/kubernetes/internal/bucket
	provider/kubernetes/internal/catalog provider/kubernetes/internal/cluster provider/kubernetes/internal/connect
	provider/kubernetes/internal/create provider/kubernetes/internal/disks provider/kubernetes/internal/volumesnapshot
	provider/kubernetes/internal/watch sandbox
provider/mem: sandbox
provider/providertest/payload: sandbox
provider/local/internal/image: filesystem/atomicfile filesystem/lockfile network/egress provider/local/internal/record sandbox
provider/local/internal/layer: provider/local/internal/record provider/local/internal/tree sandbox
provider/providertest: provider/providertest/payload sandbox dev/testenv
provider/providertest/outbound: network/certificate network/egress sandbox dev/testenv
provider/local/internal/disk: system/isolate system/isolate/hostroot provider/local/internal/image
	provider/local/internal/layer provider/local/internal/record provider/local/internal/tree sandbox
provider/local/internal/socket: system/isolate system/isolate/control system/isolate/unixsocket provider/local/internal/tree sandbox
provider/local/internal/runner: system/isolate system/isolate/cgroup system/isolate/control system/isolate/gvisor
	system/isolate/hostroot system/isolate/outputlog
	provider/local/internal/disk provider/local/internal/record provider/local/internal/socket
	provider/local/internal/tree sandbox
provider/local: filesystem/lockfile system/isolate provider/local/internal/disk provider/local/internal/image
	provider/local/internal/layer provider/local/internal/record provider/local/internal/runner
	provider/local/internal/socket provider/local/internal/tree sandbox

# mechanisms of the hub +
hub/internal/naming: api/op sandbox
hub/internal/quota:
hub/internal/task:
hub/internal/audit: filesystem/atomicfile
hub/internal/ship: filesystem/atomicfile hub/internal/audit
hub/internal/history: sandbox
hub/internal/meter: hub/internal/task sandbox
hub/internal/trash: sandbox
hub/internal/pool: hub/internal/trash sandbox
hub/internal/tombstone: filesystem/atomicfile hub/internal/history sandbox
hub/internal/tenant: filesystem/atomicfile filesystem/lockfile hub/internal/quota sandbox
hub/internal/caller: hub/internal/tenant api/op
hub/internal/fault: api/op sandbox
hub/internal/page: api/card api/op auth/origin sandbox
hub/internal/secretstore: filesystem/atomicfile network/egress
hub/internal/token: filesystem/atomicfile
hub/internal/templatestore: filesystem/atomicfile filesystem/buildcontext recipe
hub/internal/builder: hub/internal/templatestore recipe

# services of the hub, and the hub that composes them +
hub/environment: network/egress hub/internal/naming api/op sandbox
hub/access: auth hub/internal/naming hub/internal/caller hub/internal/fault hub/internal/page hub/internal/tenant
	api/op sandbox
hub/usage: network/egress hub/environment hub/internal/caller hub/internal/fault hub/internal/quota telemetry/metric
	api/op sandbox
hub/fleet: network/certificate network/egress hub/internal/naming hub/internal/caller hub/internal/fault
	hub/internal/history hub/internal/task hub/internal/tombstone telemetry/metric api/op sandbox
hub/activity: filesystem/atomicfile hub/internal/caller api/op sandbox
hub/audit: hub/internal/audit hub/internal/fault telemetry/metric api/op sandbox telemetry/span
hub/secret: network/certificate network/egress hub/internal/caller hub/internal/fault hub/internal/naming
	hub/internal/pool hub/internal/secretstore api/op sandbox
hub/gateway: api/identity auth hub/access hub/fleet hub/internal/naming hub/internal/fault hub/internal/page
	hub/internal/token hub/audit api/op auth/origin sandbox telemetry/span filesystem/subpath
hub/lifecycle: network/egress hub/usage hub/environment hub/fleet hub/internal/naming hub/internal/caller
	hub/internal/fault hub/internal/history hub/internal/tombstone hub/internal/trash hub/secret telemetry/metric api/op sandbox
hub/policy: network/egress hub/environment hub/internal/fault hub/secret api/op sandbox
hub/network: filesystem/atomicfile hub/fleet hub/internal/caller hub/internal/fault hub/internal/naming network/egress
	api/op sandbox
hub/inspect: hub/activity hub/fleet hub/internal/caller hub/internal/history hub/internal/meter hub/internal/tombstone
	hub/internal/trash hub/lifecycle api/op sandbox
hub/disk: hub/usage hub/internal/caller hub/internal/fault hub/internal/naming hub/internal/task hub/lifecycle
	api/op sandbox
hub/template: hub/usage hub/environment hub/internal/builder hub/internal/caller hub/internal/fault hub/internal/naming
	hub/internal/task hub/internal/templatestore hub/internal/token hub/lifecycle api/op recipe sandbox
hub/agentsandbox: hub/environment hub/internal/history hub/internal/naming hub/internal/task
	hub/lifecycle api/op sandbox
hub/e2b: hub/disk hub/environment hub/fleet hub/internal/naming hub/internal/caller hub/internal/fault hub/internal/meter
	hub/internal/templatestore hub/internal/token hub/lifecycle hub/secret hub/template network/egress api/op recipe sandbox
hub/toolcatalog: hub/fleet hub/lifecycle api/op sandbox api/toolset
hub: filesystem/atomicfile auth network/certificate network/egress hub/access hub/usage hub/agentsandbox hub/disk
	hub/e2b hub/environment hub/fleet hub/gateway hub/inspect hub/network hub/policy hub/internal/audit hub/internal/history
	hub/internal/meter hub/internal/pool hub/internal/quota hub/internal/secretstore hub/internal/ship
	hub/internal/task hub/internal/tenant hub/internal/token
	hub/internal/templatestore hub/internal/tombstone hub/internal/trash hub/template
	hub/lifecycle hub/activity hub/toolcatalog hub/audit hub/secret telemetry/metric api/op sandbox telemetry/span
	api/toolset

# surfaces +
surface/cli: api/op auth/peer api/spell
surface/cli/query:
surface/rest: api/card api/op auth/origin
surface/mcp/upstream: api/op telemetry/span api/toolset
surface/mcp: api/op telemetry/span api/spell api/toolset surface/mcp/upstream

# what both programs share
app/host: api/op auth config surface/cli surface/mcp

# parts of programs
app/cove/login: /client app/host config surface/cli

# verbs of the command line
app/cove/verb: /client app/cove/login app/host filesystem/archive filesystem/buildcontext recipe/dockerfile config auth/peer
	api/op surface/cli

# programs
app: app/host auth config guest/activity guest/agentconfig guest/bash guest/bind guest/browser guest/build guest/code
	guest/convert guest/e2b/desktop guest/display guest/e2b/envd guest/file guest/glance guest/hook guest/info guest/mirror
	guest/e2b/interpreter guest/jupyter guest/mcphub guest/node guest/observe guest/proxy guest/page guest/port
	guest/preview guest/shell guest/skill guest/toolcatalog guest/watch guest/workbench api/health telemetry/metric api/op
	auth/origin network/relay system/proc telemetry/span surface/cli surface/mcp surface/mcp/upstream surface/rest
	api/toolset /web
app/cove: /api /client /deploy app/cove/login app/cove/verb app/host filesystem/atomicfile auth network/certificate config
	api/health hub system/isolate telemetry/metric api/op system/proc system/pyenv provider/docker provider/kubernetes
	provider/local hub/replica sandbox surface/cli surface/cli/query surface/mcp surface/mcp/upstream
	surface/rest /web

# mains
/cmd/aio-markdown: document/markdown surface/cli/query
/cmd/cove-container: system/containerinit
/cmd/cove-init: system/isolate/initprocess system/sudo
/cmd/aio: app app/host config system/proc surface/cli
/cmd/cove: app/cove app/host config system/isolate/initprocess surface/cli

# examples
/examples/fleet: /client

# tests and rules
/bench:
/bench/scale:
dev/arch:
dev/bundle:
dev/guide: api/card
/test/attack: dev/testenv
/test/attack/route: app app/cove config api/op
/test/cluster: dev/testenv filesystem/lockfile
/test/contract:
/test/e2b:
/test/dist: dev/testenv
/test/e2e:
/test/framework:
/test/lane:
/test/mcp:
/test/newcomer:
/test/page:
/test/sdk:
`
