package arch

// libraries lists every third-party module, and parts of the standard library, with
// the packages that import them. A name that ends in "/..." includes all packages
// below it.
var libraries = []Library{
	{Path: "C", Reason: "all programs are built without cgo"},
	{Path: "os/exec", By: []string{
		"internal/dev/testenv", "internal/system/proc", "test/cluster", "test/dist", "test/lane",
	}, Tests: everywhere,
		Reason: "one package starts processes: groups, reaping and the guard are in internal/system/proc"},

	// Protocols
	{Path: "github.com/modelcontextprotocol/go-sdk", By: []string{"internal/surface/mcp", "internal/surface/mcp/upstream"},
		Tests:  []string{"bench", "internal/app/...", "internal/hub", "test/e2e", "test/framework", "test/mcp"},
		Reason: "services know operations, not protocols"},
	{Path: "github.com/coder/websocket",
		By: []string{
			"client", "internal/guest/e2b/desktop", "internal/guest/internal/cdp",
			"internal/provider/kubernetes/internal/access", "internal/surface/rest",
		},
		Tests: []string{
			"bench", "internal/app/cove", "internal/auth", "internal/guest/...", "internal/hub",
			"internal/network/egress", "internal/provider/kubernetes", "test/e2e",
		},
		Reason: "services speak op.Conn"},
	{Path: "github.com/google/jsonschema-go",
		By: []string{
			"internal/api/op", "internal/api/toolset", "internal/guest/browser", "internal/guest/code",
			"internal/guest/display", "internal/guest/mcphub", "internal/hub/environment", "internal/hub/lifecycle",
			"internal/surface/rest",
		},
		Tests:  []string{"internal/app", "test/mcp"},
		Reason: "internal/api/op derives schemas from the types of an operation"},
	{Path: "github.com/jezek/xgb", By: []string{"internal/guest/internal/x11"}, Reason: "internal/guest/internal/x11 speaks to the X server"},
	{Path: "github.com/golang-jwt/jwt", By: []string{"internal/auth", "test/attack"}, Reason: "internal/auth alone checks credentials"},
	{Path: "golang.org/x/net/http/httpguts", By: []string{
		"internal/guest/page/internal/network", "internal/network/egress",
	}, Reason: protocolReason},
	{Path: "golang.org/x/net/publicsuffix", By: []string{"internal/hub/policy"},
		Reason: "proposed rules never cover a public suffix"},
	{Path: "golang.org/x/net/dns/dnsmessage", By: []string{"internal/network/outbound"}, Reason: protocolReason},
	{Path: "golang.org/x/net/http2", Tests: []string{"test/e2e"}, Reason: protocolReason},

	// Engines
	{Path: "github.com/moby/moby", By: []string{"internal/provider/docker"}, Reason: engineReason},
	{Path: "github.com/containerd/errdefs", By: []string{"internal/provider/docker"}, Reason: engineReason},
	{Path: "github.com/google/go-containerregistry", By: []string{
		"internal/provider/local/internal/image",
	},
		Tests: []string{"internal/hub", "test/e2e"}, Reason: engineReason},

	// The command line and settings
	{Path: "github.com/spf13/cobra", By: []string{"internal/app/...", "internal/surface/cli"}, Reason: flagReason},
	{Path: "github.com/spf13/pflag", By: []string{
		"internal/app/cove", "internal/app/cove/verb", "internal/app/host", "internal/surface/cli",
	}, Reason: flagReason},
	{Path: "github.com/itchyny/gojq", By: []string{"internal/surface/cli/query"},
		Reason: "--jq and -o jsonpath select from the output of a verb"},
	{Path: "golang.org/x/term", By: []string{"internal/app/cove/login", "internal/app/cove/verb", "internal/app/host"},
		Reason: "only the command line has a terminal"},
	{Path: "go.yaml.in/yaml/v3",
		By: []string{
			"internal/app/cove/verb", "internal/config", "internal/guest/skill",
			"internal/provider/kubernetes/internal/access", "internal/surface/cli", "test/cluster",
		},
		Tests:  []string{"internal/app/cove", "internal/hub/agentsandbox", "internal/provider/kubernetes", "test/e2e"},
		Reason: "the API speaks JSON; only files of users and -o yaml are YAML"},
	{Path: "github.com/pelletier/go-toml/v2", By: []string{"internal/guest/agentconfig"}, Reason: "only the configuration of Codex is TOML"},

	// Documents: untrusted input, read by a separate program
	{Path: "codeberg.org/readeck/go-readability", By: []string{"internal/document/markdown"}, Reason: documentReason},
	{Path: "github.com/JohannesKaufmann/html-to-markdown/v2", By: []string{
		"internal/document/markdown",
	}, Reason: documentReason},
	{Path: "github.com/xuri/excelize/v2", By: []string{"internal/document/markdown"}, Reason: documentReason},
	{Path: "golang.org/x/net/html", By: []string{"internal/document/markdown"}, Reason: documentReason},
	{Path: "github.com/evanw/esbuild", By: []string{"internal/dev/bundle"},
		Reason: "internal/dev/bundle combines the modules of pages; no program does"},
	{Path: "github.com/yuin/goldmark", By: []string{"internal/dev/guide"}, Reason: "internal/dev/guide renders the guide; no program does"},

	// Files, text and compression
	{Path: "github.com/klauspost/compress",
		By: []string{
			"internal/filesystem/archive", "internal/filesystem/buildcontext", "internal/guest/internal/x11", "internal/provider/local/...",
			"internal/surface/rest",
		},
		Tests: []string{"internal/hub"}, Reason: "compression belongs to archives, images and responses"},
	{Path: "github.com/andybalholm/brotli", By: []string{"internal/guest/browser"},
		Reason: "only the description of the DevTools protocol uses Brotli"},
	{Path: "github.com/bmatcuk/doublestar/v4", By: []string{
		"internal/guest/file/internal/tree", "internal/guest/internal/grep", "internal/guest/watch",
	},
		Reason: "patterns of paths belong to file operations"},
	{Path: "github.com/dlclark/regexp2/v2", By: []string{"internal/guest/file/internal/text"},
		Reason: "it can take exponential time: use package regexp"},
	{Path: "golang.org/x/text/width", Tests: []string{"internal/guest/internal/vt"},
		Reason: "programs use the generated table of internal/guest/internal/vt"},

	// The kernel
	{Path: "golang.org/x/net/bpf", By: []string{"internal/system/seccomp"},
		Reason: "internal/system/isolate filters system calls"},
	{Path: "golang.org/x/sys/unix",
		By: []string{
			"internal/app/...", "internal/auth/peer", "internal/document/markdown", "internal/filesystem/archive",
			"internal/filesystem/atomicfile", "internal/filesystem/inotify", "internal/filesystem/lockfile", "internal/guest/...",
			"internal/hub/internal/audit", "internal/hub/internal/tenant",
			"internal/network/egress", "internal/provider/...", "internal/system/containerinit",
			"internal/system/disposition", "internal/system/isolate/...", "internal/system/proc", "internal/system/pyenv", "internal/system/referee",
			"internal/system/seccomp", "internal/system/sudo",
			"test/cluster", "test/lane",
		},
		Tests: []string{"test/e2e"}, Reason: "operations, surfaces and most of the hub are independent of the kernel"},

	// Tests
	{Path: "github.com/google/go-cmp", By: []string{"internal/provider/providertest"}, Tests: everywhere, Reason: "it is for tests"},
	{Path: "go.uber.org/goleak", By: []string{"internal/dev/testenv"},
		Tests: []string{
			"internal/app", "internal/auth", "internal/guest/file", "internal/surface/cli", "internal/surface/rest",
		},
		Reason: "testenv.Main finds leaks"},
	{Path: "github.com/creack/pty", Tests: []string{"internal/system/proc"}, Reason: "programs use internal/guest/internal/pty"},
}

var everywhere = []string{"..."}

const (
	documentReason = "documents are untrusted: only the program aio-markdown reads them"
	flagReason     = "flags come from the table of operations"
	engineReason   = "aio stays small: it links no library of an engine"
	protocolReason = "net/http speaks the protocol"
)
