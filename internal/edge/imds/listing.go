package imds

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// macsPath lists the interfaces of the instance by their MAC.
const macsPath = "network/interfaces/macs/"

// maxListed bounds the interfaces that Listed reads, and so its requests: five for each,
// and one. The largest instance types have fewer. Source: EC2 instance type guide,
// "Network specifications".
const maxListed = 256

// Listed reads the interfaces of the instance, of all network cards. It makes one request
// and five for each interface; they share a session token, which the SDK renews.
//
// One that has no id or device number is left out: after a detachment the listing still has
// the MAC for minutes. Source: github.com/aws/amazon-vpc-cni-k8s/pull/194. A line that
// cannot be read is left out, too: the difference has EC2 read, which has the value.
func (c *Client) Listed(ctx context.Context) ([]ipam.Listed, error) {
	ctx, cancel := context.WithTimeout(ctx, 4*c.timeout)
	defer cancel()
	var skipped []string // of the lines that cannot be read
	macs, err := list(ctx, c, macsPath, &skipped, func(s string) (vpc.MAC, error) { return vpc.ParseMAC(strings.TrimSuffix(s, "/")) })
	if err != nil {
		return nil, err
	}
	if len(macs) == 0 || len(macs) > maxListed {
		return nil, fmt.Errorf("read metadata %s: %d interfaces, must be from 1 to %d", macsPath, len(macs), maxListed)
	}
	var out []ipam.Listed
	for _, mac := range macs {
		i, err := c.listed(ctx, mac)
		switch {
		case errors.Is(err, ErrNone):
			continue
		case err != nil:
			return nil, err
		}
		out = append(out, i)
	}
	return out, nil
}

// listed reads one interface. ErrNone: it has no id or no device number.
func (c *Client) listed(ctx context.Context, mac vpc.MAC) (i ipam.Listed, err error) {
	at := macsPath + mac.String() + "/"
	id, err := c.get(ctx, at+"interface-id")
	if err != nil {
		return i, err
	}
	i.ENI = vpc.ENIID(id)
	var skipped []string
	if i.Device, err = c.number(ctx, at+"device-number", false); err != nil {
		return i, err
	}
	if i.Addresses, err = list(ctx, c, at+"local-ipv4s", &skipped, netip.ParseAddr); err != nil {
		return i, err
	}
	if i.Prefixes, err = list(ctx, c, at+"ipv4-prefix", &skipped, netip.ParsePrefix); err != nil {
		return i, err
	}
	i.Groups, err = list(ctx, c, at+"security-group-ids", &skipped, groupID)
	return i, err
}
