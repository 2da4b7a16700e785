package cli

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/trunkline/trunkline/api/vpcresources/v1beta1"
	"github.com/trunkline/trunkline/internal/app/cli/connectivity"
)

// Names and labels of the connectivity test's objects.
const (
	testPart    = "trunkline-connectivity-test"
	testAccount = "workload"
	testLabel   = connectivity.PodLabel
	roleLabel   = connectivity.RoleLabel
)

// testPod returns a pod of the connectivity test. The timeout of its probes is five
// seconds: the default of one is exceeded on a busy node.
func testPod(p connectivity.PodSpec, image string) *corev1.Pod {
	yes, no, soon := true, false, int64(1)
	http, tcp, udp := connectivity.Ports(p.Host)
	c := corev1.Container{
		Name: "workload", Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
		Args: []string{"serve", fmt.Sprintf("--http=:%d", http), fmt.Sprintf("--tcp=:%d", tcp), fmt.Sprintf("--udp=:%d", udp)},
		Env:  []corev1.EnvVar{fieldEnv("POD_NAME", "metadata.name"), fieldEnv("POD_NAMESPACE", "metadata.namespace"), fieldEnv("NODE_NAME", "spec.nodeName")},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("8Mi"),
		}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
			// Raw sockets, for the spoofing cases.
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_RAW"}},
		},
	}
	spec := corev1.PodSpec{
		NodeName: p.Node, HostNetwork: p.Host, ServiceAccountName: testAccount,
		AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &soon,
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
	}
	switch {
	case p.Stream != nil:
		c.Args = append([]string{"dial"}, p.Stream...)
		spec.RestartPolicy = corev1.RestartPolicyNever
	case p.Group == "":
		c.ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(int32(http))}},
			PeriodSeconds: 1, TimeoutSeconds: 5, FailureThreshold: 3,
		}
	}
	if !p.Host {
		c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: int32(http), HostPort: int32(p.HostPort)}}
	}
	if p.Host {
		spec.Volumes = []corev1.Volume{{Name: "cni", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/cni/net.d"}}}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "cni", MountPath: connectivity.PluginConfigMount, ReadOnly: true}}
	}
	spec.Containers = []corev1.Container{c}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: map[string]string{testLabel: p.Name, roleLabel: role(p.Name), partOfLabel: testPart}}, Spec: spec}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}}
}

// role returns a pod's name without its number: "server" for server-1.
func role(pod string) string { return strings.TrimRight(pod, "-0123456789") }

// testSelector selects one pod by its name, several by their role.
func testSelector(pods []string) map[string]string {
	if len(pods) == 1 {
		return map[string]string{testLabel: pods[0]}
	}
	return map[string]string{roleLabel: role(pods[0])}
}

// testGroupPolicy returns the policy that gives a pod of the connectivity test its security group.
func testGroupPolicy(p connectivity.PodSpec) *v1beta1.SecurityGroupPolicy {
	return &v1beta1.SecurityGroupPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion().String(), Kind: "SecurityGroupPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Labels: map[string]string{partOfLabel: testPart}},
		Spec: v1beta1.SecurityGroupPolicySpec{
			PodSelector:    &metav1.LabelSelector{MatchLabels: testSelector([]string{p.Name})},
			SecurityGroups: v1beta1.GroupIDs{Groups: []string{p.Group}},
		},
	}
}

// testService returns a Service of the connectivity test.
func testService(s connectivity.ServiceSpec) *corev1.Service {
	http, tcp, udp := connectivity.Ports(false)
	port := func(name string, proto corev1.Protocol, n int) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: proto, Port: int32(n), TargetPort: intstr.FromInt32(int32(n))}
	}
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: map[string]string{partOfLabel: testPart}},
		Spec: corev1.ServiceSpec{
			Selector: testSelector(s.Pods),
			Ports:    []corev1.ServicePort{port("http", corev1.ProtocolTCP, http), port("tcp", corev1.ProtocolTCP, tcp), port("udp", corev1.ProtocolUDP, udp)},
		},
	}
	switch {
	case s.Headless:
		svc.Spec.ClusterIP = corev1.ClusterIPNone
	case s.LoadBalancer.IsValid():
		// No controller of the cluster knows the class, so that no load balancer is made.
		svc.Spec.Type, svc.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, new("trunkline.dev/"+testPart)
	case s.NodePort:
		svc.Spec.Type = corev1.ServiceTypeNodePort
	}
	if s.Local {
		svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	}
	return svc
}
