package host

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Build identifies a build of a program.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Time     string `json:"time"` // of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// commit is set by the build. Without it, the value of the compiler is used.
var commit string

// ReadBuild returns the build of this program. version is set by the build.
func ReadBuild(version string) Build {
	b := Build{Version: version, Commit: cmp.Or(commit, "unknown"), Time: "unknown", Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = cmp.Or(commit, s.Value)
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			if s.Value == "true" && commit == "" {
				b.Commit += " with changes"
			}
		}
	}
	return b
}

// Version returns the command that prints the version of a program.
func Version(program, version string, std Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{Use: "version", Short: "Print version, commit and build", Args: cli.Arguments(0, 0)}
	cmd.Flags().StringVarP(&output, "output", "o", "", "Output format: json")
	cmd.RunE = func(*cobra.Command, []string) error {
		b := ReadBuild(version)
		if output == "json" {
			return json.NewEncoder(std.Out).Encode(b)
		}
		_, err := fmt.Fprintf(std.Out, "%s %s\ncommit    %s\ndate      %s\ngo        %s\nplatform  %s\n", program,
			b.Version, b.Commit, b.Time, b.Go, b.Platform)
		return err
	}
	return cmd
}
