package state

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/ipam"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// EndpointsByID is the primary index of the endpoints.
func EndpointsByID() table.Index[endpoint.Endpoint, endpoint.ID] {
	return table.By("id", func(e endpoint.Endpoint) endpoint.ID { return e.ID }, table.Number[endpoint.ID])
}

// EndpointsByKey finds the endpoints of an attachment: one in use at most, and those
// that are being removed.
func EndpointsByKey() table.Index[endpoint.Endpoint, endpoint.Key] {
	return table.By("key", func(e endpoint.Endpoint) endpoint.Key { return e.Key }, appendKey)
}

func appendKey(b []byte, k endpoint.Key) []byte {
	return table.String(table.String(b, k.ContainerID), k.IfName)
}

// EndpointsByAddress finds the endpoint that has an address.
func EndpointsByAddress() table.Index[endpoint.Endpoint, netip.Addr] {
	return table.ByEach("address", func(e endpoint.Endpoint) []netip.Addr { return e.Addresses.List() }, table.Addr).Unique()
}

// EndpointsByLink finds the endpoints with a link of one name: that of a pod's sandbox,
// and those of older sandboxes of the same pod.
func EndpointsByLink() table.Index[endpoint.Endpoint, string] {
	return table.By("link", func(e endpoint.Endpoint) string { return e.Link }, table.String[string])
}

func endpointSchema() table.Schema[endpoint.Endpoint] {
	return table.Schema[endpoint.Endpoint]{
		Name: "endpoints", Primary: EndpointsByID(),
		Others:  []table.Indexer[endpoint.Endpoint]{EndpointsByKey(), EndpointsByAddress(), EndpointsByLink()},
		Columns: []string{"ID", "POD", "CONTAINER", "STAGE", "IPV4", "IPV6", "KIND", "INTERFACE", "TABLE", "LINK", "GENERATION"},
		Cells: func(e endpoint.Endpoint) []string {
			return []string{
				strconv.Itoa(int(e.ID)), e.Name(), e.Key.String(), string(e.Stage), optional(e.Addresses.IPv4), optional(e.Addresses.IPv6),
				string(e.Attachment.Kind), string(e.Attachment.Interface), fmt.Sprint(e.Attachment.Table), e.Link, fmt.Sprint(e.Generation),
			}
		},
	}
}

// InterfacesByID is the primary index of the interfaces.
func InterfacesByID() table.Index[ipam.ENI, vpc.ENIID] {
	return table.By("id", func(e ipam.ENI) vpc.ENIID { return e.ID }, table.String[vpc.ENIID])
}

func interfaceSchema() table.Schema[ipam.ENI] {
	return table.Schema[ipam.ENI]{
		Name: "interfaces", Primary: InterfacesByID(),
		Columns: []string{"ID", "DEVICE", "PHASE", "MAC", "SUBNET", "PRIMARY IP", "MANAGED"},
		Cells: func(e ipam.ENI) []string {
			return []string{string(e.ID), strconv.Itoa(e.Device), string(e.Phase), e.MAC.String(), string(e.Subnet), optional(e.PrimaryIP), strconv.FormatBool(!e.Unmanaged)}
		},
	}
}

// AddressesByAddr is the primary index of the addresses.
func AddressesByAddr() table.Index[ipam.Address, netip.Addr] {
	return table.By("address", func(a ipam.Address) netip.Addr { return a.Addr }, table.Addr)
}

// AddressesByInterface lists the addresses of an interface.
func AddressesByInterface() table.Index[ipam.Address, vpc.ENIID] {
	return table.By("interface", func(a ipam.Address) vpc.ENIID { return a.ENI }, table.String[vpc.ENIID])
}

func addressSchema() table.Schema[ipam.Address] {
	return table.Schema[ipam.Address]{
		Name: "addresses", Primary: AddressesByAddr(), Others: []table.Indexer[ipam.Address]{AddressesByInterface()},
		Columns: []string{"ADDRESS", "INTERFACE", "STATE", "ENDPOINT", "HOLDER", "UNTIL"},
		Cells: func(a ipam.Address) []string {
			who, id := "", ""
			if a.State == ipam.Assigned {
				who = a.Holder.String()
			}
			if a.Holder.Endpoint != 0 {
				id = strconv.Itoa(int(a.Holder.Endpoint))
			}
			return []string{a.Addr.String(), string(a.ENI), string(a.State), id, who, clock(a.Until)}
		},
	}
}

// ActionsByID is the primary index of the actions in flight.
func ActionsByID() table.Index[cloud.Action, cloud.ActionID] {
	return table.By("id", func(a cloud.Action) cloud.ActionID { return a.ID }, table.String[cloud.ActionID])
}

func actionSchema() table.Schema[cloud.Action] {
	return table.Schema[cloud.Action]{
		Name: "actions", Primary: ActionsByID(),
		Columns: []string{"ID", "ACTION", "BEGAN", "WHY"},
		Cells:   func(a cloud.Action) []string { return []string{string(a.ID), a.String(), clock(a.Began), a.Why} },
	}
}

func optional(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func clock(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.TimeOnly)
}
