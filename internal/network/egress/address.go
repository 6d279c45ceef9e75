package egress

import "net/netip"

// special are ranges that look routable but are not public: IANA's special-purpose
// registries, and the metadata services of clouds.
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15",
	"198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32", // Azure's host channel, a public address by its number
	// Within 2000::/3: protocol assignments, documentation, and tunnels that carry
	// an IPv4 address of the sandbox's choice.
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// global is the part of IPv6 that is allocated for the internet.
var global = netip.MustParsePrefix("2000::/3")

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// Public reports whether an address is on the public internet.
func Public(ip netip.Addr) bool {
	ip = ip.Unmap()
	if !ip.IsValid() || ip.Zone() != "" || ip.Is6() && !global.Contains(ip) {
		return false
	}
	for _, p := range special {
		if p.Contains(ip) {
			return false
		}
	}
	return true
}
