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
	// guardTable is the guard's descriptor of the table of groups.
	guardTable = 3
	// sweepLimit bounds a sweep of processes that fork faster than they are killed.
	sweepLimit = 10 * time.Second
	// sweepPause is the time between two reads of the process table.
	sweepPause = 10 * time.Millisecond
	// sweepClean is the number of consecutive reads that must find nothing: a process
	// temporarily has no visible environment during exec.
	sweepClean = 3
	// nonceLength is the length of crypto/rand.Text. A shorter mark is refused, so
	// that the guard never matches foreign processes by mistake.
	nonceLength = 26
)

// GuardMain is the guard program: it waits until the pipe on stdin ends. After a
// goodbye it returns. Otherwise the runner was killed, and the guard kills every
// process that carries its mark or is in one of its groups, until none remains.
// It signals no other process. The result is the exit code.
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

// readGroups reads the runner's groups. The numbers of groups without a limit
// were the runner's until now, when it ended.
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

// kill kills until no process remains, at most for limit.
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

// signal signals every process of the runner once and counts them.
func (s *sweep) signal(sig syscall.Signal) int {
	table, err := processes()
	if err != nil {
		return 0
	}
	signaled := 0
	var held []claim
	for _, group := range s.groups {
		members := group.members(table)
		if len(members) == 0 {
			continue // another process may get its number
		}
		held = append(held, group)
		for _, m := range members {
			if signalIfOwned(m, sig, group.covers) {
				signaled++
			}
		}
	}
	s.groups = held
	for _, e := range table {
		if !e.zombie && carries(e.pid, s.nonce) && signalIfOwned(e, sig, func(e entry) bool { return carries(e.pid, s.nonce) }) {
			signaled++
		}
	}
	return signaled
}

// carries reports whether the process has the mark with that nonce.
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

// endMarked ends the processes with the mark: TERM, then KILL after the grace.
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
