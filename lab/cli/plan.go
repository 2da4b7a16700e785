package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
	"github.com/trunkline/trunkline/lab/cache"
	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/spec"
	"github.com/trunkline/trunkline/sim/iam"
)

// controllerSubject is the service account that may assume the controller's IAM role.
const controllerSubject = "system:serviceaccount:kube-system:trunkline-controller"

// choices are the flags of up that override lab.yaml.
type choices struct {
	file         string
	name         string
	nodes        int
	instanceType string
}

// resolve reads lab.yaml, applies the flags and checks the result.
func (c choices) resolve() (spec.Resolved, error) {
	want := spec.Default()
	if c.file != "" {
		var err error
		if want, err = spec.Load(c.file); err != nil {
			return spec.Resolved{}, refused(err)
		}
	}
	if c.name != "" {
		want.Name = c.name
	}
	if c.nodes > 0 {
		want.Nodes = slices.Concat(want.Nodes, make([]spec.Node, c.nodes))[:c.nodes]
	}
	if c.instanceType != "" {
		if want.Nodes == nil {
			want.Nodes = make([]spec.Node, spec.DefaultNodes)
		}
		for i := range want.Nodes {
			want.Nodes[i].Type = c.instanceType
		}
	}
	r, err := want.Resolve()
	if err != nil {
		return r, refused(fmt.Errorf("invalid lab:\n%w", err))
	}
	return r, nil
}

// parts are the programs and images of a lab.
type parts struct {
	source string
	set    cache.Set
	images image.Lab
	// imageStore is the directory of the unpacked images.
	imageStore string
	// own are the archives of lab.yaml.
	own []image.Archive
}

// plan returns the desired state for the daemon.
func plan(r spec.Resolved, p parts, stateDir string, deploy bool) (daemon.Lab, error) {
	want := daemon.Lab{
		Name: r.Name, World: r.Cloud, Faults: r.Faults, Latency: r.Latency, ControlPlane: spec.ControlPlaneHost,
		NoCloud: r.NoCloud, PodCIDR: r.PodCIDR,
		ServiceCIDR: r.ServiceCIDR, ClusterDNS: r.ClusterDNS, APIPort: r.APIPort, Proxy: r.Proxy, APIProxy: r.APIProxy, PodGroups: r.PodGroups, ImageStore: p.imageStore,
		Parts: daemon.Parts{
			Kube: p.set.Kube, Lab: labProgram(stateDir), Containerd: p.set.Containerd, Runc: p.set.Runc, CNI: p.set.CNI,
			PauseImage: p.images.Pause.Refs[0],
		},
	}
	for _, n := range r.Nodes {
		want.Nodes = append(want.Nodes, daemon.Node{
			Name: n.Name, Cgroup: n.Cgroup, Labels: n.Labels, Image: n.Image, NoCNIPlugins: n.NoCNIPlugins,
			Files: n.Files, Before: n.Before, OtherNetwork: n.Network == spec.NetworkOther,
		})
	}
	for _, a := range slices.Concat(p.images.All(), p.own) {
		want.Images = append(want.Images, daemon.Image{Path: a.Path, Refs: a.Refs})
	}
	if deploy {
		want.Deploy = deployDir(stateDir)
	}
	if r.NoCloud {
		return want, nil
	}
	var err error
	want.Roles, err = roles(r, p.source, want.Issuer())
	if startsWithAWS(want) {
		allowAWS(want.Roles)
	}
	return want, err
}

// roles returns the account's roles, which the lab enforces: those of lab.yaml, the nodes'
// unless lab.yaml has it, and the controller's, with the IAM policies of deploy/iam, which
// users attach on AWS.
func roles(r spec.Resolved, source, issuer string) ([]iam.Role, error) {
	own := r.Roles
	read := func(name string) (map[string][]byte, error) {
		text, err := os.ReadFile(filepath.Join(source, "deploy", "iam", name+".json"))
		return map[string][]byte{name: text}, err
	}
	nodes, err := read("node-policy")
	if err != nil {
		return nil, err
	}
	controller, err := read("controller-policy")
	if err != nil {
		return nil, err
	}
	for _, name := range map[string][]string{
		spec.PodGroupsOwn: {"controller-trunks-policy", "controller-groups-policy"}, spec.PodGroupsAuto: {"controller-trunks-policy", "controller-groups-policy"},
		spec.PodGroupsManaged: {"controller-groups-policy"}, spec.PodGroupsEBPF: {"controller-groups-policy"},
	}[r.PodGroups] {
		more, err := read(name)
		if err != nil {
			return nil, err
		}
		maps.Copy(controller, more)
	}
	if !slices.ContainsFunc(own, func(r iam.Role) bool { return r.Name == spec.DefaultRole }) {
		own = append([]iam.Role{{Name: spec.DefaultRole, Policies: nodes, Instances: true}}, own...)
	}
	return append(own, iam.Role{
		Name: spec.RoleController, Policies: controller, Tags: map[string]string{vpc.TagClusterName: spec.ClusterName},
		Trust: []iam.Trust{{Issuer: issuer, Subject: controllerSubject}},
	}), nil
}

func deployDir(stateDir string) string { return filepath.Join(stateDir, "deploy") }

// labProgram returns the path of the lab's own copy of trunkline-lab. Nodes run it as
// PID 1, also after the original was rebuilt.
func labProgram(stateDir string) string { return filepath.Join(stateDir, "bin", "trunkline-lab") }

// writeDeploy writes the directory that the daemon applies: deploy/overlays/lab and the
// lab's DNS, with the image tags of this build and the region, account and addresses of
// this lab. In a lab that starts with AWS's daemon, that daemon is in the overlay's place,
// and the overlay in a directory of its own, for the migration.
func writeDeploy(want daemon.Lab, p parts, stateDir string) error {
	dirs := map[string]manifests{deployDir(stateDir): {product: true, dns: true}}
	if startsWithAWS(want) {
		dirs = map[string]manifests{deployDir(stateDir): {aws: true, dns: true}, productDir(stateDir): {product: true}}
	}
	for dir, m := range dirs {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		text, err := m.kustomization(want, p, dir)
		if err != nil {
			return err
		}
		if err := atomicfile.Write(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// manifests are the parts of a kustomization.
type manifests struct {
	product bool // Trunkline
	dns     bool // the lab's DNS
	aws     bool // AWS's daemon
}

// bases returns the directories of the parts, below the checkout.
func (m manifests) bases(want daemon.Lab) (out []string) {
	switch {
	case m.product && want.NoCloud:
		out = append(out, "deploy/overlays/no-cloud")
	case m.product && want.PodGroups == spec.PodGroupsOwn:
		out = append(out, "deploy/overlays/lab-security-groups")
	case m.product && want.PodGroups == spec.PodGroupsManaged:
		out = append(out, "deploy/overlays/lab-managed-groups", "lab/manifests/eks")
	case m.product && want.PodGroups == spec.PodGroupsEBPF:
		out = append(out, "deploy/overlays/lab-node-groups")
	case m.product && want.PodGroups == spec.PodGroupsAuto:
		out = append(out, "deploy/overlays/lab-auto-groups")
	case m.product:
		out = append(out, "deploy/overlays/lab")
	}
	if m.dns {
		out = append(out, "lab/manifests")
	}
	if m.aws {
		out = append(out, "lab/manifests/aws-node")
	}
	return out
}

// components returns the directories of the components of Trunkline, below the checkout.
func (m manifests) components(want daemon.Lab) (out []string) {
	if m.product && (hasOtherNetwork(want) || startsWithAWS(want)) {
		out = append(out, "deploy/components/eks-nodes")
	}
	if m.product && startsWithAWS(want) {
		out = append(out, "deploy/components/migration")
	}
	return out
}

// relative returns directories of the checkout as seen from dir: kustomize refuses absolute
// paths.
func relative(dir, checkout string, below []string) (out []string, err error) {
	for _, b := range below {
		r, err := filepath.Rel(dir, filepath.Join(checkout, b))
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

func (m manifests) kustomization(want daemon.Lab, p parts, dir string) ([]byte, error) {
	resources, err := relative(dir, p.source, m.bases(want))
	if err != nil {
		return nil, err
	}
	components, err := relative(dir, p.source, m.components(want))
	if err != nil {
		return nil, err
	}
	k := map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1",
		"kind":       "Kustomization",
		"resources":  resources,
		"images": []map[string]string{
			newTag("trunkline", p.images.Trunkline), newTag("coredns", p.images.CoreDNS),
			newTag("workload", p.images.Workload),
		},
		"patches": m.patches(want),
	}
	if len(components) > 0 {
		k["components"] = components
	}
	if m.product {
		k["configMapGenerator"] = []map[string]any{{
			"name": "trunkline", "namespace": "kube-system", "behavior": "merge",
			"literals": settings(want),
		}}
	}
	return yaml.Marshal(k)
}

// settings are this lab's values of the overlay's ConfigMap.
func settings(want daemon.Lab) []string {
	out := []string{"CLUSTER_NAME=" + spec.ClusterName}
	if want.NoCloud {
		return append(out, "TRUNKLINE_EXCLUDE_SNAT_CIDRS="+want.PodCIDR.String(), fmt.Sprint("TRUNKLINE_MTU=", vpc.MTU))
	}
	return append(out, "AWS_REGION="+want.World.Region)
}

// patches are this lab's addresses and account.
func (m manifests) patches(want daemon.Lab) []map[string]any {
	out := []map[string]any{}
	if m.dns {
		out = append(out, map[string]any{"patch": fmt.Sprintf(dnsPatch, want.ClusterDNS, want.ClusterDNS)})
	}
	if m.product && !want.NoCloud { // without a cloud there is no controller, which would need a role
		out = append(out, map[string]any{"patch": fmt.Sprintf(accountPatch, want.World.Account)})
	}
	return out
}

func newTag(name string, a image.Archive) map[string]string {
	full := "trunkline.dev/" + name
	return map[string]string{"name": full, "newTag": a.Refs[0][len(full)+1:]}
}

const dnsPatch = `apiVersion: v1
kind: Service
metadata: {name: kube-dns, namespace: kube-system}
spec: {clusterIP: %s, clusterIPs: [%s]}
`

const accountPatch = `apiVersion: apps/v1
kind: Deployment
metadata: {name: trunkline-controller, namespace: kube-system}
spec:
  template:
    spec:
      containers:
      - name: controller
        env:
        - {name: AWS_ROLE_ARN, value: "arn:aws:iam::%s:role/trunkline-controller"}
`
