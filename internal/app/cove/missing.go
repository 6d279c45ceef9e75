package cove

import (
	"fmt"
	"os"
	"strings"
)

// delegate is the command that gives a hub without root control groups, on machines with systemd.
const delegate = "systemd-run --user --scope -p Delegate=yes cove hub"

// summarize describes the missing features of a machine in one line; empty if there are none.
func summarize(missing []string, limits bool) string {
	if len(missing) == 0 {
		return ""
	}
	names := make([]string, len(missing))
	for i, m := range missing {
		names[i] = strings.TrimSpace(m[:strings.IndexAny(m+":", ":(;")])
	}
	text := fmt.Sprintf("missing here: %s; cove doctor describes them", strings.Join(names, ", "))
	if !limits && os.Geteuid() != 0 {
		text += "; to limit memory and CPU without root, start the hub with " + delegate
	}
	return text
}

// alternatives ends the error of a hub that cannot start.
const alternatives = "run cove doctor to see what this machine supports; without namespaces, aio serve runs one sandbox " +
	"on this machine, and cove hub --provider docker uses Docker or Podman"
