package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// split parses a target: a clean name or an address, and a port.
func split(target, port string) (host string, n int, err error) {
	if n, err = parsePort(port); err != nil {
		return "", 0, deny("%v", err)
	}
	if ip, err := netip.ParseAddr(target); err == nil {
		if ip.Zone() != "" {
			return "", 0, deny("address %q contains a network interface", target)
		}
		return ip.Unmap().String(), n, nil
	}
	host, err = CleanName(target)
	if err != nil {
		return "", 0, deny("host %.80q: %v", target, err)
	}
	return host, n, nil
}

// dialer resolves names and connects to the addresses that sandboxes may reach.
type dialer struct {
	cfg Config

	mu     sync.Mutex
	self   []netip.Addr // addresses of this machine
	selfAt time.Time    // when they were read
}

// dial connects to a host that the rules allow, at one of its allowed addresses. It
// sets the address and the rule of rec.
func (p *Proxy) dial(ctx context.Context, host string, port int, rec *Record) (*link, error) {
	rule, err := p.permit(ctx, host, port, rec.Program)
	if err != nil {
		return nil, err
	}
	rec.Rule = rule
	ips, err := p.dialer.resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	var last error
	for _, ip := range ips {
		rec.Address = ip.String()
		if err := p.rules.Load().AllowAt(host, ip, port); err != nil {
			last = err
			continue
		}
		c, err := p.dialer.connect(ctx, netip.AddrPortFrom(ip, uint16(port)))
		if err != nil {
			last = err
			if ctx.Err() != nil {
				break
			}
			continue
		}
		if l := p.track(c, host, port); l != nil {
			return l, nil
		}
		c.Close()
		return nil, deny("the network rules of this sandbox have changed")
	}
	if Denied(last) {
		return nil, last
	}
	return nil, fmt.Errorf("connect to %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), last)
}

// connect connects to a checked address.
func (d *dialer) connect(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return d.cfg.Dial(ctx, to)
}

// resolve returns the allowed addresses of a host and omits others.
func (d *dialer) resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		if err := d.checkAddress(ip); err != nil {
			return nil, err
		}
		return []netip.Addr{ip}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	found, err := d.cfg.Resolve(ctx, host)
	if err != nil {
		if e, ok := errors.AsType[*net.DNSError](err); ok && e.IsNotFound {
			return nil, fmt.Errorf("look up %q: no such host", host)
		}
		return nil, fmt.Errorf("look up %q: %w", host, err)
	}
	var good []netip.Addr
	var refused error
	for _, ip := range found {
		ip = ip.Unmap()
		if err := d.checkAddress(ip); err != nil {
			refused = err
			continue
		}
		good = append(good, ip)
	}
	switch {
	case len(good) > 0:
		return good, nil
	case refused != nil:
		return nil, deny("%q resolves to an address that sandboxes must not reach: %v", host, refused)
	}
	return nil, fmt.Errorf("look up %q: no address", host)
}

// checkAddress refuses private addresses, and those of this machine, unless the
// operator allows them.
func (d *dialer) checkAddress(ip netip.Addr) error {
	ip = ip.Unmap()
	for _, prefix := range d.cfg.Private {
		if prefix.Contains(ip) {
			return nil
		}
	}
	switch {
	case ip.IsPrivate():
		return deny("%s is not a public address; the operator of the hub can allow it with --private-networks %s", ip,
			netip.PrefixFrom(ip, ip.BitLen()))
	case !Public(ip):
		return deny("%s is not a public address", ip)
	case d.isOwn(ip):
		return deny("%s is an address of the machine that runs this sandbox", ip)
	}
	return nil
}

// interfaces lists the addresses of this machine.
func interfaces() []netip.Addr {
	var out []netip.Addr
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range list {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out
}

// isOwn reports whether an address belongs to this machine.
func (d *dialer) isOwn(ip netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.selfAt.IsZero() || time.Since(d.selfAt) > selfInterval {
		d.self, d.selfAt = d.cfg.Self(), time.Now()
	}
	for _, a := range d.self {
		if a == ip {
			return true
		}
	}
	return false
}
