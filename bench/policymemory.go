package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cilium/ebpf"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/trunkline/trunkline/test/node"
)

const (
	memoryPolicies = 10_000
	memoryPeers    = 100 // of each policy: a million
	memorySelects  = 5   // one policy of so many selects pods of the node
	memoryPods     = 20
)

// policyMemory measures the memory of a node in a cluster with 10,000 policies that name a million
// peers: of the agent's process, and of the kernel's maps. A fifth of the policies selects pods of
// the node.
func policyMemory(r *run, _ Options) []Result {
	n := node.New(r, node.Config{Type: "m5.xlarge"})
	s := serveAPI(r, n)
	n.StartAgent("warm-ips=20", "log-level=info", node.APIServerFlag+"="+s.url)
	n.UntilReady()
	for i := range memoryPods {
		name := "pod-" + strconv.Itoa(i)
		s.bind(name)
		if err := n.Add(n.NewPod(name)); err != nil {
			r.Fatal(err)
		}
	}
	before := residentOf(r, n)
	r.Logf("%d policies with %d peers each", memoryPolicies, memoryPeers)
	for i := range memoryPolicies {
		subject := fmt.Sprintf("app-%d", i%900)
		if i%memorySelects == 0 {
			subject = boundApp
		}
		peers := make([]networkingv1.NetworkPolicyPeer, memoryPeers)
		for k := range peers {
			peers[k] = addressBlock(peerAddress(i*memoryPeers + k))
		}
		s.Put(policiesPath, policyOf(fmt.Sprintf("policy-%d", i), subject, peers, 1000+i%100))
	}
	const compiled = memoryPolicies / memorySelects * memoryPeers
	for peers := 0; peers < compiled; _, peers = kernelMaps(r, n) {
		r.wait(2 * time.Second)
	}
	peak := residentOf(r, n)
	r.wait(settle)
	maps, _ := kernelMaps(r, n)
	resident := residentOf(r, n)
	return []Result{
		single("policy.mem_mib", "MiB", resident+maps, budget{}, fmt.Sprintf("agent %.0f (%.0f when the last peer was written, %.0f without policies), maps %.0f; %d peers compiled", resident, peak, before, maps, compiled)),
	}
}

// residentOf is the memory of a node's agent, in MiB.
func residentOf(r *run, n *node.Node) float64 {
	p, err := readProcess(filepath.Join("/proc", strconv.Itoa(n.Agent.Process.Pid)))
	if err != nil {
		r.Fatal(err)
	}
	return float64(p.rss) / (1 << 20)
}

// kernelMaps is the memory of the maps that a node's agent has pinned, in MiB, and how many
// addresses of peers they have.
func kernelMaps(r *run, n *node.Node) (mib float64, peers int) {
	err := filepath.WalkDir(node.BPFRoot(n), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !strings.HasPrefix(filepath.Base(path), "tl_") {
			return nil // a program
		}
		m, err := ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if err != nil {
			return err
		}
		info, err := m.Info()
		if err == nil {
			bytes, _ := info.Memlock()
			mib += float64(bytes) / (1 << 20)
			if filepath.Base(path) == "tl_classes" {
				peers = entries(m)
			}
		}
		return errors.Join(err, m.Close())
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the agent opens them with the first policy
		r.Fatal(err)
	}
	return mib, peers
}

// entries counts those of a hash. One that is deleted meanwhile may end the count early.
func entries(m *ebpf.Map) (count int) {
	key, value := make([]byte, m.KeySize()), make([]byte, m.ValueSize())
	for all := m.Iterate(); all.Next(&key, &value); {
		count++
	}
	return count
}
