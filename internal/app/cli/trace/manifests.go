package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/trunkline/trunkline/internal/core/policy"
)

// World is what connections are traced in.
type World struct {
	policy.Cluster
	// Problems are what policies ask for and cannot get.
	Problems []string
	// Offline is set if the addresses of pods are not known: manifests have none.
	Offline bool
	// DefaultNamespace is that of objects and names without one.
	DefaultNamespace string
}

// labelName is the label that every namespace has.
const labelName = "kubernetes.io/metadata.name"

// namespace adds a namespace, unless it is known.
func (w *World) namespace(name string) {
	if _, known := w.Namespaces[name]; !known {
		w.Namespaces[name] = labels.Set{labelName: name}
	}
}

func (w *World) policy(np *networkingv1.NetworkPolicy) {
	p, problems := policy.FromNetworkPolicy(np)
	for _, text := range problems {
		w.Problems = append(w.Problems, fmt.Sprintf("%s: %s", p.Ref, text))
	}
	w.Policies = append(w.Policies, p)
}

// FromFiles reads the manifests (.yaml, .yml and .json) below a directory, or one file. Each
// workload is one pod with its name. Objects of other kinds are ignored.
func FromFiles(path, namespace string) (*World, error) {
	w := &World{Cluster: policy.Cluster{Namespaces: map[string]labels.Set{}}, Offline: true, DefaultNamespace: namespace}
	err := filepath.WalkDir(path, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if name != path && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name)) {
			return nil
		}
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := w.read(raw); err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range w.Pods {
		w.namespace(w.Pods[i].Namespace)
		w.Pods[i].Addresses = []netip.Addr{placeholder(i)}
	}
	for _, p := range w.Policies {
		w.namespace(p.Ref.Namespace)
	}
	if len(w.Pods) == 0 {
		return nil, fmt.Errorf("%s has no pods: expected manifests of pods, or of workloads such as Deployments", path)
	}
	return w, nil
}

// placeholder is an address of a pod of a manifest, of a range that is used nowhere: only
// blocks of all addresses match it.
func placeholder(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{240, byte(i >> 16), byte(i >> 8), byte(i)})
}

// read adds the objects of a file.
func (w *World) read(raw []byte) error {
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(raw))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := w.object(document); err != nil {
			return err
		}
	}
}

func (w *World) object(raw []byte) error {
	if len(bytes.TrimSpace(raw)) == 0 {
		return nil
	}
	var head struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Items             []any `json:"items"`
	}
	if err := yaml.Unmarshal(raw, &head); err != nil {
		return err
	}
	if head.Kind == "List" {
		for _, item := range head.Items {
			one, err := yaml.Marshal(item)
			if err != nil {
				return err
			}
			if err := w.object(one); err != nil {
				return err
			}
		}
		return nil
	}
	if err := w.kind(head.Kind, raw); err != nil {
		return fmt.Errorf("%s %s: %w", head.Kind, head.Name, err)
	}
	return nil
}

// kind adds an object of a kind that matters.
func (w *World) kind(kind string, raw []byte) error {
	switch kind {
	case "Namespace":
		ns, err := decode[corev1.Namespace](raw)
		if err == nil {
			w.Namespaces[ns.Name] = labels.Merge(ns.Labels, labels.Set{labelName: ns.Name})
		}
		return err
	case policy.KindNetworkPolicy:
		np, err := decode[networkingv1.NetworkPolicy](raw)
		if err == nil {
			w.inNamespace(&np.ObjectMeta)
			w.policy(np)
		}
		return err
	case "Pod":
		p, err := decode[corev1.Pod](raw)
		if err == nil {
			w.pod(p.ObjectMeta, p.Labels, p.Spec)
		}
		return err
	case "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet":
		d, err := decode[appsv1.Deployment](raw) // the template is at the same place in each
		if err == nil {
			w.pod(d.ObjectMeta, d.Spec.Template.Labels, d.Spec.Template.Spec)
		}
		return err
	case "Job":
		j, err := decode[batchv1.Job](raw)
		if err == nil {
			w.pod(j.ObjectMeta, j.Spec.Template.Labels, j.Spec.Template.Spec)
		}
		return err
	case "CronJob":
		j, err := decode[batchv1.CronJob](raw)
		if err == nil {
			w.pod(j.ObjectMeta, j.Spec.JobTemplate.Spec.Template.Labels, j.Spec.JobTemplate.Spec.Template.Spec)
		}
		return err
	default:
		return nil
	}
}

func (w *World) inNamespace(m *metav1.ObjectMeta) {
	if m.Namespace == "" {
		m.Namespace = w.DefaultNamespace
	}
}

// pod adds a pod, or that of a workload.
func (w *World) pod(m metav1.ObjectMeta, set map[string]string, spec corev1.PodSpec) {
	w.inNamespace(&m)
	w.Pods = append(w.Pods, policy.Pod{
		Namespace: m.Namespace, Name: m.Name, Labels: set, HostNetwork: spec.HostNetwork, Ports: policy.NamedPorts(&spec),
	})
}

func decode[T any](raw []byte) (*T, error) {
	object := new(T)
	return object, yaml.Unmarshal(raw, object)
}
