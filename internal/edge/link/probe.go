package link

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/kernel/netns"
)

// ErrLacks is returned when the kernel lacks a feature that pods' links need. The text names it.
var ErrLacks = errors.New("this kernel lacks a feature")

// Probe checks that the kernel can wire pods, by wiring one between two temporary network
// namespaces: a veth pair with alias and group, policy rules, routes in a separate table,
// permanent neighbours. The error names the step that failed and wraps ErrLacks if the
// kernel does not support it.
func Probe(ctx context.Context) error {
	return probe(ctx, trialEndpoint("tlprobe"))
}

func trialEndpoint(link string) endpoint.Endpoint {
	key := endpoint.Key{ContainerID: "probe", IfName: "eth0"}
	return endpoint.Adopt(1, key, endpoint.Pod{Namespace: "trunkline", Name: "probe"}, endpoint.Wire{
		Addresses:  endpoint.AddressesOf(netip.MustParseAddr("192.0.2.1")), // TEST-NET-1, RFC 5737
		Attachment: endpoint.Attachment{Table: hostnet.ENI{Device: 1}.Table()},
		Link:       link, MTU: 1500,
	}, false, time.Time{})
}

func probe(ctx context.Context, e endpoint.Endpoint) error {
	node, err := netns.New()
	if err != nil {
		return err
	}
	defer node.Close()
	pod, err := netns.New()
	if err != nil {
		return err
	}
	defer pod.Close()
	h, err := Open(node)
	if err != nil {
		return err
	}
	defer func() { _ = h.Close() }() // the links end with their namespace
	index, err := h.Wire(ctx, pod, e)
	if err == nil {
		err = h.Up(ctx, e, index)
	}
	for _, code := range []unix.Errno{unix.EOPNOTSUPP, unix.EAFNOSUPPORT, unix.ENOSYS} {
		if errors.Is(err, code) {
			return fmt.Errorf("wire a pod for trial: %w (CONFIG_VETH, CONFIG_IP_MULTIPLE_TABLES): %w", ErrLacks, err)
		}
	}
	if err != nil {
		return fmt.Errorf("wire a pod for trial: %w", err)
	}
	return nil
}
