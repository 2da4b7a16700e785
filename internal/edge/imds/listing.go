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
// the MAC for minutes. Source: github.com/aws/amazon-vpc-cni-k8s/pull/194. One with a value
// that cannot be read is left out, too, and is in unreadable: the difference has EC2 read,
// which has the value. The instance's own interface has the device number 0 in any case.
func (c *Client) Listed(ctx context.Context) (all []ipam.Listed, unreadable []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 4*c.timeout)
	defer cancel()
	macs, err := list(ctx, c, macsPath, &unreadable, func(s string) (vpc.MAC, error) { return vpc.ParseMAC(strings.TrimSuffix(s, "/")) })
	if err != nil {
		return nil, nil, err
	}
	if len(macs) == 0 || len(macs) > maxListed {
		return nil, nil, fmt.Errorf("read metadata %s: %d interfaces, must be from 1 to %d", macsPath, len(macs), maxListed)
	}
	for _, mac := range macs {
		i, err := c.listed(ctx, mac, &unreadable)
		switch {
		case errors.Is(err, ErrNone), errors.Is(err, errOdd):
			continue
		case err != nil:
			return nil, nil, err
		}
		all = append(all, i)
	}
	return all, unreadable, nil
}

// listed reads one interface. ErrNone: it has no id or no device number. errOdd: it has a value
// that cannot be read, which is in unreadable.
func (c *Client) listed(ctx context.Context, mac vpc.MAC, unreadable *[]string) (i ipam.Listed, err error) {
	at := macsPath + mac.String() + "/"
	id, err := c.get(ctx, at+"interface-id")
	if err != nil {
		return i, err
	}
	i.ENI = vpc.ENIID(id)
	if i.Device, err = c.device(ctx, at, mac, unreadable); err != nil {
		return i, err
	}
	if i.Addresses, err = list(ctx, c, at+"local-ipv4s", unreadable, netip.ParseAddr); err != nil {
		return i, err
	}
	if i.Prefixes, err = list(ctx, c, at+"ipv4-prefix", unreadable, netip.ParsePrefix); err != nil {
		return i, err
	}
	i.Groups, err = list(ctx, c, at+"security-group-ids", unreadable, groupID)
	return i, err
}

// device reads an interface's device number. That of the instance's own interface is 0: the
// number need not be read.
func (c *Client) device(ctx context.Context, at string, mac vpc.MAC, unreadable *[]string) (int, error) {
	n, err := c.number(ctx, at+"device-number")
	odd := errors.Is(err, errOdd)
	if odd {
		*unreadable = append(*unreadable, err.Error())
	}
	if odd || errors.Is(err, ErrNone) {
		if own, ownErr := c.get(ctx, "mac"); ownErr == nil && own == mac.String() {
			return 0, nil
		}
	}
	return n, err
}
