package awsnode

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// introspectionAddress is where AWS's daemon describes its pool. Source:
// pkg/ipamd/introspect.go.
const introspectionAddress = "127.0.0.1:61679"

// The answer to /v1/enis, with the fields that the lab has, by the name that AWS's has. Source:
// ENIInfos, ENI, CidrInfo and AddressInfo in pkg/ipamd/datastore/data_store.go. All addresses of
// an interface are keys of AvailableIPv4Cidrs, and those in use also of IPAddresses.
type (
	eniInfos struct {
		TotalIPs, AssignedIPs int
		ENIs                  map[string]eniInfo
	}
	eniInfo struct {
		ID                 string
		IsPrimary          bool
		DeviceNumber       int
		AvailableIPv4Cidrs map[string]cidrInfo
	}
	cidrInfo struct {
		IPAddresses map[string]addressInfo
		IsPrefix    bool
	}
	addressInfo struct {
		Address      string
		IPAMMetadata metadata
	}
)

// infos describes the pool, by network card.
func (p *pool) infos() map[string]eniInfos {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := eniInfos{AssignedIPs: len(p.all), ENIs: map[string]eniInfo{}}
	for _, i := range p.interfaces {
		out.TotalIPs += len(i.addresses())
		row := eniInfo{ID: string(i.ID), IsPrimary: i.Device == 0, DeviceNumber: i.Device, AvailableIPv4Cidrs: map[string]cidrInfo{}}
		for _, a := range i.Secondary {
			row.AvailableIPv4Cidrs[a.String()+"/32"] = cidrInfo{IPAddresses: p.used(netip.PrefixFrom(a, a.BitLen()))}
		}
		for _, prefix := range i.Prefixes {
			row.AvailableIPv4Cidrs[prefix.String()] = cidrInfo{IPAddresses: p.used(prefix), IsPrefix: true}
		}
		out.ENIs[string(i.ID)] = row
	}
	return map[string]eniInfos{"0": out}
}

// used returns the addresses of a prefix that are in use. It requires the lock.
func (p *pool) used(of netip.Prefix) map[string]addressInfo {
	out := map[string]addressInfo{}
	for _, a := range p.all {
		if of.Contains(a.IPv4) {
			out[a.IPv4.String()] = addressInfo{Address: a.IPv4.String(), IPAMMetadata: a.Metadata}
		}
	}
	return out
}

// startIntrospection serves the pool's description until stop is called, which waits for the end.
func startIntrospection(ctx context.Context, p *pool, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		introspect(ctx, p, log)
	}()
	return func() { cancel(); <-ended }
}

// introspect serves the pool's description until ctx ends. It waits while another program, such
// as an agent that leaves, has the address.
func introspect(ctx context.Context, p *pool, log *slog.Logger) {
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/enis", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(p.infos()); err != nil {
			log.Warn("answer an introspection request", "err", err)
		}
	})
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	var listener net.Listener
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		var err error
		listener, err = new(net.ListenConfig).Listen(ctx, "tcp", introspectionAddress)
		return err == nil, nil
	})
	if err != nil {
		return // ctx has ended
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); ctx.Err() == nil {
		log.Error("serve introspection", "err", err)
	}
}
