// Package host owns the parts that both programs share: the root command, flags from settings, the
// log, the listener, tickets, and the order of start and stop of a server. It is independent of
// sandboxes and hubs.
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

// Streams are the standard streams of a program.
type Streams struct {
	In  io.Reader
	Out io.Writer
	Err io.Writer
}

// Root returns the root command of a program.
func Root(name, short, version string, args []string, std Streams) *cobra.Command {
	root := &cobra.Command{Use: name, Short: short, Version: version, SilenceErrors: true, SilenceUsage: true, Args: cli.CheckCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	root.SetIn(std.In)
	root.SetOut(std.Out)
	root.SetErr(std.Err)
	root.SetFlagErrorFunc(cli.FlagError)
	root.SetArgs(args)
	return root
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Log returns a logger for records of at least the level.
func Log(minimum, format string, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(minimum)); err != nil {
		level = slog.LevelInfo
	}
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Config returns the command that prints the settings of a program, which it loads into dst.
func Config(program string, dst any, std Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "config", Short: "Print all settings with their values and origins", Args: cli.Arguments(0, 0)}
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

// Beside returns the path of a program in the directory of this one; empty if it is missing.
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

// IsFile reports whether path is a regular file.
func IsFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
