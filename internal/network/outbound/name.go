package outbound

import (
	"container/list"
	"encoding/binary"
	"net/netip"
	"sync"
)

// The addresses that represent names: 198.18.0.0/15, which is reserved for benchmarks of networks and never routed. The egress
// proxy refuses them as literal addresses.
var synthetic = netip.MustParsePrefix("198.18.0.0/15")

const (
	addressCount = 1 << 17
	// maxNames bounds the table. An address is reused only after all others, so that the address of a forgotten name represents
	// no other name soon.
	maxNames = 8192
)

// Names assigns addresses to names. The zero value is ready to use.
type Names struct {
	mu     sync.Mutex
	byName map[string]*list.Element
	byAddr map[netip.Addr]*list.Element
	recent list.List // of *binding, least recently used last
	last   uint32
}

type binding struct {
	name string
	addr netip.Addr
}

// Address returns the address of a name, and assigns one if it has none.
func (n *Names) Address(name string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e, ok := n.byName[name]; ok {
		n.recent.MoveToFront(e)
		return e.Value.(*binding).addr
	}
	if n.byName == nil {
		n.byName, n.byAddr = map[string]*list.Element{}, map[netip.Addr]*list.Element{}
	}
	if len(n.byName) >= maxNames {
		oldest := n.recent.Remove(n.recent.Back()).(*binding)
		delete(n.byName, oldest.name)
		delete(n.byAddr, oldest.addr)
	}
	b := &binding{name: name, addr: n.next()}
	e := n.recent.PushFront(b)
	n.byName[name], n.byAddr[b.addr] = e, e
	return b.addr
}

// next returns an unused address; n.mu is held.
func (n *Names) next() netip.Addr {
	base := synthetic.Addr().As4()
	for {
		// Neither the first nor the last address.
		n.last = n.last%(addressCount-2) + 1
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(base[:])+n.last)
		if a := netip.AddrFrom4(b); n.byAddr[a] == nil {
			return a
		}
	}
}

// Name returns the name that an address represents.
func (n *Names) Name(a netip.Addr) (name string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e, ok := n.byAddr[a.Unmap()]
	if !ok {
		return "", false
	}
	n.recent.MoveToFront(e)
	return e.Value.(*binding).name, true
}

// Synthetic reports whether an address can only represent a name.
func Synthetic(a netip.Addr) bool { return synthetic.Contains(a.Unmap()) }
