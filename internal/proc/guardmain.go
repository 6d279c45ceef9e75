package proc

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	// guardTable is the descriptor at which the guard finds the table of groups.
	guardTable = 3
	// sweepLimit bounds how long the guard hunts what forks faster than it kills.
	sweepLimit = 10 * time.Second
	// sweepPause lies between two looks at the process table.
	sweepPause = 10 * time.Millisecond
	// sweepClean is how many looks in a row must find nothing: a process that is
	// just executing another program shows no environment for a moment.
	sweepClean = 3
	// nonceLength is that of crypto/rand.Text. A shorter mark is refused, so that
	// no mishap makes the guard match what is not ours.
	nonceLength = 26
)

// GuardMain is the guard program: it waits until the pipe on stdin ends. After a
// goodbye it just returns. Otherwise the runner was killed, and every process
// that carries its mark or is in one of its groups is killed, until none is
// left. It touches no other process. The result is the exit code.
func GuardMain(stdin *os.File) int {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	defer signal.Reset(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGPIPE)
	in := bufio.NewReaderSize(stdin, 256)
	line, err := in.ReadSlice('\n')
	if err != nil || len(line) != nonceLength+1 {
		return 2
	}
	nonce := string(line[:nonceLength])
	if line, err = in.ReadSlice('\n'); string(line) == goodbye {
		return 0
	}
	if err != io.EOF {
		return 2
	}
	s := &sweep{nonce: nonce, groups: readGroups(os.NewFile(guardTable, "guard"), bootTicks())}
	if !s.kill(sweepLimit) {
		return 1
	}
	return 0
}

// readGroups reads the groups that the runner had. At now, when it died, the
// numbers of groups without a limit were surely its own.
func readGroups(table *os.File, now uint64) []claim {
	data, err := io.ReadAll(io.NewSectionReader(table, 0, 1<<24))
	if err != nil {
		return nil
	}
	var groups []claim
	for ; len(data) >= slotSize; data = data[slotSize:] {
		number, limit := binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
		if number <= 1 || number > 1<<30 {
			continue
		}
		if limit == 0 {
			limit = now
		}
		groups = append(groups, claim{number: int(number), session: true, limit: limit})
	}
	return groups
}

// sweep finds the processes of one runner.
type sweep struct {
	nonce  string
	groups []claim
}

// kill kills until nothing is left, at most for limit.
func (s *sweep) kill(limit time.Duration) bool {
	deadline := time.Now().Add(limit)
	for clean := 0; clean < sweepClean; {
		if time.Now().After(deadline) {
			return false
		}
		if s.signal(syscall.SIGKILL) == 0 {
			clean++
		} else {
			clean = 0
		}
		time.Sleep(sweepPause)
	}
	return true
}

// signal reaches every process of the runner once and counts them.
func (s *sweep) signal(sig syscall.Signal) int {
	table, err := processes()
	if err != nil {
		return 0
	}
	struck := 0
	var held []claim
	for _, group := range s.groups {
		members := group.members(table)
		if len(members) == 0 {
			continue // its number may be someone else's from now on
		}
		held = append(held, group)
		for _, m := range members {
			if strike(m, sig, group.covers) {
				struck++
			}
		}
	}
	s.groups = held
	for _, e := range table {
		if !e.zombie && carries(e.pid, s.nonce) && strike(e, sig, func(e entry) bool { return carries(e.pid, s.nonce) }) {
			struck++
		}
	}
	return struck
}

// carries is true when the process was started with the mark of that nonce.
func carries(pid int, nonce string) bool {
	if pid == os.Getpid() {
		return false
	}
	environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	mark := []byte(markName + "=" + nonce)
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		if bytes.Equal(entry, mark) {
			return true
		}
	}
	return false
}

// endMarked ends what carries the mark: TERM, and KILL after the grace.
func endMarked(nonce string, grace time.Duration) {
	s := &sweep{nonce: nonce}
	if s.signal(syscall.SIGTERM) == 0 {
		return
	}
	for deadline := time.Now().Add(grace); time.Now().Before(deadline) && s.signal(0) > 0; {
		time.Sleep(sweepPause)
	}
	s.kill(sweepLimit)
}
