package kube

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/kernel/atomicfile"
)

// The file of the pods is a gzip stream of JSON values: peersHeader, then the templates, the
// names of the nodes, and the pods, which refer to both by number. It is written and read one
// value at a time, so that neither needs it in memory as a whole.
type peersHeader struct {
	Version   int `json:"version"`
	Templates int `json:"templates"`
	Nodes     int `json:"nodes"`
	Pods      int `json:"pods"`
}

type savedTemplate struct {
	Namespace string      `json:"namespace"`
	Labels    labels.Set  `json:"labels,omitempty"`
	Ports     []savedPort `json:"ports,omitempty"`
	Account   string      `json:"account,omitempty"`
}

// savedPort is policy.NamedPort.
type savedPort struct {
	Name     string          `json:"name"`
	Protocol policy.Protocol `json:"protocol"`
	Port     uint16          `json:"port"`
}

type savedPeer struct {
	Template  int          `json:"t"`
	Node      int          `json:"n"`
	Name      string       `json:"p"`
	Addresses []netip.Addr `json:"a"`
	Reported  bool         `json:"r,omitempty"`
	Started   int64        `json:"s"`
	Created   int64        `json:"c"`
	UID       string       `json:"u"`
}

const (
	// savePeersEvery is the minimum interval between two writes of the pods; one that took
	// long is followed by savePeersShare times as long a pause.
	savePeersEvery = 10 * time.Second
	savePeersShare = 100
	// maxSaved bounds each part of the file, beyond the largest clusters.
	maxSaved = 1 << 18
)

func (p *PolicyObjects) peersPath() string { return p.opts.SnapshotPath + peersSuffix }

const peersSuffix = ".peers"

// savePeers saves the pods after changes, once the API server has listed them, and removes
// the file once pods are not watched any more.
func (p *PolicyObjects) savePeers(ctx context.Context) {
	path := p.peersPath()
	saveAfter(ctx, p.moved, func(ctx context.Context) time.Duration {
		list, ok := p.peers()
		began := time.Now()
		err := atomicfile.RemoveLeftovers(path)
		switch {
		case len(list) > maxSaved:
			err = fmt.Errorf("%d pods are more than the %d that are saved", len(list), maxSaved)
		case ok:
			err = errors.Join(err, writePeers(ctx, path, list))
		default:
			if gone := os.Remove(path); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
		if err != nil {
			p.opts.Log.Warn("pods of the policy snapshot not saved", "path", path, "err", err)
		}
		return max(savePeersEvery, savePeersShare*time.Since(began))
	})
}

// peers are the pods, and false unless the API server has listed them.
func (p *PolicyObjects) peers() ([]*peer, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]*peer, 0, len(p.known.peers.pods))
	for _, row := range p.known.peers.pods {
		list = append(list, row)
	}
	return list, p.known.synced.pods
}

// writePeers leaves the earlier file if ctx ends first.
func writePeers(ctx context.Context, path string, list []*peer) error {
	from, to := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		to.CloseWithError(encodePeers(to, list))
	}()
	stop := context.AfterFunc(ctx, func() { to.CloseWithError(context.Cause(ctx)) })
	defer stop()
	err := atomicfile.WriteFrom(path, from, 0o600)
	from.Close() // ends the encoder if the write failed
	<-done
	return err
}

func encodePeers(w io.Writer, list []*peer) error {
	templates, nodes := numbered[*template]{}, numbered[string]{}
	for _, row := range list {
		templates.add(row.template)
		nodes.add(row.pod.Node)
	}
	zip := gzip.NewWriter(w)
	text := bufio.NewWriter(zip)
	enc := json.NewEncoder(text)
	err := enc.Encode(peersHeader{policySnapshotVersion, len(templates.list), len(nodes.list), len(list)})
	for _, t := range templates.list {
		saved := savedTemplate{Namespace: t.namespace, Labels: t.labels, Account: t.account}
		for _, port := range t.ports {
			saved.Ports = append(saved.Ports, savedPort(port))
		}
		err = errors.Join(err, enc.Encode(saved))
	}
	for _, n := range nodes.list {
		err = errors.Join(err, enc.Encode(n))
	}
	for _, row := range list {
		if err != nil {
			break
		}
		err = enc.Encode(savedPeer{
			Template: templates.index[row.template], Node: nodes.index[row.pod.Node], Name: row.ref.Name,
			Addresses: row.pod.Addresses, Reported: row.rank.reported, Started: row.rank.started,
			Created: row.rank.created, UID: hex.EncodeToString(row.rank.uid[:]),
		})
	}
	return errors.Join(err, text.Flush(), zip.Close())
}

// numbered numbers values in the order in which they were added first.
type numbered[T comparable] struct {
	list  []T
	index map[T]int
}

func (n *numbered[T]) add(v T) {
	if _, known := n.index[v]; !known {
		put(&n.index, v, len(n.list))
		n.list = append(n.list, v)
	}
}

// loadPeers enters the pods of the snapshot.
func (p *PolicyObjects) loadPeers() error {
	f, err := os.Open(p.peersPath())
	if err != nil {
		return fmt.Errorf("read pods of the policy snapshot: %w", err)
	}
	defer f.Close()
	list, err := p.convert.decode(bufio.NewReader(f))
	if err != nil {
		return fmt.Errorf("decode pods of the policy snapshot: %w", err)
	}
	for _, row := range list {
		p.known.setPod(row)
	}
	p.known.copied = p.known.seeded
	return nil
}

func (c *podConverter) decode(r io.Reader) ([]*peer, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(zip)
	var h peersHeader
	if err := dec.Decode(&h); err != nil {
		return nil, err
	}
	if h.Version != policySnapshotVersion {
		return nil, fmt.Errorf("version %d, this build reads %d", h.Version, policySnapshotVersion)
	}
	templates, err := decodeList[savedTemplate](dec, h.Templates)
	if err != nil {
		return nil, err
	}
	nodes, err := decodeList[string](dec, h.Nodes)
	if err != nil {
		return nil, err
	}
	saved, err := decodeList[savedPeer](dec, h.Pods)
	if err != nil {
		return nil, err
	}
	list := make([]*peer, 0, len(saved))
	for _, s := range saved {
		row, err := c.saved(s, templates, nodes)
		if err != nil {
			return nil, err
		}
		list = append(list, row)
	}
	switch _, err := dec.Token(); { // reads to the checksum
	case errors.Is(err, io.EOF):
		return list, nil
	case err != nil:
		return nil, err
	default:
		return nil, fmt.Errorf("more than the %d pods that it announces", h.Pods)
	}
}

func decodeList[T any](dec *json.Decoder, n int) ([]T, error) {
	if n < 0 || n > maxSaved {
		return nil, fmt.Errorf("%d entries, at most %d are read", n, maxSaved)
	}
	var list []T
	for range n {
		var v T
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

func (c *podConverter) saved(s savedPeer, templates []savedTemplate, nodes []string) (*peer, error) {
	if s.Template < 0 || s.Template >= len(templates) || s.Node < 0 || s.Node >= len(nodes) {
		return nil, fmt.Errorf("pod %q refers to what is not in the file", s.Name)
	}
	t := template{namespace: templates[s.Template].Namespace, labels: templates[s.Template].Labels, account: templates[s.Template].Account}
	for _, port := range templates[s.Template].Ports {
		t.ports = append(t.ports, policy.NamedPort(port))
	}
	uid, err := hex.DecodeString(s.UID)
	if err != nil {
		return nil, fmt.Errorf("uid of pod %s/%s: %w", t.namespace, s.Name, err)
	}
	if s.Name == "" || t.namespace == "" || len(s.Addresses) == 0 || slices.ContainsFunc(s.Addresses, func(a netip.Addr) bool { return !a.IsGlobalUnicast() }) {
		return nil, fmt.Errorf("pod %s/%s has no name or no address: %v", t.namespace, s.Name, s.Addresses)
	}
	r := rank{reported: s.Reported, started: s.Started, created: s.Created}
	copy(r.uid[:], uid)
	return c.peer(s.Name, nodes[s.Node], &t, s.Addresses, r), nil
}
