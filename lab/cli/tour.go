package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os/exec"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	labnode "github.com/trunkline/trunkline/lab/node"
)

// demoNamespace is the namespace of the demo's pods.
const demoNamespace = "trunkline-demo"

// tour shows the parts of a lab that is up.
type tour struct {
	running
	out, errs io.Writer
	command   string // that selects the lab
	kube      kubernetes.Interface
	ec2       *ec2.Client
}

// tour connects to the lab's API server and EC2.
func (s *session) tour(r record) (*tour, error) {
	st, err := s.labs.status(s.ctx, r.Lab.Name)
	if err != nil {
		return nil, err
	}
	if len(st.Nodes) == 0 {
		return nil, fmt.Errorf("lab %s has no nodes", r.Lab.Name)
	}
	rest, err := clientcmd.BuildConfigFromFlags("", st.Endpoints.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", st.Endpoints.Kubeconfig, err)
	}
	kube, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return nil, err
	}
	config, err := awsconfig.LoadDefaultConfig(s.ctx,
		awsconfig.WithRegion(r.Lab.World.Region),
		awsconfig.WithSharedCredentialsFiles([]string{st.Endpoints.Credentials}),
		awsconfig.WithSharedConfigFiles(nil),
		awsconfig.WithSharedConfigProfile("default"),
	)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", st.Endpoints.Credentials, err)
	}
	api := ec2.NewFromConfig(config, func(o *ec2.Options) { o.BaseEndpoint = aws.String(st.Endpoints.EC2) })
	return &tour{
		running: running{r, st}, out: s.console.out, errs: s.console.errs, command: s.labs.command(r.Lab.Name), kube: kube, ec2: api,
	}, nil
}

// table prints columns.
func (t *tour) table(header string, rows []string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, header)
	for _, r := range rows {
		fmt.Fprintln(w, r)
	}
	return w.Flush()
}

func (t *tour) nodes(ctx context.Context) error {
	list, err := t.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var rows []string
	for _, n := range list.Items {
		rows = append(rows, strings.Join([]string{
			n.Name, ready(n), n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelTopologyZone],
			n.Spec.ProviderID, n.Status.Capacity.Pods().String(), n.Status.NodeInfo.KubeletVersion,
		}, "\t"))
	}
	return t.table("NAME\tREADY\tTYPE\tZONE\tPROVIDER ID\tPODS\tKUBELET", rows)
}

func ready(n corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return string(c.Status)
		}
	}
	return "Unknown"
}

// pods creates the demo's Deployment and lists the pods that are not on the host network.
func (t *tour) pods(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	manifest := strings.NewReplacer("REPLICAS", strconv.Itoa(2*len(t.status.Nodes)), "IMAGE", t.Workload).Replace(demoManifest)
	if err := t.kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := t.kubectl(ctx, "", "-n", demoNamespace, "rollout", "status", "deployment/web"); err != nil {
		return err
	}
	list, err := t.kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var rows []string
	for _, p := range list.Items {
		if !p.Spec.HostNetwork {
			rows = append(rows, strings.Join([]string{p.Namespace, p.Name, string(p.Status.Phase), p.Status.PodIP, p.Spec.NodeName}, "\t"))
		}
	}
	return t.table("NAMESPACE\tPOD\tPHASE\tADDRESS\tNODE", rows)
}

func (t *tour) interfaces(ctx context.Context) error {
	list, err := t.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	nodes := map[string]string{} // by instance
	for _, n := range list.Items {
		nodes[path.Base(n.Spec.ProviderID)] = n.Name
	}
	var rows []string
	pages := ec2.NewDescribeNetworkInterfacesPaginator(t.ec2, &ec2.DescribeNetworkInterfacesInput{MaxResults: aws.Int32(100)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, e := range page.NetworkInterfaces {
			rows = append(rows, interfaceRow(e, nodes))
		}
	}
	slices.Sort(rows)
	return t.table("NODE\tDEVICE\tINTERFACE\tSUBNET\tSTATUS\tPRIMARY\tSECONDARY\tDESCRIPTION", rows)
}

func interfaceRow(e types.NetworkInterface, nodes map[string]string) string {
	node, device := "-", "-"
	if a := e.Attachment; a != nil {
		if id := aws.ToString(a.InstanceId); id != "" {
			node = cmp.Or(nodes[id], id)
		}
		device = strconv.Itoa(int(aws.ToInt32(a.DeviceIndex)))
	}
	return strings.Join([]string{
		node, device, aws.ToString(e.NetworkInterfaceId), aws.ToString(e.SubnetId), string(e.Status),
		aws.ToString(e.PrivateIpAddress), strconv.Itoa(max(len(e.PrivateIpAddresses)-1, 0)), aws.ToString(e.Description),
	}, "\t")
}

// addressPath shows the path of a pod's address: its interface, subnet and route table in
// EC2, and the routes and rules of its node.
func (t *tour) addressPath(ctx context.Context) error {
	list, err := t.kube.CoreV1().Pods(demoNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		return err
	}
	i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return p.Status.PodIP != "" })
	if i < 0 {
		return errors.New("no pod of the demo has an address")
	}
	pod := list.Items[i]
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "pod        %s/%s on %s\naddress    %s\n", pod.Namespace, pod.Name, pod.Spec.NodeName, address)
	if err := t.cloudPath(ctx, address); err != nil {
		return err
	}
	return t.nodePath(ctx, pod, address)
}

// cloudPath prints what EC2 describes about an address.
func (t *tour) cloudPath(ctx context.Context, address netip.Addr) error {
	found, err := t.ec2.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{
		Filters: []types.Filter{filter("addresses.private-ip-address", address.String())},
	})
	if err != nil {
		return err
	}
	if len(found.NetworkInterfaces) != 1 {
		return fmt.Errorf("EC2 lists %d interfaces with address %s, want 1", len(found.NetworkInterfaces), address)
	}
	e := found.NetworkInterfaces[0]
	var groups []string
	for _, g := range e.Groups {
		groups = append(groups, aws.ToString(g.GroupId)+" "+aws.ToString(g.GroupName))
	}
	fmt.Fprintf(t.out, "interface  %s (%s), groups %s\n", aws.ToString(e.NetworkInterfaceId), aws.ToString(e.MacAddress), strings.Join(groups, ", "))
	subnets, err := t.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{aws.ToString(e.SubnetId)}})
	if err != nil {
		return err
	}
	for _, s := range subnets.Subnets {
		fmt.Fprintf(t.out, "subnet     %s %s in %s, %d addresses free\n", aws.ToString(s.SubnetId),
			aws.ToString(s.CidrBlock), aws.ToString(s.AvailabilityZone), aws.ToInt32(s.AvailableIpAddressCount))
	}
	return t.cloudRoutes(ctx, aws.ToString(e.SubnetId), aws.ToString(e.VpcId))
}

// cloudRoutes prints the route table of a subnet: its own, else the VPC's main one.
func (t *tour) cloudRoutes(ctx context.Context, subnet, network string) error {
	for _, filters := range [][]types.Filter{
		{filter("association.subnet-id", subnet)},
		{filter("association.main", "true"), filter("vpc-id", network)},
	} {
		tables, err := t.ec2.DescribeRouteTables(ctx, &ec2.DescribeRouteTablesInput{Filters: filters})
		if err != nil {
			return err
		}
		if len(tables.RouteTables) == 0 {
			continue
		}
		table := tables.RouteTables[0]
		for _, r := range table.Routes {
			fmt.Fprintf(t.out, "route      %s: %s\n", aws.ToString(table.RouteTableId), routeText(r))
		}
		return nil
	}
	return fmt.Errorf("EC2 lists no route table for %s", subnet)
}

// routeText formats a route's destination, target and state.
func routeText(r types.Route) string {
	to := cmp.Or(aws.ToString(r.DestinationCidrBlock), aws.ToString(r.DestinationIpv6CidrBlock))
	by := cmp.Or(aws.ToString(r.GatewayId), aws.ToString(r.NetworkInterfaceId))
	return fmt.Sprintf("%s → %s (%s)", to, by, r.State)
}

func filter(name, value string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: []string{value}}
}

// nodePath prints the node's route to the pod, the rules for its address, and the routes
// from it.
func (t *tour) nodePath(ctx context.Context, pod corev1.Pod, address netip.Addr) error {
	n, err := node(t.status, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	inside := func(argv ...string) (string, error) {
		enter := append(labnode.EnterArgs(n.PID), argv...)
		out, err := exec.CommandContext(ctx, enter[0], enter[1:]...).Output()
		if err != nil {
			return "", fmt.Errorf("%s in %s: %w", strings.Join(argv, " "), n.Name, err)
		}
		return strings.TrimSpace(string(out)), nil
	}
	to, err := inside("ip", "route", "get", address.String())
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(to, "\n")
	fmt.Fprintf(t.out, "to it      %s\n", first)
	rules, err := inside("ip", "rule", "show")
	if err != nil {
		return err
	}
	table := ""
	for line := range strings.Lines(rules) {
		line = strings.Join(strings.Fields(line), " ")
		fields := strings.Fields(line)
		if !slices.Contains(fields, address.String()) {
			continue
		}
		fmt.Fprintf(t.out, "rule       %s\n", line)
		if slices.Contains(fields, "from") && fields[len(fields)-2] == "lookup" && fields[slices.Index(fields, "from")+1] == address.String() {
			table = fields[len(fields)-1]
		}
	}
	if table == "" {
		table = "main" // no rule for an address on the primary interface
	}
	out, err := inside("ip", "route", "show", "table", table)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if table != "main" || strings.HasPrefix(line, "default") {
			fmt.Fprintf(t.out, "from it    table %s: %s\n", table, strings.TrimSpace(line))
		}
	}
	return nil
}
