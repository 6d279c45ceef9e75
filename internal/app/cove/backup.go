//go:build linux

package cove

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/hub"
	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// Keys of the settings that verbs of the hub's machine use. They accept no other setting as a flag;
// those of the configuration file and the environment are read as usual.
var (
	backupSettings  = []string{"state", "provider", "keys", "environments", "audit_key_file"}
	restoreSettings = []string{"state", "first_id", "memory_limit", "disk_limit", "disk_rate_limit", "bandwidth_limit"}
	doctorSettings  = []string{
		"state", "provider", "docker_host", "kubernetes*", "aio", "venv", "components", "cgroup", "first_id", "runsc",
		"default_image", "insecure_registries", "private_registries", "registry_auth", "volume_limit",
		"memory_limit", "disk_limit", "disk_rate_limit", "bandwidth_limit",
	}
	reportSettings = append([]string{"log_file"}, doctorSettings...)
)

// withSettings gives a verb of the hub's machine the settings of the hub, and flags for those that
// it uses.
func withSettings(cmd *cobra.Command, keys []string, f func(ctx context.Context, cfg config.Cove, args []string) error) *cobra.Command {
	fields := slices.DeleteFunc(slices.Clone(config.Fields(&config.Cove{})), func(field config.Field) bool {
		return !slices.ContainsFunc(keys, func(key string) bool {
			ok, err := path.Match(key, field.Key)
			return ok && err == nil
		})
	})
	flags := host.Flags(cmd, "cove", fields)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var cfg config.Cove
		if _, err := config.Load(&cfg, config.System("cove", flags())); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		return verb.WithExitCode(f(ctx, cfg, args))
	}
	return cmd
}

func (v machineVerbs) backup(version string) *cobra.Command {
	return withSettings(&cobra.Command{Use: "backup FILE", Short: "Back up the state of the hub on this machine", Args: cli.Arguments(1, 1),
		Long: "Write the state of the hub on this machine to a file; - is standard output. The hub may be running. " +
			"The backup holds sandboxes, snapshots, volumes, images, keys, secrets " +
			"and the audit log, so keep it as safe as the hub itself. Memory is not part of it: a restored sandbox " +
			"is stopped, and the next request starts it.",
		Example: "  cove backup cove.backup\n  cove backup - | age -r KEY > cove.backup.age"},
		backupSettings, func(ctx context.Context, cfg config.Cove, args []string) error {
			v.warnOfOutside(cfg)
			b := local.BackupConfig{Dir: cfg.State, Version: version, Files: hub.StateFiles,
				Warn: func(what string) { fmt.Fprintln(v.Std.Err, "warning:", what) }}
			if args[0] == "-" {
				if host.IsTerminal(v.Std.Out) {
					return &cli.Error{Code: cli.ExitUsage, Msg: "a backup is not text; redirect standard output or name a file"}
				}
				return local.Backup(ctx, b, v.Std.Out)
			}
			return atomicfile.Replace(args[0], atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
				r, w := io.Pipe()
				go func() { w.CloseWithError(local.Backup(ctx, b, w)) }()
				defer r.Close()
				_, err := io.Copy(f, v.Progress(r, "written", -1))
				return err
			})
		})
}

// warnOfOutside warns about data of a hub that is not in its state folder.
func (v machineVerbs) warnOfOutside(cfg config.Cove) {
	if cfg.Provider == "docker" {
		fmt.Fprintln(v.Std.Err, "warning: sandboxes, snapshots, volumes and images of the Docker provider are in "+
			"the Docker engine; the backup holds keys, secrets and the audit log alone")
	}
	if cfg.Provider == "kubernetes" {
		fmt.Fprintln(v.Std.Err, "warning: sandboxes and volumes of the Kubernetes provider are in the cluster, and "+
			"its snapshots in their store; the backup holds keys, secrets and the audit log alone")
	}
	for what, file := range map[string]string{"keys file": cfg.Keys, "environments file": cfg.Environments,
		"key of the audit log": cfg.AuditKeyFile} {
		if file != "" && filepath.Dir(file) != filepath.Clean(cfg.State) {
			fmt.Fprintf(v.Std.Err, "warning: the %s %q is not in the state folder; back it up, too\n", what, file)
		}
	}
}

func (v machineVerbs) restore() *cobra.Command {
	return withSettings(&cobra.Command{Use: "restore FILE",
		Short: "Restore a backup as the state of the hub on this machine", Args: cli.Arguments(1, 1),
		Long: "Restore a backup that cove backup wrote; - is standard input. The state folder must be empty or " +
			"missing, and no hub may use it. If the backup is invalid or damaged, " +
			"nothing is restored. Then start the hub. The hub deletes sandboxes that have expired in the meantime.",
		Example: "  systemctl stop cove\n  cove restore cove.backup\n  systemctl start cove"},
		restoreSettings, func(ctx context.Context, cfg config.Cove, args []string) error {
			in, size := v.Std.In, int64(-1)
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
				}
				defer f.Close()
				in, size = f, verb.SizeOf(f)
			}
			to := local.RestoreConfig{Dir: cfg.State, Files: hub.StateFiles, Defaults: resources(cfg), FirstID: uint32(cfg.FirstID)}
			done, err := local.Restore(ctx, to, v.Progress(in, "read", size))
			if errors.Is(err, local.ErrNoBackup) {
				return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(v.Std.Out, "restored %d sandboxes, %d snapshots and %d volumes of %s, as of %s, into %s\n",
				done.Sandboxes, done.Snapshots, done.Volumes, done.State, done.Created.Local().Format("2006-01-02 15:04:05"), cfg.State)
			return nil
		})
}
