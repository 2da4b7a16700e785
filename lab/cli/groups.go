package cli

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/spec"
)

//go:embed groups.yaml
var groupsManifest string

// databasePort is the port of the workload's HTTP server, and the one that the group of the database
// opens.
const databasePort = 8080

// groups gives two pods and a database security groups of their own, and shows that the VPC
// admits one of the two; then the other one too, after an edit of its policy.
func (t *tour) groups(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	ids, why, err := t.groupIDs(ctx)
	if err != nil {
		return err
	}
	if why != "" {
		fmt.Fprintf(t.out, "- skipped: %s\n", why)
		return nil
	}
	fmt.Fprintln(t.out, "Each pod has a branch interface of its own, with the groups of the policy that selects it:")
	at, err := t.groupedPods(ctx, ids)
	if err != nil {
		return err
	}
	fmt.Fprintln(t.out, "\nThe VPC enforces groups outside the nodes:")
	if err := t.groupRules(ctx, ids); err != nil {
		return err
	}
	if err := t.connects(ctx, "shop", at, true); err != nil {
		return err
	}
	if err := t.connects(ctx, "blog", at, false); err != nil {
		return err
	}
	if err := t.explain(ctx, "blog"); err != nil {
		return err
	}
	edit := []string{"-n", demoNamespace, "patch", "securitygrouppolicy", "blog", "--type=merge", "-p", fmt.Sprintf(`{"spec":{"securityGroups":{"groupIds":["%s"]}}}`, ids[spec.GroupClients])}
	fmt.Fprintf(t.out, "\nThe policy is edited while the pod runs:\n$ %s kubectl %s '%s'\n", t.command, strings.Join(edit[:len(edit)-1], " "), edit[len(edit)-1])
	if err := t.kubectl(ctx, "", edit...); err != nil {
		return err
	}
	if err := t.connects(ctx, "blog", at, true); err != nil {
		return err
	}
	return t.explain(ctx, "blog")
}

// groupNames are the security groups of the lab that the demo gives to pods.
func groupNames() []string { return []string{spec.GroupClients, spec.GroupDatabase, spec.GroupNodes} }

// groupIDs returns the ids of the groups by name, or why the lab cannot show security groups.
func (t *tour) groupIDs(ctx context.Context) (ids map[string]string, why string, err error) {
	if t.Lab.PodGroups != spec.PodGroupsOwn {
		return nil, "the lab's file has no securityGroupsForPods: own", nil
	}
	found, err := t.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: []types.Filter{{Name: aws.String("group-name"), Values: groupNames()}}})
	if err != nil {
		return nil, "", err
	}
	ids = map[string]string{}
	for _, g := range found.SecurityGroups {
		ids[aws.ToString(g.GroupName)] = aws.ToString(g.GroupId)
	}
	for _, name := range groupNames() {
		if ids[name] == "" {
			return nil, "the lab's file has no security group " + name, nil
		}
	}
	return ids, "", nil
}

// groupRules prints what the database accepts.
func (t *tour) groupRules(ctx context.Context, ids map[string]string) error {
	found, err := t.ec2.DescribeSecurityGroupRules(ctx, &ec2.DescribeSecurityGroupRulesInput{Filters: []types.Filter{filter("group-id", ids[spec.GroupDatabase])}})
	if err != nil {
		return err
	}
	names := map[string]string{}
	for name, id := range ids {
		names[id] = name
	}
	for _, r := range found.SecurityGroupRules {
		if aws.ToBool(r.IsEgress) || r.ReferencedGroupInfo == nil {
			continue
		}
		from := aws.ToString(r.ReferencedGroupInfo.GroupId)
		fmt.Fprintf(t.out, "  group %s (%s) accepts %s %d from group %s (%s)\n",
			spec.GroupDatabase, ids[spec.GroupDatabase], aws.ToString(r.IpProtocol), aws.ToInt32(r.FromPort), names[from], from)
	}
	return nil
}

// groupedPods applies the policies, starts the pods that they select, and prints them. It returns
// the address of the database.
func (t *tour) groupedPods(ctx context.Context, ids map[string]string) (database netip.AddrPort, err error) {
	text := strings.NewReplacer("GROUP_CLIENTS", ids[spec.GroupClients], "GROUP_NODES", ids[spec.GroupNodes], "GROUP_DATABASE", ids[spec.GroupDatabase]).Replace(groupsManifest)
	if err := t.kubectl(ctx, text, "apply", "-f", "-"); err != nil {
		return database, err
	}
	wait := []string{"-n", demoNamespace, "wait", "--for=condition=Ready", "--timeout=60s"}
	for _, app := range []string{"shop", "blog", "database"} {
		if err := t.groupedPod(ctx, app); err != nil {
			return database, err
		}
		wait = append(wait, "pod/"+app)
	}
	if err := t.kubectl(ctx, "", wait...); err != nil {
		return database, err
	}
	list, err := t.kube.CoreV1().Pods(demoNamespace).List(ctx, metav1.ListOptions{LabelSelector: "app in (shop,blog,database)"})
	if err != nil {
		return database, err
	}
	var rows []string
	for _, p := range list.Items {
		a, err := netip.ParseAddr(p.Status.PodIP)
		if err != nil {
			return database, fmt.Errorf("the address of pod %s: %w", p.Name, err)
		}
		if p.Name == "database" {
			database = netip.AddrPortFrom(a, databasePort)
		}
		e, err := t.withGroup(ctx, a, ids[groupOf(p.Name)])
		if err != nil {
			return database, fmt.Errorf("the interface of pod %s: %w", p.Name, err)
		}
		group := e.Groups[0]
		rows = append(rows, strings.Join([]string{
			p.Name, a.String(), aws.ToString(e.NetworkInterfaceId), string(e.InterfaceType),
			aws.ToString(group.GroupName) + " " + aws.ToString(group.GroupId), p.Spec.NodeName,
		}, "\t"))
	}
	return database, t.table("POD\tADDRESS\tINTERFACE\tTYPE\tGROUP\tNODE", rows)
}

// groupOf is the name of the group that groups.yaml gives to a pod.
func groupOf(pod string) string {
	return map[string]string{"shop": spec.GroupClients, "blog": spec.GroupNodes, "database": spec.GroupDatabase}[pod]
}

// withGroup returns the interface that EC2 describes for an address once it has only one group: an
// earlier demo edited a policy.
func (t *tour) withGroup(ctx context.Context, address netip.Addr, group string) (types.NetworkInterface, error) {
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		found, err := t.ec2.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{Filters: []types.Filter{filter("addresses.private-ip-address", address.String())}})
		if err != nil {
			return types.NetworkInterface{}, err
		}
		for _, e := range found.NetworkInterfaces {
			if len(e.Groups) == 1 && aws.ToString(e.Groups[0].GroupId) == group {
				return e, nil
			}
		}
		select {
		case <-ctx.Done():
			return types.NetworkInterface{}, fmt.Errorf("EC2 lists none with address %s and group %s alone: %w", address, group, ctx.Err())
		case <-again.C:
		}
	}
}

// groupedPod starts a pod once pods of its labels are admitted with a request for a branch: the
// policy was written a moment ago.
func (t *tour) groupedPod(ctx context.Context, app string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: app, Namespace: demoNamespace, Labels: map[string]string{"app": app}},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{
				Name: "workload", Image: t.Workload, ImagePullPolicy: corev1.PullIfNotPresent, Args: []string{"serve"},
			}},
		},
	}
	pods := t.kube.CoreV1().Pods(demoNamespace)
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		asked := pod.DeepCopy()
		asked.Name, asked.GenerateName = "", app+"-"
		got, err := pods.Create(ctx, asked, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && slices.ContainsFunc(got.Spec.Containers, requestsBranch) {
			break
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("pods with the label app=%s are not admitted with a request for %s: %w", app, vpc.ResourcePodENI, ctx.Err()), err)
		case <-again.C:
		}
	}
	_, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // of an earlier demo
		return nil
	}
	return err
}

func requestsBranch(c corev1.Container) bool {
	_, has := c.Resources.Requests[vpc.ResourcePodENI]
	return has
}

// explain prints which groups a pod has, and why.
func (t *tour) explain(ctx context.Context, pod string) error {
	fmt.Fprintf(t.out, "\n$ %s trunkline explain pod %s/%s\n", t.command, demoNamespace, pod)
	return t.program(ctx, t.Product, "explain", "pod", demoNamespace+"/"+pod)
}
