package awsnode

import (
	"errors"
	"net"
	"net/netip"
	"net/rpc/jsonrpc"
)

// service is the name of the daemon's service; see CNIBackend in rpc/rpc.proto, of which
// Request and Reply have the fields that are used here.
const service = "CNIBackend"

// Request is an ADD or a DEL of the plugin.
type Request struct {
	Namespace, Pod, Network, Container, IfName string
}

// Reply is the address of a sandbox. It is invalid for a DEL of an unknown sandbox.
type Reply struct {
	Address netip.Addr
	Device  int
	Table   string
}

// call asks the daemon. Without a daemon the socket refuses the connection.
func call(method string, in Request) (out Reply, err error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return out, err
	}
	client := jsonrpc.NewClient(conn)
	err = client.Call(service+"."+method, in, &out)
	return out, errors.Join(err, client.Close())
}

// Health returns an error if the daemon does not answer.
func Health() error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// Backend answers the plugin.
type Backend struct{ pool *pool }

// AddNetwork assigns an address to a sandbox.
func (b Backend) AddNetwork(in Request, out *Reply) error {
	addr, i, err := b.pool.assign(allocation{
		Network: in.Network, Container: in.Container, IfName: in.IfName,
		Metadata: metadata{Namespace: in.Namespace, Pod: in.Pod, Interfaces: 1},
	})
	*out = Reply{Address: addr, Device: i.Device, Table: i.table()}
	return err
}

// DelNetwork frees the address of a sandbox. An unknown sandbox is a success.
func (b Backend) DelNetwork(in Request, out *Reply) error {
	a, i, known, err := b.pool.release(in.Network, in.Container, in.IfName)
	if known {
		*out = Reply{Address: a.IPv4, Device: i.Device, Table: i.table()}
	}
	return err
}
