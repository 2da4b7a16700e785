package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/resmap"
	"sigs.k8s.io/kustomize/api/resource"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// An overlay with the component of trunks has the controller make branches, and one without it
// does not: a component that is in an overlay of ours would claim the nodes of AWS's controller.
func TestOnlyTheComponentOfTrunksHasTheControllerMakeBranches(t *testing.T) {
	const setting = "TRUNKLINE_SECURITY_GROUPS_FOR_PODS"
	value := func(d appsv1.Deployment) string {
		env := d.Spec.Template.Spec.Containers[0].Env
		i := slices.IndexFunc(env, func(v corev1.EnvVar) bool { return v.Name == setting })
		if i < 0 {
			return ""
		}
		return env[i].Value
	}
	for _, overlay := range []string{"eks", "eks-migration", "lab"} {
		if got := value(built[appsv1.Deployment](t, overlay, "Deployment", "trunkline-controller")); got != "" {
			t.Errorf("overlay %s: %s is %q", overlay, setting, got)
		}
	}
	all := rendered(t, "components: [../components/cninode, ../components/securitygrouppolicy, ../components/trunks]\n")
	found := map[string]bool{}
	for _, r := range all.Resources() {
		found[r.GetKind()+" "+r.GetName()] = true
		if r.GetKind() != "Deployment" {
			continue
		}
		var d appsv1.Deployment
		text, err := r.AsYAML()
		if err == nil {
			err = yaml.Unmarshal(text, &d)
		}
		if err != nil || value(d) != "own" {
			t.Errorf("%s is %q, %v; want own", setting, value(d), err)
		}
	}
	for _, name := range []string{
		"ClusterRole trunkline-controller-trunks", "ClusterRoleBinding trunkline-controller-trunks", "Deployment trunkline-controller",
		"CustomResourceDefinition cninodes.vpcresources.k8s.aws", "CustomResourceDefinition securitygrouppolicies.vpcresources.k8s.aws",
	} {
		if !found[name] {
			t.Errorf("no %s", name)
		}
	}
}

// By default a node enforces the groups of a pod that matches too late. What agents and the controller need for
// that comes with each component that has branches, and the controller knows the mode.
func TestComponentsWithBranchesBringWhatNodesNeedToEnforceGroups(t *testing.T) {
	const setting = "TRUNKLINE_SECURITY_GROUPS_FOR_PODS"
	for component, value := range map[string]string{"trunks": "own", "managed": "managed", "auto": "auto"} {
		all := rendered(t, "components: [../components/cninode, ../components/securitygrouppolicy, ../components/"+component+"]\n")
		for _, role := range []string{"trunkline-agent-branches", "trunkline-agent-groups", "trunkline-controller-groups"} {
			for _, kind := range []string{"ClusterRole", "ClusterRoleBinding"} {
				if !slices.ContainsFunc(all.Resources(), func(r *resource.Resource) bool { return r.GetKind() == kind && r.GetName() == role }) {
					t.Errorf("component %s has no %s %s", component, kind, role)
				}
			}
		}
		controller := objectOf[appsv1.Deployment](t, all, "Deployment", "trunkline-controller").Spec.Template.Spec
		agent := objectOf[appsv1.DaemonSet](t, all, "DaemonSet", "trunkline-agent").Spec.Template.Spec
		of := slices.Concat(controller.Containers, agent.InitContainers[:1], agent.Containers)
		if component == "trunks" {
			of = controller.Containers // agents have the setting of the overlay
		}
		for _, c := range of {
			var values []string
			for _, v := range c.Env {
				if v.Name == setting {
					values = append(values, v.Value)
				}
			}
			if !slices.Equal(values, []string{value}) {
				t.Errorf("component %s, container %s: %s is %q, want %s", component, c.Name, setting, values, value)
			}
		}
	}
	for _, overlay := range []string{"lab-security-groups", "lab-managed-groups", "lab-auto-groups"} { // they build, with each role once
		if r := built[rbacv1.ClusterRole](t, overlay, "ClusterRole", "trunkline-agent-groups"); len(r.Rules) == 0 {
			t.Errorf("overlay %s: ClusterRole trunkline-agent-groups has no rules", overlay)
		}
	}
}

// The component of all modes has the controller and the agents choose, whatever the components that it includes set,
// with the rights of each mode.
func TestTheComponentOfAllModesHasEachNodeChooseItsOwn(t *testing.T) {
	const overlay, setting = "lab-auto-groups", "TRUNKLINE_SECURITY_GROUPS_FOR_PODS"
	controller := built[appsv1.Deployment](t, overlay, "Deployment", "trunkline-controller").Spec.Template.Spec
	agent := built[appsv1.DaemonSet](t, overlay, "DaemonSet", "trunkline-agent").Spec.Template.Spec
	for _, c := range slices.Concat(controller.Containers, agent.InitContainers[:1], agent.Containers) {
		var values []string
		for _, v := range c.Env {
			if v.Name == setting {
				values = append(values, v.Value)
			}
		}
		if !slices.Equal(values, []string{"auto"}) {
			t.Errorf("container %s: %s is %q, want auto", c.Name, setting, values)
		}
	}
	for _, role := range []string{"trunkline-controller-trunks", "trunkline-controller-groups", "trunkline-agent-branches", "trunkline-agent-groups", "trunkline-agent-managed"} {
		if r := built[rbacv1.ClusterRole](t, overlay, "ClusterRole", role); len(r.Rules) == 0 {
			t.Errorf("no ClusterRole %s", role)
		}
	}
}

// An overlay names the image once, for what components add as well.
func TestTheImageOfAnOverlayIsThatOfAllContainers(t *testing.T) {
	all := rendered(t, `components: [../components/trunks, ../components/admission, ../components/late-match-evict]
images: [{name: trunkline.dev/trunkline, newName: registry.example.com/trunkline, newTag: v1}]
`)
	daemon := objectOf[appsv1.DaemonSet](t, all, "DaemonSet", "trunkline-agent").Spec.Template.Spec
	specs := []corev1.PodSpec{daemon}
	for _, name := range []string{"trunkline-controller", "trunkline-admission"} {
		specs = append(specs, objectOf[appsv1.Deployment](t, all, "Deployment", name).Spec.Template.Spec)
	}
	for _, spec := range specs {
		for _, c := range slices.Concat(spec.InitContainers, spec.Containers) {
			if c.Image != "registry.example.com/trunkline:v1" {
				t.Errorf("container %s has the image %s", c.Name, c.Image)
			}
		}
	}
}

// rendered are the objects of an overlay of base with these lines.
func rendered(t *testing.T, lines string) resmap.ResMap {
	t.Helper()
	files := filesys.MakeFsInMemory()
	for _, dir := range []string{"base", "crds", "components"} {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return files.WriteFile("/"+path, text)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := files.WriteFile("/own/kustomization.yaml", []byte("resources: [../base]\n"+lines)); err != nil {
		t.Fatal(err)
	}
	all, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, "/own")
	if err != nil {
		t.Fatal(err)
	}
	return all
}
