package connectivity

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"time"
)

// Services are the Services of a run.
type Services struct {
	// To holds a ClusterIP Service for each pod of a case, by the name of the pod, its
	// only backend.
	To map[string]Service
	// NodePort and NodePortLocal have the first server as their backend; the latter has
	// externalTrafficPolicy Local.
	NodePort, NodePortLocal Service
	// Headless is the DNS name of the Service with all servers as backends.
	Headless string
}

// createServices creates the Services of a run: for each of backends, which may hold a
// pod several times, and those of the servers.
func createServices(ctx context.Context, in namespace, servers, backends []Peer) (Services, error) {
	var names []string
	for _, p := range servers {
		names = append(names, p.Pod)
	}
	// A new name in each run: resolvers cache the answers of an earlier run for 30 s.
	headless := "servers-" + strconv.FormatInt(time.Now().UnixMilli(), 36)
	s := Setup{Services: []ServiceSpec{
		{Name: headless, Pods: names, Headless: true},
		{Name: nodePortCluster, Pods: names[:1], NodePort: true},
		{Name: nodePortLocal, Pods: names[:1], NodePort: true, Local: true},
	}}
	out := Services{To: map[string]Service{}, Headless: headless + "." + in.name + ".svc"}
	for _, p := range backends {
		out.To[p.Pod] = Service{}
	}
	for _, pod := range slices.Sorted(maps.Keys(out.To)) {
		s.Services = append(s.Services, ServiceSpec{Name: ServiceName(pod), Pods: []string{pod}})
	}
	if _, err := in.create(ctx, s); err != nil {
		return Services{}, err
	}
	var err error
	for pod := range out.To {
		if out.To[pod], err = in.service(ctx, ServiceName(pod)); err != nil {
			return Services{}, err
		}
	}
	if out.NodePort, err = in.service(ctx, nodePortCluster); err != nil {
		return Services{}, err
	}
	out.NodePortLocal, err = in.service(ctx, nodePortLocal)
	return out, err
}

// probes returns the arguments of dial for one request to each Service. Those to node
// ports go through n.
func (s Services) probes(n Node) [][]string {
	const timeout = "--timeout=1s"
	probes := [][]string{{"dns", s.Headless, timeout}}
	for _, svc := range s.To {
		probes = append(probes, []string{"http", hostport(svc.Address, podPorts().HTTP), timeout})
	}
	for _, svc := range []Service{s.NodePort, s.NodePortLocal} {
		probes = append(probes, []string{"http", hostport(n.Internal[0], svc.NodePort), timeout})
	}
	return probes
}
