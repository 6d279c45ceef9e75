// Package host is what both programs share around their tables: streams, flags
// from settings, the log, the listener, and the order in which a server begins
// and ends. It knows neither sandboxes nor hubs.
package host

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Streams of a program.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Root is the command that all others of a program are below.
func Root(name, short, version string, args []string, std Streams) *cobra.Command {
	root := &cobra.Command{Use: name, Short: short, Version: version, SilenceErrors: true, SilenceUsage: true}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("%v; see %s --help", err, cmd.CommandPath())}
	})
	root.SetArgs(args)
	return root
}

// IsTerminal tells whether a person reads what is written.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Flags gives a command one flag for every setting.
func Flags(cmd *cobra.Command, program string, fields []config.Field) func() map[string][]string {
	for _, f := range fields {
		cmd.Flags().String(f.Flag, "", f.Doc)
		if f.Type == config.Bool {
			cmd.Flags().Lookup(f.Flag).NoOptDefVal = "true"
		}
	}
	cmd.Flags().String("config", "", fmt.Sprintf("File with settings (%s_CONFIG; otherwise /etc/%s/config.yaml if it is there)", strings.ToUpper(program), program))
	return func() map[string][]string {
		given := map[string][]string{}
		for _, f := range fields {
			if flag := cmd.Flags().Lookup(f.Flag); flag.Changed {
				given[f.Flag] = []string{flag.Value.String()}
			}
		}
		if flag := cmd.Flags().Lookup("config"); flag.Changed {
			given["config"] = []string{flag.Value.String()}
		}
		return given
	}
}

// Log writes lines of at least that level.
func Log(least, format string, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(least)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Config prints the settings of a program, as dst would hold them.
func Config(program string, dst any, std Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Print each setting with its value and where it came from", Args: cobra.NoArgs}
	flags := Flags(cmd, program, config.Fields(dst))
	cmd.RunE = func(*cobra.Command, []string) error {
		report, err := config.Load(dst, config.System(program, flags()))
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		tw := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(tw, "KEY\tVALUE\tORIGIN")
		for _, row := range report.Rows {
			fmt.Fprintf(tw, "%s\t%s\t%s\n", row.Key, strings.ReplaceAll(row.Value, "\n", " "), row.Origin)
		}
		return tw.Flush()
	}
	return cmd
}

// Beside finds a program in the folder of this one; empty: there is none.
func Beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return ""
	}
	if path := filepath.Join(filepath.Dir(self), name); IsFile(path) {
		return path
	}
	return ""
}

// IsFile tells whether there is a regular file.
func IsFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
