package bench

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"github.com/trunkline/trunkline/api/vpcresources/v1alpha1"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/lab/workload"
	"github.com/trunkline/trunkline/sim/faults"
)

// realPods are the pods of sgpPods, on three nodes.
const realPods = 60

// podsLab is the lab of sgpPods: an m5.2xlarge has 38 branches.
const podsLab = `
quotas: {trunkCalls: true}
securityGroupsForPods: own
securityGroups:
- name: nodes
  ingress:
  - {protocol: all, groups: [nodes, cluster]}
  - {protocol: udp, ports: 53, groups: [clients]}
  - {protocol: tcp, ports: 53, groups: [clients]}
- name: cluster
  ingress:
  - {protocol: tcp, ports: 443, groups: [nodes]}
- name: clients
  ingress:
  - {protocol: all, groups: [nodes]}
- {name: quarantine, egress: []}
nodes:
- {name: node1, type: m5.2xlarge}
- {name: node2, type: m5.2xlarge}
- {name: node3, type: m5.2xlarge}
`

// podsPolicy selects the pods of workload.Crowd.
const podsPolicy = `
apiVersion: vpcresources.k8s.aws/v1beta1
kind: SecurityGroupPolicy
metadata: {name: crowd, namespace: default}
spec:
  podSelector: {matchLabels: {app: crowd}}
  securityGroups: {groupIds: [%s]}
`

// sgpPods measures real pods of a real cluster from their creation until they are ready: without
// security groups of their own, with branches that are made for them, and with branches that were
// made before with their groups. A call of EC2 takes callTime, within EC2's token buckets.
func sgpPods(r *run, o Options) []Result {
	b := bed{r, o.Source, fmt.Sprintf("bench-%08x", rand.Uint32())}
	b.must(nil, "build")
	b.Cleanup(func() { b.down() })
	r.Logf("start lab %s", b.name)
	b.must(nil, "up", "-f", b.podsLab())
	b.must([]byte(workload.Crowd), "kubectl", "apply", "-f", "-")
	plain := b.crowd("without groups")
	clients, quarantine := b.group("clients"), b.group("quarantine")
	b.must([]byte(fmt.Sprintf(podsPolicy, clients)), "kubectl", "apply", "-f", "-")
	b.until("admission adds the request of a branch", b.admits)
	seen := len(b.calls())
	cold := b.crowd("with branches that are made for them")
	calls := b.calls()[seen:]
	b.must(nil, "kubectl", "-n", "kube-system", "set", "env", "deployment/trunkline-controller",
		"TRUNKLINE_QUARANTINE_GROUP="+quarantine, fmt.Sprintf("TRUNKLINE_EXACT_BRANCHES=%s=%d", clients, realPods/3))
	b.until(fmt.Sprintf("%d branches are kept", realPods), func() bool { return b.kept(clients) >= realPods })
	warm := b.crowd("with branches that were made before")
	note := fmt.Sprintf("%d pods on 3 nodes, creation to ready in whole seconds, each call %s within EC2's buckets", realPods, callTime)
	return []Result{
		single("sgp.pods60.plain_p50_s", "s", quantile(plain, 0.5), budget{}, note),
		single("sgp.pods60.cold_p50_s", "s", quantile(cold, 0.5), budget{}, note+"; "+byKind(calls)),
		single("sgp.pods60.cold_p99_s", "s", quantile(cold, 0.99), budget{}, note),
		single("sgp.pods60.warm_p50_s", "s", quantile(warm, 0.5), budget{}, note),
		single("sgp.pods60.warm_p99_s", "s", quantile(warm, 0.99), budget{}, note),
		single("sgp.pods60.warm_ratio", "x", quantile(warm, 0.5)/quantile(plain, 0.5), budget{}, "median of warm to plain pods"),
	}
}

// podsLab writes the lab's file, with EC2's call time and buckets.
func (b bed) podsLab() string {
	plan, err := json.Marshal(faults.Plan{Latency: map[string]faults.Latency{"*": {Fixed: faults.Duration(callTime)}}, Throttle: ec2Buckets()})
	if err != nil {
		b.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "tl-bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "lab.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, "%sfaults: %s\n", podsLab, plan), 0o600); err != nil {
		b.Fatal(err)
	}
	return file
}

// group is the id of a security group of the lab.
func (b bed) group(name string) string {
	out := b.output("aws", "ec2", "describe-security-groups", "--filters", "Name=group-name,Values="+name)
	var groups struct {
		SecurityGroups []struct{ GroupID string }
	}
	if err := json.Unmarshal(out, &groups); err != nil || len(groups.SecurityGroups) != 1 {
		b.Fatalf("security group %s: %v in %s", name, err, out)
	}
	return groups.SecurityGroups[0].GroupID
}

// crowd starts the pods, returns in how many seconds each was ready, and ends them.
func (b bed) crowd(how string) (seconds []float64) {
	b.Logf("0 to %d pods %s", realPods, how)
	b.must(nil, "kubectl", "scale", "deployment/crowd", "--replicas="+strconv.Itoa(realPods))
	b.must(nil, "kubectl", "wait", "deployment/crowd", "--for=jsonpath={.status.readyReplicas}="+strconv.Itoa(realPods), "--timeout=10m")
	var pods corev1.PodList
	if err := json.Unmarshal(b.output("kubectl", "get", "pods", "-l", "app=crowd", "-o", "json"), &pods); err != nil {
		b.Fatal(err)
	}
	for _, p := range pods.Items {
		i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
		seconds = append(seconds, p.Status.Conditions[i].LastTransitionTime.Sub(p.CreationTimestamp.Time).Seconds())
	}
	b.must(nil, "kubectl", "scale", "deployment/crowd", "--replicas=0")
	b.must(nil, "kubectl", "wait", "pods", "-l", "app=crowd", "--for=delete", "--timeout=10m")
	slices.Sort(seconds)
	return seconds
}

// admits reports whether admission knows the policy: a pod that was created before it has no branch.
func (b bed) admits() bool {
	var p corev1.Pod
	out := b.output("kubectl", "run", "probe", "--image=trunkline.dev/workload:dev", "--labels=app=crowd", "--dry-run=server", "-o", "json")
	if err := json.Unmarshal(out, &p); err != nil {
		b.Fatal(err)
	}
	return p.Spec.Containers[0].Resources.Limits.Name(vpc.ResourcePodENI, "").Value() == 1
}

// kept is how many branches without a pod have a group.
func (b bed) kept(group string) (n int) {
	var list v1alpha1.CNINodeList
	if err := json.Unmarshal(b.output("kubectl", "get", "cninodes", "-o", "json"), &list); err != nil {
		b.Fatal(err)
	}
	for _, node := range list.Items {
		if node.Status.Trunkline == nil {
			continue
		}
		for _, branch := range node.Status.Trunkline.Branches {
			if branch.Phase == v1alpha1.BranchIdle && slices.Equal(branch.SecurityGroups, []string{group}) {
				n++
			}
		}
	}
	return n
}
