package hotplug

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// metadata reads the instance's interfaces from its metadata service.
type metadata struct{ client *imds.Client }

func newMetadata() metadata { return metadata{imds.New(imds.Options{})} }

// errAbsent: metadata does not describe the interface, or not yet.
var errAbsent = errors.New("instance metadata does not have it")

func (m metadata) get(ctx context.Context, path string) (string, error) {
	out, err := m.client.GetMetadata(ctx, &imds.GetMetadataInput{Path: path})
	var answer *smithyhttp.ResponseError
	if errors.As(err, &answer) && answer.HTTPStatusCode() == http.StatusNotFound {
		return "", fmt.Errorf("%s: %w", path, errAbsent)
	}
	if err != nil {
		return "", fmt.Errorf("read %s from instance metadata: %w", path, err)
	}
	defer out.Content.Close()
	text, err := io.ReadAll(out.Content)
	return strings.TrimSpace(string(text)), err
}

const macsPath = "network/interfaces/macs/"

// macs lists the MACs of the instance's interfaces.
func (m metadata) macs(ctx context.Context) (out []vpc.MAC, err error) {
	text, err := m.get(ctx, macsPath)
	if err != nil {
		return nil, err
	}
	for line := range strings.FieldsSeq(text) {
		mac, err := vpc.ParseMAC(strings.TrimSuffix(line, "/"))
		if err != nil {
			return nil, err
		}
		out = append(out, mac)
	}
	return out, nil
}

// describe returns an interface, without the name of its link.
func (m metadata) describe(ctx context.Context, mac vpc.MAC) (i Interface, err error) {
	i.MAC = mac
	of := macsPath + mac.String() + "/"
	number := func(path string, into *int) error {
		text, err := m.get(ctx, of+path)
		if errors.Is(err, errAbsent) && path == "network-card" {
			return nil // only instances with several cards have it
		}
		if err == nil {
			*into, err = strconv.Atoi(text)
		}
		return err
	}
	if err := errors.Join(number("device-number", &i.Device), number("network-card", &i.Card)); err != nil {
		return i, err
	}
	addresses, err := m.get(ctx, of+"local-ipv4s")
	if err != nil {
		return i, err
	}
	for text := range strings.FieldsSeq(addresses) {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return i, err
		}
		i.Addresses = append(i.Addresses, a)
	}
	subnet, err := m.get(ctx, of+"subnet-ipv4-cidr-block")
	if err == nil {
		i.Subnet, err = netip.ParsePrefix(subnet)
	}
	if err == nil && len(i.Addresses) == 0 {
		err = fmt.Errorf("%slocal-ipv4s: %w", of, errAbsent)
	}
	return i, err
}
