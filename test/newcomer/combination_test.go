// Package newcomer types what README and guide say, in empty systems.
package newcomer

import (
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/test/dist"
)

// combination is what a newcomer has: a system, rights on it, and Cove from somewhere.
type combination struct{ release, rights, source string }

func (c combination) String() string { return c.release + "/" + c.rights + "/" + c.source }

// combinations lists all of them.
func combinations() (list []combination) {
	for _, release := range []string{"bookworm", "trixie", "noble"} {
		for _, rights := range []string{"root", "sudo", "neither"} {
			for _, source := range []string{"repository", "archive", "deb"} {
				list = append(list, combination{release, rights, source})
			}
		}
	}
	return list
}

// choose selects the combination of a commit.
func choose(commit string) combination {
	sum := sha256.Sum256([]byte(commit))
	list := combinations()
	return list[binary.BigEndian.Uint64(sum[:])%uint64(len(list))]
}

var only = flag.String("combination", "", "run this combination, such as trixie/sudo/deb; all for every one")

// TestNewcomer follows README and guide in an empty system: in one combination for each commit, at night in all of them.
func TestNewcomer(t *testing.T) {
	testenv.Engine(t)
	testenv.NeedRoot(t)
	list, distribution := selected(t), ""
	if slices.ContainsFunc(list, func(c combination) bool { return c.source != "repository" }) {
		distribution = dist.Build(t, version)
	}
	for _, c := range list {
		t.Run(c.String(), func(t *testing.T) { follow(t, c, distribution) })
	}
}

func selected(t *testing.T) []combination {
	t.Helper()
	if testenv.AtNight() || *only == "all" {
		return combinations()
	}
	for _, c := range combinations() {
		if c.String() == *only {
			return []combination{c}
		}
	}
	if *only != "" {
		t.Fatalf("unknown combination %q", *only)
	}
	commit, err := exec.CommandContext(t.Context(), "git", "-C", "../..", "rev-parse", "HEAD").Output()
	if err != nil {
		t.Logf("without a commit: %v", err)
	}
	return []combination{choose(strings.TrimSpace(string(commit)))}
}

// TestCommitsChooseEveryCombination: consecutive commits test different combinations.
func TestCommitsChooseEveryCombination(t *testing.T) {
	t.Parallel()
	chosen := map[combination]int{}
	for commit := range 1000 {
		chosen[choose(strings.Repeat("0", 20)+string(rune('a'+commit%26))+strings.Repeat("1", commit/26))]++
	}
	if len(chosen) != 27 || len(combinations()) != 27 {
		t.Errorf("got %d combinations for 1000 commits, want 27: %v", len(chosen), chosen)
	}
}
