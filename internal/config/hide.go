package config

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Hide overwrites the values of dst's secret settings in /proc/PID/environ and
// /proc/PID/cmdline, which other programs of the same user can read. The source keeps its
// copies. DetachArgs must be called before flags are parsed.
func Hide(src Source, dst any) error {
	secrets := secretValues(src, dst)
	if len(secrets) == 0 {
		return nil
	}
	blocks, err := startBlocks()
	if err != nil {
		return fmt.Errorf("hide secrets from /proc: %w", err)
	}
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("hide secrets from /proc: %w", err)
	}
	defer mem.Close()
	for _, block := range blocks {
		if err := overwrite(mem, block, secrets); err != nil {
			return fmt.Errorf("hide secrets from /proc: %w", err)
		}
	}
	return nil
}

// DetachArgs copies os.Args, because Hide overwrites the memory that the kernel passed.
func DetachArgs() {
	for i, arg := range os.Args {
		os.Args[i] = strings.Clone(arg)
	}
}

// secretValues returns the given values of secret settings, from variables and flags.
func secretValues(src Source, dst any) []string {
	var names, values []string
	for _, f := range Fields(dst) {
		if !f.Secret && !f.url || f.public {
			continue
		}
		if f.Scrub || f.url {
			names = append(names, f.Env...)
		}
		values = append(values, src.Flags[f.Flag]...)
	}
	for _, pair := range src.Environ {
		if name, value, _ := strings.Cut(pair, "="); matches(names, name) {
			values = append(values, value)
		}
	}
	return values
}

type block struct{ start, end int64 }

// startBlocks returns the memory ranges of the arguments and the environment of this process.
func startBlocks() ([]block, error) {
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return nil, err
	}
	// The name of the program may contain any character; the fields after it are numbers.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	const argStart = 48 - 3
	if len(fields) < argStart+4 {
		return nil, fmt.Errorf("/proc/self/stat has %d fields", len(fields)+2)
	}
	var at [4]int64
	for i := range at {
		if at[i], err = strconv.ParseInt(fields[argStart+i], 10, 64); err != nil {
			return nil, err
		}
	}
	return []block{{at[0], at[1]}, {at[2], at[3]}}, nil
}

func overwrite(mem *os.File, at block, secrets []string) error {
	if at.end <= at.start {
		return nil
	}
	b := make([]byte, at.end-at.start)
	if _, err := mem.ReadAt(b, at.start); err != nil {
		return err
	}
	changed := false
	for part := range bytes.SplitSeq(b, []byte{0}) { // parts share the memory of b
		for _, secret := range secrets {
			if secret != "" && bytes.HasSuffix(part, []byte(secret)) {
				tail := part[len(part)-len(secret):]
				copy(tail, bytes.Repeat([]byte{'*'}, len(tail)))
				changed = true
			}
		}
	}
	if !changed {
		return nil
	}
	_, err := mem.WriteAt(b, at.start)
	return err
}
