package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"

	"github.com/trunkline/trunkline/api/introspection"
	"github.com/trunkline/trunkline/internal/control/cni"
	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// introspect serves what people and probes ask, at AWS's ports.
func (a *Agent) introspect(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", a.readyz)
	mux.HandleFunc("GET "+introspection.LedgerPath, answer(func() any { return a.bookNow() }))
	mux.HandleFunc("GET /v1/enis", answer(a.awsENIs))
	mux.HandleFunc("GET /v1/pods", answer(a.pods))
	mux.HandleFunc("GET /v1/pool", answer(func() any { return a.bookNow().Pool }))
	mux.HandleFunc("GET /v1/config", answer(func() any { return a.settings() }))
	mux.HandleFunc("GET /{$}", answer(func() any {
		return map[string][]string{"AvailableCommands": {"/v1/enis", "/v1/pods", "/v1/pool", introspection.LedgerPath, "/v1/config", "/healthz", "/readyz"}}
	}))
	metrics := http.NewServeMux()
	metrics.Handle("GET /metrics", promhttp.HandlerFor(aliased{a.deps.Registry}, promhttp.HandlerOpts{}))

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.listen(ctx, a.cfg.IntrospectionAddress, mux) })
	group.Go(func() error { return a.listen(ctx, a.cfg.MetricsAddress, metrics) })
	return group.Wait()
}

// listen serves h until ctx ends.
func (a *Agent) listen(ctx context.Context, address string, h http.Handler) error {
	var l net.Listener
	told := false
	// The agent before us, or AWS's, may still be letting go of the port.
	err := retry(ctx, 200*time.Millisecond, func() (again bool, err error) {
		if l, err = net.Listen("tcp", address); err != nil && !told {
			a.log.Warn("cannot serve there yet, will go on trying", "address", address, "error", err)
			told = true
		}
		return err != nil, err
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return fmt.Errorf("serve at %s: %w", address, err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve at %s: %w", address, err)
	}
	return nil
}

// answer writes a value as JSON.
func answer(value func() any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		raw, err := json.MarshalIndent(value(), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(raw, '\n')) // a reader that went away is no error of ours
	}
}

func (a *Agent) readyz(w http.ResponseWriter, _ *http.Request) {
	a.mu.Lock()
	serving, reason := a.serving, a.decision.Condition.String()
	a.mu.Unlock()
	if !serving {
		http.Error(w, "not serving yet: "+reason, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok:", reason)
}

// awsENIs has the shape of AWS's /v1/enis, keyed by network card.
func (a *Agent) awsENIs() any {
	type addressInfo struct {
		Address      string
		IPAMKey      map[string]string `json:",omitempty"`
		AssignedTime time.Time         `json:",omitzero"`
	}
	type cidrInfo struct {
		Cidr        string
		IPAddresses map[string]addressInfo
		IsPrefix    bool
	}
	type eni struct {
		ID                 string
		IsPrimary          bool
		IsTrunk            bool
		DeviceNumber       int
		SubnetID           string
		AvailableIPv4Cidrs map[string]cidrInfo
	}
	book := a.bookNow()
	out := struct {
		TotalIPs    int
		AssignedIPs int
		ENIs        map[string]eni
	}{book.Pool.Total, book.Pool.Assigned, map[string]eni{}}
	for _, e := range book.ENIs {
		row := eni{ID: e.ID, IsPrimary: e.Device == 0, DeviceNumber: e.Device, SubnetID: e.Subnet, AvailableIPv4Cidrs: map[string]cidrInfo{}}
		for _, ad := range e.Addresses {
			entry := addressInfo{Address: ad.Address.String()}
			if ad.State == "assigned" {
				entry.IPAMKey = map[string]string{"cni.NetworkName": cni.NetworkName, "containerID": ad.Container}
				entry.AssignedTime = ad.Since
			}
			cidr := ad.Address.String() + "/32"
			row.AvailableIPv4Cidrs[cidr] = cidrInfo{Cidr: cidr, IPAddresses: map[string]addressInfo{entry.Address: entry}}
		}
		out.ENIs[e.ID] = row
	}
	return map[string]any{"0": out}
}

// pods lists the endpoints.
func (a *Agent) pods() any {
	type row struct {
		Endpoint  endpoint.ID `json:"endpoint"`
		Pod       string      `json:"pod"`
		UID       string      `json:"uid,omitempty"`
		Container string      `json:"container"`
		IfName    string      `json:"ifName"`
		Address   string      `json:"address"`
		Link      string      `json:"link"`
		Table     uint32      `json:"table"`
		Stage     string      `json:"stage"`
		Since     time.Time   `json:"since"`
	}
	rows := []row{}
	for _, e := range a.state.Endpoints() {
		rows = append(rows, row{
			Endpoint: e.ID, Pod: e.Name(), UID: e.Pod.UID, Container: e.Key.ContainerID, IfName: e.Key.IfName,
			Address: e.Addresses.Primary().String(), Link: e.Link, Table: e.Attachment.Table, Stage: string(e.Stage), Since: e.Since,
		})
	}
	return rows
}

func (a *Agent) settings() any {
	type row struct{ Name, Value, Origin string }
	var rows []row
	for _, r := range a.cfg.Describe() {
		rows = append(rows, row{r.Name, r.Value, r.Origin})
	}
	return rows
}
