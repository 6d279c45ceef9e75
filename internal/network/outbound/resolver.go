package outbound

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/cove-sandbox/cove/internal/network/socks"
)

// Resolver answers DNS queries inside a sandbox. It forwards no query: a name that may be used has an address of Names, all
// others do not exist. There are no other records, so a query carries no data out of the sandbox except names that the hub may
// look up.
type Resolver struct {
	Names *Names
	// Lookup returns nil if a name exists and may be used; see Hub.Lookup.
	Lookup func(ctx context.Context, name string) error

	mu      sync.Mutex
	pending map[string]*lookup
}

// lookup is a Lookup that several queries may wait for: most programs ask for both kinds of addresses at once.
type lookup struct {
	done chan struct{}
	err  error
}

const (
	addressTTL  = 60 // seconds; the address of a name does not change while it is used
	localTTL    = 86400
	maxQueries  = 256 // concurrently
	maxStreams  = 32
	streamIdle  = 30 * time.Second
	queryTime   = 15 * time.Second
	errorPause  = 100 * time.Millisecond
	maxUDP      = 512
	pointerZone = ".in-addr.arpa"
)

// Answer returns the response to a query; nil if it deserves none.
func (r *Resolver) Answer(ctx context.Context, query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil || head.Response {
		return nil
	}
	reply := dnsmessage.Header{ID: head.ID, Response: true, OpCode: head.OpCode, RecursionDesired: head.RecursionDesired,
		RecursionAvailable: true}
	questions, err := p.AllQuestions()
	var answers []answer
	switch {
	case err != nil || len(questions) != 1:
		reply.RCode, questions = dnsmessage.RCodeFormatError, nil
	case head.OpCode != 0:
		reply.RCode = dnsmessage.RCodeNotImplemented
	case questions[0].Class != dnsmessage.ClassINET:
		reply.RCode = dnsmessage.RCodeRefused
	default:
		answers, reply.RCode = r.resolve(ctx, questions[0])
	}
	b := dnsmessage.NewBuilder(nil, reply)
	b.EnableCompression()
	if b.StartQuestions() != nil {
		return nil
	}
	for _, q := range questions {
		if b.Question(q) != nil {
			return nil
		}
	}
	if b.StartAnswers() != nil {
		return nil
	}
	for _, a := range answers {
		if a.add(&b, dnsmessage.ResourceHeader{Name: questions[0].Name, Class: dnsmessage.ClassINET, TTL: a.ttl}) != nil {
			return nil
		}
	}
	out, err := b.Finish()
	if err != nil {
		return nil
	}
	return out
}

// answer is an address or, if pointer is set, the name of an address.
type answer struct {
	addr    netip.Addr
	pointer string
	ttl     uint32
}

func (a answer) add(b *dnsmessage.Builder, h dnsmessage.ResourceHeader) error {
	switch {
	case a.pointer != "":
		name, err := dnsmessage.NewName(a.pointer + ".")
		if err != nil {
			return err
		}
		return b.PTRResource(h, dnsmessage.PTRResource{PTR: name})
	case a.addr.Is4():
		return b.AResource(h, dnsmessage.AResource{A: a.addr.As4()})
	}
	return b.AAAAResource(h, dnsmessage.AAAAResource{AAAA: a.addr.As16()})
}

func (r *Resolver) resolve(ctx context.Context, q dnsmessage.Question) ([]answer, dnsmessage.RCode) {
	name := strings.ToLower(strings.TrimSuffix(q.Name.String(), "."))
	wantsAddress := q.Type == dnsmessage.TypeA || q.Type == dnsmessage.TypeAAAA
	switch {
	case name == "localhost" || strings.HasSuffix(name, ".localhost"):
		if !wantsAddress {
			return nil, dnsmessage.RCodeSuccess
		}
		a := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if q.Type == dnsmessage.TypeAAAA {
			a = netip.IPv6Loopback()
		}
		return []answer{{addr: a, ttl: localTTL}}, dnsmessage.RCodeSuccess
	case q.Type == dnsmessage.TypePTR:
		if pointer, ok := r.Names.Name(pointerAddress(name)); ok {
			return []answer{{pointer: pointer, ttl: addressTTL}}, dnsmessage.RCodeSuccess
		}
		return nil, dnsmessage.RCodeNameError
	case !wantsAddress:
		return nil, dnsmessage.RCodeSuccess // the name may exist, but has no such record
	}
	if err := r.lookup(ctx, name); err != nil {
		var refused *RefusedError
		if errors.As(err, &refused) && (refused.Code == socks.Denied || refused.Code == socks.HostUnreachable) {
			return nil, dnsmessage.RCodeNameError
		}
		return nil, dnsmessage.RCodeServerFailure
	}
	if q.Type == dnsmessage.TypeAAAA {
		return nil, dnsmessage.RCodeSuccess // IPv4 is enough: the connection ends in the sandbox
	}
	return []answer{{addr: r.Names.Address(name), ttl: addressTTL}}, dnsmessage.RCodeSuccess
}

// pointerAddress returns the address whose name a query asks for.
func pointerAddress(name string) (a netip.Addr) {
	reversed, ok := strings.CutSuffix(name, pointerZone)
	if !ok {
		return a
	}
	parts := strings.Split(reversed, ".")
	if len(parts) != 4 {
		return a
	}
	var b [4]byte
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil {
			return a
		}
		b[3-i] = byte(n)
	}
	return netip.AddrFrom4(b)
}

// lookup asks the hub, once for concurrent queries.
func (r *Resolver) lookup(ctx context.Context, name string) error {
	if _, err := (Request{Kind: Lookup, Host: name}).marshal(); err != nil {
		return &RefusedError{socks.Denied}
	}
	r.mu.Lock()
	l, ok := r.pending[name]
	if !ok {
		l = &lookup{done: make(chan struct{})}
		if r.pending == nil {
			r.pending = map[string]*lookup{}
		}
		r.pending[name] = l
	}
	r.mu.Unlock()
	if ok {
		select {
		case <-l.done:
			return l.err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.err = r.Lookup(ctx, name)
	r.mu.Lock()
	delete(r.pending, name)
	r.mu.Unlock()
	close(l.done)
	return l.err
}

// ServePackets answers queries over UDP until c is closed. Ctx ends them.
func (r *Resolver) ServePackets(ctx context.Context, c net.PacketConn) {
	slots := make(chan struct{}, maxQueries)
	var work sync.WaitGroup
	defer work.Wait()
	buf := make([]byte, 4096)
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !pause(ctx) {
				return
			}
			continue
		}
		query := append([]byte(nil), buf[:n]...)
		slots <- struct{}{}
		work.Go(func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(ctx, queryTime)
			defer cancel()
			if reply := r.Answer(ctx, query); reply != nil && len(reply) <= maxUDP {
				_, _ = c.WriteTo(reply, from)
			}
		})
	}
}

// ServeStreams answers queries over TCP until l is closed. Ctx ends them.
func (r *Resolver) ServeStreams(ctx context.Context, l net.Listener) {
	slots := make(chan struct{}, maxStreams)
	var work sync.WaitGroup
	defer work.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !pause(ctx) {
				return
			}
			continue
		}
		slots <- struct{}{}
		work.Go(func() {
			defer func() { c.Close(); <-slots }()
			r.serveStream(ctx, c)
		})
	}
}

func (r *Resolver) serveStream(ctx context.Context, c net.Conn) {
	for {
		c.SetDeadline(time.Now().Add(streamIdle))
		var size [2]byte
		if _, err := io.ReadFull(c, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		limited, cancel := context.WithTimeout(ctx, queryTime)
		reply := r.Answer(limited, query)
		cancel()
		if reply == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
			return
		}
	}
}

// pause waits after an error that does not last, such as a lack of descriptors. It returns false when ctx has ended.
func pause(ctx context.Context) bool {
	t := time.NewTimer(errorPause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
