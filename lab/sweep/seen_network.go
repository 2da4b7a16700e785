package sweep

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
)

func (s Snapshot) network() error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		s.add("link", "", "%s %s %s mtu %d", a.Name, l.Type(), a.Alias, a.MTU)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			s.add("route", "", "%s", r)
		}
		rules, err := netlink.RuleList(family)
		if err != nil {
			return fmt.Errorf("list rules: %w", err)
		}
		for _, r := range rules {
			s.add("rule", "", "%s", r)
		}
	}
	return nil
}

// nftables lists the ruleset as printed by nft, and the legacy iptables tables in use.
func (s Snapshot) nftables() {
	out, err := exec.Command("nft", "--stateless", "list", "ruleset").Output()
	if err == nil {
		table := ""
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "table ") {
				table = strings.TrimSuffix(line, " {")
			}
			if line != "" && line != "}" {
				s.add("nft", "", "%s: %s", table, line)
			}
		}
	}
	for _, f := range []string{"ip_tables_names", "ip6_tables_names"} {
		names, err := os.ReadFile(filepath.Join(thisThread, "net", f))
		if err != nil {
			continue
		}
		for _, name := range strings.Fields(string(names)) {
			s.add("nft", "", "%s: %s", f, name)
		}
	}
}

// thisThread is the directory with the calling thread's network namespace; /proc/net
// shows the namespace of the process's main thread.
const thisThread = "/proc/thread-self"

// listening is the state of a listening socket in /proc/net/tcp; a bound UDP
// socket is in state 07.
const (
	listening = "0A"
	bound     = "07"
)

// Columns of /proc/net/tcp and /proc/net/unix; see proc_net(5).
const (
	inetInode = 9
	unixInode = 6
	unixPath  = 7
	accepting = "00010000" // SO_ACCEPTCON among a Unix socket's flags
)

func (all things) sockets() {
	for _, table := range []string{"tcp", "tcp6", "udp", "udp6", "unix"} {
		b, err := os.ReadFile(filepath.Join(thisThread, "net", table))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			if name, inode := listener(table, strings.Fields(line)); name != "" {
				all["socket:["+inode+"]"] = thing{"listener", table + " " + name}
			}
		}
	}
}

// listener returns the name and inode of the socket in a line of a table, or no name if
// it does not listen.
func listener(table string, fields []string) (name, inode string) {
	switch {
	case table == "unix" && len(fields) > unixPath && fields[3] == accepting:
		return fields[unixPath], fields[unixInode]
	case table != "unix" && len(fields) > inetInode && (fields[3] == listening || fields[3] == bound):
		return fields[1], fields[inetInode]
	}
	return "", ""
}
