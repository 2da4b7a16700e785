// Package cyclonus sends the connections of cyclonus's cases between pods of two nodes, by their
// addresses, and by Services through kube-proxy in both of its modes, which is the lab's and
// reads Services from the tests' API server. The nodes are network namespaces with the programs
// of network policy. It needs root and the build tag netns. Packets of SCTP are crafted, to the
// pods' addresses only: kernels without its module have no sockets.
package cyclonus
