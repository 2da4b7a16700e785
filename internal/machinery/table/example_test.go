package table_test

import (
	"fmt"
	"net/netip"
	"os"

	"github.com/trunkline/trunkline/internal/machinery/table"
)

// Pod is a row. Nothing modifies it after it was inserted.
type Pod struct {
	Name, Node string
	Addresses  []netip.Addr
}

// Route is a row of another table. It is a value, so it is copied.
type Route struct {
	To  netip.Prefix
	Pod string
}

// PodsByName is the primary index of the pods.
func PodsByName() table.Index[*Pod, string] {
	return table.By("name", func(p *Pod) string { return p.Name }, table.String)
}

// PodsByNode lists the pods of a node.
func PodsByNode() table.Index[*Pod, string] {
	return table.By("node", func(p *Pod) string { return p.Node }, table.String)
}

// PodsByAddress finds the pod that has an address.
func PodsByAddress() table.Index[*Pod, netip.Addr] {
	return table.ByEach("address", func(p *Pod) []netip.Addr { return p.Addresses }, table.Addr).Unique()
}

// RoutesByPrefix is the primary index of the routes.
func RoutesByPrefix() table.Index[Route, netip.Prefix] {
	return table.By("to", func(r Route) netip.Prefix { return r.To }, table.Prefix)
}

func Example() {
	db := table.New()
	pods, err := table.Register(db, table.Schema[*Pod]{
		Name:    "pods",
		Primary: PodsByName(),
		Others:  []table.Indexer[*Pod]{PodsByNode(), PodsByAddress()},
		Columns: []string{"NAME", "NODE", "ADDRESSES"},
		Cells:   func(p *Pod) []string { return []string{p.Name, p.Node, fmt.Sprint(p.Addresses)} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	routes, err := table.Register(db, table.Schema[Route]{
		Name:    "routes",
		Primary: RoutesByPrefix(),
		Columns: []string{"TO", "POD"},
		Cells:   func(r Route) []string { return []string{r.To.String(), r.Pod} },
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	before := db.Snapshot()
	changed := pods.Watch(before, PodsByNode().Query("node-1"))

	// Both tables change, or none does.
	err = db.Update(func(txn *table.Txn) error {
		web := &Pod{"web", "node-1", []netip.Addr{netip.MustParseAddr("10.0.0.7")}}
		if _, err := pods.Insert(txn, web); err != nil {
			return err
		}
		_, err := routes.Insert(txn, Route{netip.PrefixFrom(web.Addresses[0], 32), web.Name})
		return err
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	<-changed
	now := db.Snapshot()
	web, revision, _ := pods.Get(now, PodsByAddress().Query(netip.MustParseAddr("10.0.0.7")))
	fmt.Println(web.Name, "changed at revision", revision, "and there were", pods.Len(before), "pods before")
	for _, name := range db.Tables() {
		if err := now.Print(os.Stdout, name); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// web changed at revision 1 and there were 0 pods before
	// NAME  NODE    ADDRESSES
	// web   node-1  [10.0.0.7]
	// TO           POD
	// 10.0.0.7/32  web
}
