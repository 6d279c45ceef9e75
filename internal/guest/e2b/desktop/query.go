package desktop

import (
	"bufio"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cove-sandbox/cove/internal/guest/internal/x11"
)

// describeDisplay implements xdpyinfo.
func describeDisplay(ctx context.Context, c *command) error {
	name := c.option("-display", c.env("DISPLAY"))
	conn, err := c.dial(ctx, name)
	if err != nil {
		return err
	}
	defer conn.Close()
	size, err := conn.Size(ctx)
	if err == nil {
		_, err = fmt.Fprintf(c.Out, "name of display:    %s\ndefault screen number:    0\nnumber of screens:    "+
			"1\n\nscreen #0:\n  dimensions:    %dx%d pixels\n  depth of root window:    24 planes\n", name, size.X, size.Y)
	}
	return err
}

// describeScreen implements xrandr without changes.
func describeScreen(ctx context.Context, c *command) error {
	for _, arg := range c.args {
		if arg != "-q" && arg != "--query" && arg != "--current" {
			return fmt.Errorf("unsupported argument %.60q; install the package x11-xserver-utils", arg)
		}
	}
	conn, err := c.dial(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close()
	size, err := conn.Size(ctx)
	if err == nil {
		_, err = fmt.Fprintf(c.Out, "Screen 0: minimum 64 x 64, current %[1]d x %[2]d, maximum 7680 x 4320\nscreen "+
			"connected primary %[1]dx%[2]d+0+0\n   %[1]dx%[2]d     60.00*+\n", size.X, size.Y)
	}
	return err
}

// takeScreenshot implements scrot: it saves the screen as PNG.
func takeScreenshot(ctx context.Context, c *command) error {
	path := ""
	shot := x11.Shot{NoCursor: true}
	for _, arg := range c.args {
		switch {
		case arg == "--pointer" || arg == "-p":
			shot.NoCursor = false
		case slices.Contains([]string{"-o", "--overwrite", "-z", "--silent"}, arg):
		case strings.HasPrefix(arg, "-") || path != "":
			return fmt.Errorf("unsupported argument %.60q; install the package scrot", arg)
		default:
			path = arg
		}
	}
	if path == "" {
		return errors.New("missing file name; use scrot FILE")
	}
	conn, err := c.dial(ctx, "")
	if err != nil {
		return err
	}
	defer conn.Close()
	img, err := conn.Screenshot(ctx, shot)
	if err != nil {
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = x11.EncodePNG(f, img)
	return errors.Join(err, f.Close())
}

// listPorts implements netstat -tuln.
func listPorts(_ context.Context, c *command) error {
	for _, arg := range c.args {
		if strings.Trim(arg, "-tuln46wa") != "" {
			return fmt.Errorf("unsupported argument %.60q; install the package net-tools", arg)
		}
	}
	fmt.Fprintln(c.Out, "Active Internet connections (only servers)\nProto Recv-Q Send-Q Local Address           "+
		"Foreign Address         State")
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6"} {
		f, err := os.Open("/proc/net/" + table)
		if err != nil {
			continue // the kernel does not support the protocol
		}
		err = writePorts(c.Out, table, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// listening are the states of listening sockets in the tables, and their names in netstat.
var listening = map[string][2]string{"tcp": {"0A", "LISTEN"}, "tcp6": {"0A", "LISTEN"}, "udp": {"07", ""}, "udp6": {"07", ""}}

func writePorts(w io.Writer, table string, r io.Reader) error {
	state := listening[table]
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != state[0] {
			continue
		}
		local, ok := parseAddress(fields[1])
		if !ok {
			continue
		}
		foreign := "0.0.0.0:*"
		if strings.HasSuffix(table, "6") {
			foreign = ":::*"
		}
		if _, err := fmt.Fprintf(w, "%-5s %6d %6d %-23s %-23s %-11s\n", table, 0, 0, local, foreign, state[1]); err != nil {
			return err
		}
	}
	return lines.Err()
}

// parseAddress parses an address of the kernel's tables: words in the machine's byte order, in hexadecimal.
func parseAddress(text string) (string, bool) {
	host, port, _ := strings.Cut(text, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b)%4 != 0 {
		return "", false
	}
	for i := 0; i < len(b); i += 4 {
		slices.Reverse(b[i : i+4])
	}
	addr, ok := netip.AddrFromSlice(b)
	return addr.String() + ":" + strconv.FormatUint(n, 10), ok
}
