// Command coredns is CoreDNS with the plugins the lab's cluster DNS uses and no
// others. Only the lab's image recipe builds it.
package main

import (
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loop"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"

	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"
)

func main() {
	// The order in which a request passes the plugins.
	dnsserver.Directives = []string{
		"reload", "health", "ready", "errors", "cache", "loop", "kubernetes", "forward",
	}
	coremain.Run()
}
