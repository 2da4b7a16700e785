package deploy_test

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// privileges returns what a pod has of the node: root, namespaces, paths, capabilities.
// Containers may override what the pod sets.
func privileges(spec corev1.PodSpec) (found []string) {
	add := func(has bool, what string) {
		if has {
			found = append(found, what)
		}
	}
	add(spec.HostNetwork, "the host network")
	add(spec.HostPID, "the host's processes")
	add(spec.HostIPC, "the host's IPC")
	for _, v := range spec.Volumes {
		add(v.HostPath != nil, "the host path of volume "+v.Name)
	}
	pod := spec.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
		user, nonRoot := pod.RunAsUser, pod.RunAsNonRoot
		if s := c.SecurityContext; s != nil {
			if s.RunAsUser != nil {
				user = s.RunAsUser
			}
			if s.RunAsNonRoot != nil {
				nonRoot = s.RunAsNonRoot
			}
			add(s.Privileged != nil && *s.Privileged, "a privileged container "+c.Name)
			add(s.Capabilities != nil && len(s.Capabilities.Add) > 0, "capabilities of container "+c.Name)
		}
		add(user == nil || *user == 0 || nonRoot == nil || !*nonRoot, "root in container "+c.Name)
	}
	return found
}

func TestTheControllerHasNoPrivilegesOnItsNode(t *testing.T) {
	seen := false
	podSpecs(t, func(owner string, spec corev1.PodSpec) {
		if owner == "Deployment trunkline-controller" {
			seen = true
			for _, what := range privileges(spec) {
				t.Errorf("%s has %s", owner, what)
			}
		}
	})
	if !seen {
		t.Error("no manifest of the controller found: the check is not valid")
	}
}

func TestAPrivilegeOnTheNodeIsFound(t *testing.T) {
	yes, no, root, user := true, false, int64(0), int64(65532)
	for _, c := range []struct {
		want   string
		change func(*corev1.PodSpec)
	}{
		{"", func(*corev1.PodSpec) {}},
		{"the host network", func(s *corev1.PodSpec) { s.HostNetwork = true }},
		{"the host's processes", func(s *corev1.PodSpec) { s.HostPID = true }},
		{"the host's IPC", func(s *corev1.PodSpec) { s.HostIPC = true }},
		{"the host path of volume v", func(s *corev1.PodSpec) {
			s.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}}}
		}},
		{"root in container c", func(s *corev1.PodSpec) { s.SecurityContext = nil }},
		{"root in container c", func(s *corev1.PodSpec) { s.SecurityContext.RunAsUser = nil }},
		{"root in container c", func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.RunAsUser = &root }},
		{"root in container c", func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.RunAsNonRoot = &no }},
		{"a privileged container c", func(s *corev1.PodSpec) { s.Containers[0].SecurityContext.Privileged = &yes }},
		{"capabilities of container c", func(s *corev1.PodSpec) {
			s.Containers[0].SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}}
		}},
		{"a privileged container i", func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
		}},
	} {
		spec := corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, RunAsUser: &user},
			Containers:      []corev1.Container{{Name: "c", SecurityContext: &corev1.SecurityContext{}}},
		}
		c.change(&spec)
		if got := strings.Join(privileges(spec), ", "); got != c.want {
			t.Errorf("found %q, want %q", got, c.want)
		}
	}
}
