package info

import (
	"bufio"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// osRelease reads the name and version of the system.
func osRelease() (name, version string) {
	for _, path := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		defer f.Close()
		values := map[string]string{}
		for scan := bufio.NewScanner(f); scan.Scan(); {
			key, value, _ := strings.Cut(scan.Text(), "=")
			values[key] = strings.Trim(value, `"'`)
		}
		name, version = values["NAME"], values["VERSION"]
		if version == "" {
			version = values["VERSION_ID"]
		}
		return name, version
	}
	return "Linux", ""
}

// zone returns the configured time zone, or that of the machine.
func (s *Service) zone() string {
	if s.TZ != "" {
		return s.TZ
	}
	if target, err := filepath.EvalSymlinks("/etc/localtime"); err == nil {
		if _, zone, ok := strings.Cut(target, "/zoneinfo/"); ok {
			return zone
		}
	}
	if b, err := os.ReadFile("/etc/timezone"); err == nil {
		if zone := strings.TrimSpace(string(b)); zone != "" {
			return zone
		}
	}
	name, _ := time.Now().Zone()
	return name
}

// listeningPorts lists the listening TCP ports in ascending order.
func listeningPorts() ([]string, error) {
	seen := map[int]bool{}
	found := false
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		found = true
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if port, ok := parseListening(scan.Text()); ok {
				seen[port] = true
			}
		}
		f.Close()
	}
	if !found {
		return nil, errors.New("/proc/net/tcp does not exist")
	}
	ports := make([]int, 0, len(seen))
	for p := range seen {
		ports = append(ports, p)
	}
	slices.Sort(ports)
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = strconv.Itoa(p)
	}
	return out, nil
}

// parseListening parses a line of /proc/net/tcp: local address in hex, state 0A.
func parseListening(line string) (int, bool) {
	fields := strings.Fields(line)
	if len(fields) < 4 || fields[3] != "0A" {
		return 0, false
	}
	_, port, ok := strings.Cut(fields[1], ":")
	if !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(port, 16, 16)
	return int(n), err == nil
}
