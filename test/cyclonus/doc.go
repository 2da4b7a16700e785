// Package cyclonus sends the connections of cyclonus's cases between pods of two nodes, by their
// addresses, in network namespaces with the programs of network policy. It needs root and the
// build tag netns. Packets of SCTP are crafted: kernels without its module have no sockets.
package cyclonus
