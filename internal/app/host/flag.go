package host

import (
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/config"
)

// Flags adds one flag per setting to a command, and --config. The returned function
// returns the given flags in the form of config.Source.
func Flags(cmd *cobra.Command, program string, fields []config.Field) func() map[string][]string {
	given := map[string][]string{}
	for _, f := range fields {
		usage := f.Doc
		if len(f.Enum) > 0 {
			usage += " One of: " + strings.Join(f.Enum, ", ") + "."
		}
		flag := &pflag.Flag{Name: f.Flag, Usage: usage, DefValue: f.Default, Value: settingFlag{f, given}}
		if f.Type == config.Bool {
			flag.NoOptDefVal = "true"
		}
		cmd.Flags().AddFlag(flag)
	}
	file := config.Field{Flag: "config", Type: config.String}
	cmd.Flags().Var(settingFlag{file, given}, "config",
		fmt.Sprintf("Configuration file. Default: %s_CONFIG, then /etc/%s/config.yaml if it exists.", strings.ToUpper(program), program))
	return func() map[string][]string { return given }
}

// settingFlag collects the given values of one setting. config.Load validates them, so that all
// errors are reported together with their origins.
type settingFlag struct {
	field config.Field
	given map[string][]string
}

func (s settingFlag) Set(text string) error {
	s.given[s.field.Flag] = append(s.given[s.field.Flag], text)
	return nil
}

func (s settingFlag) String() string { return strings.Join(s.given[s.field.Flag], ",") }

// Type is shown by the help.
func (s settingFlag) Type() string { return string(s.field.Type) }

// WarnOfSecretFlags logs a warning for each secret that was given as a flag, which every user of the
// machine can read in the list of processes.
func WarnOfSecretFlags(log *slog.Logger, fields []config.Field, given map[string][]string) {
	for _, f := range fields {
		if f.Exposes(given[f.Flag]) {
			log.Warn("secret given as a flag is visible to other users of this machine; use the variable instead",
				"flag", "--"+f.Flag, "variable", f.Env[0])
		}
	}
}
