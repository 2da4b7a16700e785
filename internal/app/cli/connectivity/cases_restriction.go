package connectivity

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// restrictionCases check what a pod must not be able to do. Each has a control: the
// same packet from a permitted sender must arrive, or the case fails.
func restrictionCases() []Case {
	return []Case{
		{
			Name:    "metadata/v4-blocked",
			Asserts: "a pod gets no answer from instance metadata at 169.254.169.254, while its node does",
			Needs:   []Need{Metadata},
			Run:     func(ctx context.Context, e *Env) error { return metadataBlocked(ctx, e, vpc.MetadataV4) },
		},
		{
			Name:    "metadata/v6-blocked",
			Asserts: "a pod gets no answer from instance metadata at fd00:ec2::254",
			Needs:   []Need{Metadata},
			Run:     func(ctx context.Context, e *Env) error { return metadataBlocked(ctx, e, vpc.MetadataV6) },
		},
		spoofCase("source-same-node", "with the address of another pod of its node", nil, func(e *Env) []string {
			return []string{"--source=" + e.Server[0].Addr.String()}
		}),
		spoofCase("source-other-node", "with the address of a pod of another node", []Need{TwoNodes}, func(e *Env) []string {
			return []string{"--source=" + e.Client[1].Addr.String()}
		}),
		spoofCase("source-node", "with its node's address", nil, func(e *Env) []string {
			return []string{"--source=" + e.Nodes[0].Internal[0].String()}
		}),
		spoofCase("mac", "with a MAC that is not its own", nil, func(*Env) []string {
			return []string{"--mac=02:00:00:5b:00:0f"}
		}),
	}
}

func metadataBlocked(ctx context.Context, e *Env, at netip.Addr) error {
	endpoint := "http://" + strings.TrimSuffix(netip.AddrPortFrom(at, 80).String(), ":80")
	pods := slices.Clone(e.Client)
	if e.Pairs.OtherENI != nil {
		pods = append(pods, e.Pairs.OtherENI[1])
	}
	for _, p := range pods {
		r, err := e.namespace.dial(ctx, p, "imds", "--endpoint="+endpoint)
		if err != nil {
			return err
		}
		if r.OK || r.Status != 0 || r.Instance != "" {
			return &Failure{
				Sent: fmt.Sprintf("a token request from %s to %s", p, endpoint), Got: r.summary() + " " + r.Instance, Want: "nothing",
				Hints: []string{"on " + p.Node.Name + ": nft list table inet trunkline (counter of the metadata rule)"},
			}
		}
	}
	if at.Is6() {
		return nil // the node may have no IPv6; the IPv4 case has the control
	}
	r, err := e.namespace.dial(ctx, e.Host[0], "imds", "--endpoint="+endpoint)
	if err != nil {
		return err
	}
	if !r.OK {
		return &Failure{Sent: fmt.Sprintf("the same request from the node %s", e.Nodes[0].Name), Got: r.summary(), Want: "an answer: only pods must be blocked"}
	}
	return nil
}

// spoofCase sends from Client[0] to the far server with the address or MAC that spoofed
// returns as arguments.
func spoofCase(name, how string, needs []Need, spoofed func(e *Env) []string) Case {
	return Case{
		Name:    "spoof/" + name,
		Asserts: "no packet that a pod sends " + how + " arrives, while packets with its own address and MAC do",
		Needs:   needs,
		Run: func(ctx context.Context, e *Env) error {
			from, to := e.Client[0], e.Server[e.far()]
			args := []string{
				"spoof", hostport(to.Addr, to.UDP), "--count=3",
				"--verify=" + hostport(to.Addr, to.HTTP), "--timeout=" + dialTimeout.String(),
			}
			control, err := e.namespace.dial(ctx, from, append(slices.Clone(args), "--source="+from.Addr.String())...)
			if err != nil {
				return err
			}
			if control.Seen == 0 {
				return &Failure{Sent: fmt.Sprintf("raw datagrams from %s with its own address to %s", from, to), Got: control.summary(), Want: "all of them to arrive: without this control the case proves nothing", Hints: pathHints(from, to)}
			}
			r, err := e.namespace.dial(ctx, from, append(args, spoofed(e)...)...)
			if err != nil {
				return err
			}
			if r.Sent == 0 {
				return fmt.Errorf("pod %s could not send %s: %s", from.Pod, how, r.summary())
			}
			if r.Seen > 0 {
				return &Failure{
					Sent: fmt.Sprintf("%d raw datagrams from %s %s to %s", r.Sent, from, how, to),
					Got:  fmt.Sprintf("%d of them arrived", r.Seen), Want: "none to arrive",
					Hints: []string{"on " + from.Node.Name + ": nft list table inet trunkline (counter of the anti-spoof rule)"},
				}
			}
			return nil
		},
	}
}
