package awsnode

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

// Plugin is aws-cni: it asks the daemon for an address and wires the sandbox. It exits with
// CNI's code. Source: cmd/routed-eni-cni-plugin/cni.go.
func Plugin() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: remove, Check: func(*skel.CmdArgs) error { return nil }}, versions(), "AWS CNI")
}

// Egress is egress-cni without `enabled`: it passes the result of the plugin before it on.
// Source: cmd/egress-cni-plugin/cni.go.
func Egress() {
	pass := func(args *skel.CmdArgs) error {
		conf, err := parse(args.StdinData)
		if err != nil {
			return err
		}
		return types.PrintResult(conf.PrevResult, conf.CNIVersion)
	}
	nothing := func(*skel.CmdArgs) error { return nil }
	skel.PluginMainFuncs(skel.CNIFuncs{Add: pass, Del: nothing, Check: nothing}, versions(), "egress-cni")
}

func versions() version.PluginInfo { return version.PluginSupports("0.3.1", "0.4.0", "1.0.0") }

// parse reads a plugin's configuration with the result of the one before it.
func parse(stdin []byte) (types.NetConf, error) {
	var conf types.NetConf
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return conf, fmt.Errorf("read the configuration: %w", err)
	}
	return conf, version.ParsePrevResult(&conf)
}

// argument returns a variable of CNI_ARGS, which is A=1;B=2.
func argument(args, name string) string {
	for pair := range strings.SplitSeq(args, ";") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}

func request(args *skel.CmdArgs) (conf types.NetConf, in Request, err error) {
	conf, err = parse(args.StdinData)
	return conf, Request{
		Namespace: argument(args.Args, "K8S_POD_NAMESPACE"), Pod: argument(args.Args, "K8S_POD_NAME"),
		Network: conf.Name, Container: args.ContainerID, IfName: args.IfName,
	}, err
}

func add(args *skel.CmdArgs) error {
	conf, in, err := request(args)
	if err != nil {
		return err
	}
	got, err := call("AddNetwork", in)
	if err != nil {
		return fmt.Errorf("add cmd: failed to assign an IP address to container: %w", err)
	}
	pod := Pod{
		Namespace: in.Namespace, Name: in.Pod, NetNS: filepath.Base(args.Netns), IfName: args.IfName,
		Address: got.Address, Table: got.Table,
	}
	if err := (Host{}).Wire(pod); err != nil {
		if _, undo := call("DelNetwork", in); undo != nil {
			return fmt.Errorf("%w; its address stays assigned: %w", err, undo)
		}
		return err
	}
	inside := 1
	return types.PrintResult(&current.Result{
		CNIVersion: conf.CNIVersion,
		Interfaces: []*current.Interface{
			{Name: pod.Link()},
			{Name: args.IfName, Sandbox: args.Netns},
			// For the DEL without a daemon: the device index, as AWS's plugin keeps it.
			{Name: "dummy" + pod.hash(), Mac: "0", Sandbox: strconv.Itoa(got.Device)},
		},
		IPs: []*current.IPConfig{{Interface: &inside, Address: net.IPNet{IP: got.Address.AsSlice(), Mask: net.CIDRMask(32, 32)}}},
	}, conf.CNIVersion)
}

// remove succeeds for a sandbox that the daemon does not know. Without a daemon it takes
// what to remove from the result of the ADD; the address is then freed at the daemon's next
// start. Source: del and teardownPodNetworkWithPrevResult there.
func remove(args *skel.CmdArgs) error {
	conf, in, err := request(args)
	if err != nil {
		return err
	}
	got, unreachable := call("DelNetwork", in)
	if unreachable != nil {
		got = fromResult(conf.PrevResult)
	}
	if !got.Address.IsValid() {
		return nil
	}
	return Host{}.Unwire(Pod{Namespace: in.Namespace, Name: in.Pod, Address: got.Address, Table: got.Table})
}

// fromResult returns what an ADD answered; invalid if the runtime does not have it.
func fromResult(result types.Result) Reply {
	added, err := current.GetResult(result)
	if err != nil || len(added.IPs) == 0 || len(added.Interfaces) == 0 {
		return Reply{}
	}
	device, err := strconv.Atoi(added.Interfaces[len(added.Interfaces)-1].Sandbox)
	addr, ok := netip.AddrFromSlice(added.IPs[0].Address.IP)
	if err != nil || !ok {
		return Reply{}
	}
	return Reply{Address: addr.Unmap(), Device: device, Table: Interface{Device: device}.table()}
}
