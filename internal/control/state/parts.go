package state

import (
	"errors"
	"fmt"
	"strings"

	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/ruleset"
	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/machinery/table"
)

// LinksByOwner is the primary index of the table "links": of the desired links, addresses,
// routes, rules and neighbours, one row for each owner.
func LinksByOwner() table.Index[hostnet.Part, string] {
	return table.By("owner", func(p hostnet.Part) string { return p.Owner }, table.String[string])
}

// LinksByObject finds the part that has an object, by its key.
func LinksByObject() table.Index[hostnet.Part, string] {
	return table.ByEach("object", func(p hostnet.Part) []string {
		var keys []string
		for _, o := range p.State.Objects() {
			keys = append(keys, o.Key())
		}
		return keys
	}, table.String[string])
}

// LinksByMAC finds the part that has a link with a MAC.
func LinksByMAC() table.Index[hostnet.Part, vpc.MAC] {
	return table.ByEach("mac", func(p hostnet.Part) []vpc.MAC {
		var macs []vpc.MAC
		for _, l := range p.State.Links {
			macs = append(macs, l.MAC)
		}
		return macs
	}, func(b []byte, m vpc.MAC) []byte { return append(b, m[:]...) })
}

// FilterByOwner is the primary index of the table "nftables": of the desired tables and
// elements, one row for each owner.
func FilterByOwner() table.Index[ruleset.Part, string] {
	return table.By("owner", func(p ruleset.Part) string { return p.Owner }, table.String[string])
}

func (o *Owned) registerParts(db *table.DB) error {
	var errs [2]error
	o.Links, errs[0] = table.Register(db, table.Schema[hostnet.Part]{
		Name: "links", Primary: LinksByOwner(), Others: []table.Indexer[hostnet.Part]{LinksByObject(), LinksByMAC()},
		Columns: []string{"OWNER", "DESIRED"},
		Cells: func(p hostnet.Part) []string {
			return []string{p.Owner, strings.ReplaceAll(p.State.String(), "\n", "; ")}
		},
	})
	o.Filter, errs[1] = table.Register(db, table.Schema[ruleset.Part]{
		Name: "nftables", Primary: FilterByOwner(),
		Columns: []string{"OWNER", "TABLES", "ELEMENTS"},
		Cells: func(p ruleset.Part) []string {
			return []string{p.Owner, fmt.Sprint(len(p.Ruleset.Tables)), fmt.Sprint(len(p.Elements))}
		},
	})
	return errors.Join(errs[:]...)
}

// EndpointsIn are the endpoints of a view, ordered by ID.
func (s *Store) EndpointsIn(v table.View) []endpoint.Endpoint { return list(s.endpoints.All(v)) }
