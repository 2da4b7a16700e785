// Package handovertest is AWS's daemon as far as it takes over a node, for tests: how it reads
// its checkpoint and gives addresses to pods.
//
// Source: aws/amazon-vpc-cni-k8s v1.23.1, pkg/ipamd/datastore/data_store.go: ReadBackingStore,
// normalizeCheckpointDataByPodVethExistence, AssignPodIPv4Address. It has types of its own for
// the file, so that a mistake in those of the product shows.
package handovertest

import (
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Key is what AWS's daemon finds an allocation by.
type Key struct{ Network, Container, Interface string }

// Daemon is AWS's daemon after its start.
type Daemon struct {
	// Assigned are the addresses in use, with their keys.
	Assigned map[netip.Addr]Key
	// Stale and Unknown are the allocations that it dropped at its start: those of pods
	// without a link, and those of addresses that no interface has.
	Stale, Unknown []netip.Addr

	free []netip.Addr
}

// entry is one allocation in the file.
type entry struct {
	NetworkName string `json:"networkName"`
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	IPv4        string `json:"ipv4"`
	Metadata    struct {
		K8SPodNamespace string `json:"k8sPodNamespace"`
		K8SPodName      string `json:"k8sPodName"`
	} `json:"metadata"`
}

// Start is a start of the daemon on a node with interfaces that have these secondary
// addresses, and with these links. A nil checkpoint is a file that does not exist: the daemon
// takes the node for a new one.
func Start(checkpoint []byte, addresses []netip.Addr, links []string) (*Daemon, error) {
	d := &Daemon{Assigned: map[netip.Addr]Key{}}
	if checkpoint != nil {
		var file struct {
			Version     string  `json:"version"`
			Allocations []entry `json:"allocations"`
		}
		if err := json.Unmarshal(checkpoint, &file); err != nil {
			return nil, fmt.Errorf("failed ipam state recovery: %w", err)
		}
		if file.Version != "vpc-cni-ipam/1" {
			return nil, fmt.Errorf("unexpected checkpointVersion: %s", file.Version)
		}
		if err := d.recover(file.Allocations, addresses, links); err != nil {
			return nil, err
		}
	}
	for _, a := range addresses {
		if _, used := d.Assigned[a]; !used {
			d.free = append(d.free, a)
		}
	}
	return d, nil
}

func (d *Daemon) recover(all []entry, addresses []netip.Addr, links []string) error {
	known := map[netip.Addr]bool{}
	for _, a := range addresses {
		known[a] = true
	}
	for _, e := range all {
		addr, err := netip.ParseAddr(e.IPv4)
		if err != nil {
			return err
		}
		_, twice := d.Assigned[addr]
		switch {
		case !e.hasLink(links):
			d.Stale = append(d.Stale, addr)
		case !known[addr]:
			d.Unknown = append(d.Unknown, addr)
		case twice:
			return errors.New("datastore: IP already in data store")
		default:
			d.Assigned[addr] = Key{e.NetworkName, e.ContainerID, e.IfName}
		}
	}
	return nil
}

// hasLink reports whether a link's name ends with the hash of the pod. Allocations without
// names are not checked.
func (e entry) hasLink(links []string) bool {
	namespace, name := e.Metadata.K8SPodNamespace, e.Metadata.K8SPodName
	if namespace == "" || name == "" {
		return true
	}
	sum := sha1.Sum([]byte(namespace + "." + name))
	suffix := hex.EncodeToString(sum[:])[:11]
	for _, l := range links {
		if strings.HasSuffix(l, suffix) {
			return true
		}
	}
	return false
}

// Add assigns an address to a new pod, as an ADD does. ok is false if none is free.
func (d *Daemon) Add(k Key) (addr netip.Addr, ok bool) {
	if len(d.free) == 0 {
		return netip.Addr{}, false
	}
	addr, d.free = d.free[0], d.free[1:]
	d.Assigned[addr] = k
	return addr, true
}

// Del frees the address of a key, as a DEL does. It reports whether there was one.
func (d *Daemon) Del(k Key) bool {
	for addr, of := range d.Assigned {
		if of == k {
			delete(d.Assigned, addr)
			d.free = append(d.free, addr)
			return true
		}
	}
	return false
}
