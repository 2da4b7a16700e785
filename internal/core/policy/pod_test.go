package policy

import (
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func TestAPodIsReadWithWhatPoliciesNeedOfIt(t *testing.T) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db", Labels: map[string]string{"app": "db"}},
		Spec: corev1.PodSpec{
			NodeName: "b", HostNetwork: true,
			Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "sql", ContainerPort: 5432}}}},
		},
		Status: corev1.PodStatus{PodIP: "10.0.0.2", PodIPs: []corev1.PodIP{{IP: "10.0.0.2"}, {IP: "fd00::2"}}},
	}
	want := Pod{
		Namespace: "shop", Name: "db", Labels: labels.Set{"app": "db"}, Addresses: []netip.Addr{addr("10.0.0.2"), addr("fd00::2")},
		Ports: []NamedPort{{"sql", TCP, 5432}}, Node: "b", HostNetwork: true,
	}
	if got, ok := FromPod(p); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v\nwant %+v", got, ok, want)
	}
}

func TestAPodThatHasEndedIsNotPartOfACluster(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]bool{
		corev1.PodPending: true, corev1.PodRunning: true, corev1.PodUnknown: true, corev1.PodSucceeded: false, corev1.PodFailed: false,
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}, Status: corev1.PodStatus{Phase: phase, PodIP: "10.0.0.1"}}
		got, ok := FromPod(p)
		if ok != want || ok != (got.Name == "x") {
			t.Errorf("%s: %+v, %v", phase, got, ok)
		}
	}
}

func TestAddressesOfAPodAreReadOnceAndUnmapped(t *testing.T) {
	for name, c := range map[string]struct {
		status corev1.PodStatus
		want   []netip.Addr
	}{
		"none yet":            {corev1.PodStatus{}, nil},
		"only the first":      {corev1.PodStatus{PodIP: "10.0.0.1"}, []netip.Addr{addr("10.0.0.1")}},
		"only in the list":    {corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "fd00::1"}}}, []netip.Addr{addr("fd00::1")}},
		"mapped":              {corev1.PodStatus{PodIP: "::ffff:10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}, []netip.Addr{addr("10.0.0.1")}},
		"one cannot be read":  {corev1.PodStatus{PodIP: "x", PodIPs: []corev1.PodIP{{IP: "10.0.0"}, {IP: "10.0.0.1"}}}, []netip.Addr{addr("10.0.0.1")}},
		"none can be read":    {corev1.PodStatus{PodIP: "10.0.0.300"}, nil},
		"of both IP families": {corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}}, []netip.Addr{addr("10.0.0.1"), addr("fd00::1")}},
	} {
		got, _ := FromPod(&corev1.Pod{Status: c.status})
		if !reflect.DeepEqual(got.Addresses, c.want) {
			t.Errorf("%s: %s, want %s", name, got.Addresses, c.want)
		}
	}
}

func TestNamedPortsAreThoseOfContainersThatRunAsLongAsThePod(t *testing.T) {
	port := func(name string, protocol corev1.Protocol, number int32) corev1.Container {
		return corev1.Container{Ports: []corev1.ContainerPort{{Name: name, Protocol: protocol, ContainerPort: number}}}
	}
	restarted := func(c corev1.Container, policy corev1.ContainerRestartPolicy) corev1.Container {
		c.RestartPolicy = &policy
		return c
	}
	for name, c := range map[string]struct {
		spec corev1.PodSpec
		want []NamedPort
	}{
		"of each protocol, TCP by default": {
			corev1.PodSpec{Containers: []corev1.Container{port("a", "", 1), port("b", "TCP", 2), port("c", "UDP", 3), port("d", "SCTP", 4)}},
			[]NamedPort{{"a", TCP, 1}, {"b", TCP, 2}, {"c", UDP, 3}, {"d", SCTP, 4}},
		},
		"of another protocol":    {corev1.PodSpec{Containers: []corev1.Container{port("a", "ICMP", 1), port("b", "TCP", 2)}}, []NamedPort{{"b", TCP, 2}}},
		"without a name":         {corev1.PodSpec{Containers: []corev1.Container{port("", "TCP", 1)}}, nil},
		"that is no port":        {corev1.PodSpec{Containers: []corev1.Container{port("a", "TCP", 0), port("b", "TCP", -1), port("c", "TCP", 65536)}}, nil},
		"the first and the last": {corev1.PodSpec{Containers: []corev1.Container{port("a", "TCP", 1), port("b", "TCP", 65535)}}, []NamedPort{{"a", TCP, 1}, {"b", TCP, 65535}}},
		"twice":                  {corev1.PodSpec{Containers: []corev1.Container{port("a", "TCP", 1), port("a", "", 1), port("a", "TCP", 2)}}, []NamedPort{{"a", TCP, 1}, {"a", TCP, 2}}},
		"of an init container":   {corev1.PodSpec{InitContainers: []corev1.Container{port("a", "TCP", 1), restarted(port("b", "TCP", 2), "Never")}}, nil},
		"of a sidecar container": {corev1.PodSpec{InitContainers: []corev1.Container{restarted(port("a", "TCP", 1), "Always")}, Containers: []corev1.Container{port("b", "TCP", 2)}}, []NamedPort{{"b", TCP, 2}, {"a", TCP, 1}}},
		"several of one container": {
			corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "a", ContainerPort: 1}, {Name: "b", ContainerPort: 2}}}}},
			[]NamedPort{{"a", TCP, 1}, {"b", TCP, 2}},
		},
	} {
		if got := NamedPorts(&c.spec); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
