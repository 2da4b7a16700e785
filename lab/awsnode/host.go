package awsnode

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Host is the network of a node. The zero value is that of the calling process.
type Host struct {
	NetNS string // name of the network namespace in /run/netns
}

// Priorities of rules, and the mark of connections from outside by the primary interface.
// Source: pkg/networkutils/network.go.
const (
	ruleToPod     = "512"
	ruleMark      = "1024"
	ruleFromPod   = "1536"
	ruleInterface = "32765"
	mark          = "0x80/0x80"
)

// tableMain is the route table of the primary interface's pods.
const tableMain = "main"

// Interface is an interface of the instance.
type Interface struct {
	ID        vpc.ENIID
	Link      string // its name on the node
	MAC       string
	Device    int            // device index; 0 is the primary interface
	Primary   netip.Addr     // its own address
	Subnet    netip.Prefix   // of its subnet
	Secondary []netip.Addr   // addresses for pods
	Prefixes  []netip.Prefix // delegated /28s, for pods
}

// table is the route table of the interface's pods: device+1 on the first network card.
// Source: pkg/networkutils/network.go, and calculateRouteTableId in pkg/ipamd/ipamd.go.
func (i Interface) table() string {
	if i.Device == 0 {
		return tableMain
	}
	return strconv.Itoa(i.Device + 1)
}

// addresses lists the addresses for pods. In a prefix, the pool begins with the first one.
func (i Interface) addresses() (out []netip.Addr) {
	out = append(out, i.Secondary...)
	for _, p := range i.Prefixes {
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			out = append(out, a)
		}
	}
	return out
}

// ip runs one ip command. To add what exists, and to delete what does not, is a success.
func (h Host) ip(command string, args ...any) error {
	argv := strings.Fields(fmt.Sprintf(command, args...))
	if h.NetNS != "" {
		argv = append([]string{"-n", h.NetNS}, argv...)
	}
	out, err := exec.Command("ip", argv...).CombinedOutput()
	is := func(text string) bool { return bytes.Contains(out, []byte(text)) }
	absent := strings.Contains(command, " delete ") && (is("No such file") || is("No such process") || is("Cannot find device"))
	if err != nil && !is("File exists") && !absent {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(argv, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// step is an ip command with its arguments.
type step struct {
	command string
	args    []any
}

func (h Host) all(steps []step) error {
	for _, s := range steps {
		if err := h.ip(s.command, s.args...); err != nil {
			return err
		}
	}
	return nil
}

// Configure sets the rules of the node and the links, routes and rules of its interfaces up.
// The primary interface keeps its addresses. Source: SetupHostNetwork and setupENINetwork in
// pkg/networkutils/network.go.
func (h Host) Configure(interfaces []Interface) error {
	steps := []step{
		{"rule delete pref %s fwmark %s lookup %s", []any{ruleMark, mark, tableMain}}, // of an earlier daemon, or of Trunkline
		{"rule add pref %s fwmark %s lookup %s", []any{ruleMark, mark, tableMain}},
	}
	for _, i := range interfaces {
		if i.Device == 0 {
			continue
		}
		table, gateway := i.table(), vpc.Gateway(i.Subnet)
		steps = append(
			steps,
			step{"link set %s mtu %d up", []any{i.Link, vpc.MTU}},
			step{"address flush dev %s scope global", []any{i.Link}},
			step{"address add %s/%d dev %s", []any{i.Primary, i.Subnet.Bits(), i.Link}},
			step{"route delete %s dev %s", []any{i.Subnet, i.Link}},
			step{"route replace %s dev %s scope link table %s", []any{gateway, i.Link, table}},
			step{"route replace default via %s dev %s table %s", []any{gateway, i.Link, table}},
			step{"rule add pref %s from %s lookup %s", []any{ruleInterface, i.Primary, table}},
		)
	}
	return h.all(steps)
}
