package nftables

import (
	"fmt"
	"strings"
)

// Change is one of AddTable, DeleteTable, AddSet, DeleteSet, AddElements,
// DeleteElements, AddChain, FlushChain, DeleteChain, InsertRule and DeleteRule. Diff
// lists changes; nfnetlink commits a list as one transaction.
type Change interface {
	// String is the change as a command of nft(8).
	String() string
}

// AddTable adds an empty table, or wakes one that is dormant.
type AddTable struct{ Table TableName }

// DeleteTable deletes a table with all that is in it.
type DeleteTable struct{ Table TableName }

// AddSet adds an empty set or map: the elements of Set are not part of the change.
type AddSet struct {
	Table TableName
	Set   Set
}

// DeleteSet deletes a set or map that no rule names.
type DeleteSet struct {
	Table TableName
	Set   Set
}

// AddElements adds the elements of Set to it. Those that are there stay; an entry of
// a map cannot change its value in this way.
type AddElements struct {
	Table TableName
	Set   Set
}

// DeleteElements deletes the elements of Set from it. Each must be there.
type DeleteElements struct {
	Table TableName
	Set   Set
}

// AddChain adds a chain without rules, or changes the policy of one that is there.
type AddChain struct {
	Table TableName
	Chain Chain
}

// FlushChain deletes all rules of a chain.
type FlushChain struct {
	Table TableName
	Chain string
}

// DeleteChain deletes a chain without rules to which none leads.
type DeleteChain struct {
	Table TableName
	Chain string
}

// End is the position after the last rule.
const End = -1

// InsertRule inserts a rule before the rule that was at position Before, counted from
// 0 ahead of the transaction, or appends it if that is End. Rules inserted at one
// position stand in the order of their changes.
type InsertRule struct {
	Table  TableName
	Chain  string
	Before int
	Rule   Rule
}

// DeleteRule deletes the rule that was at position At, counted from 0 ahead of the
// transaction.
type DeleteRule struct {
	Table TableName
	Chain string
	At    int
	Rule  Rule
}

func (c AddTable) String() string    { return "add table " + c.Table.String() }
func (c DeleteTable) String() string { return "delete table " + c.Table.String() }

func (c AddSet) String() string {
	return fmt.Sprintf("add %s %s %s { type %s }", c.Set.kind(), c.Table, c.Set.Name, c.Set.typeText())
}

func (c DeleteSet) String() string {
	return fmt.Sprintf("delete %s %s %s", c.Set.kind(), c.Table, c.Set.Name)
}

func (c AddElements) String() string {
	return fmt.Sprintf("add element %s %s { %s }", c.Table, c.Set.Name, strings.Join(c.Set.elementTexts(), ", "))
}

func (c DeleteElements) String() string {
	return fmt.Sprintf("delete element %s %s { %s }", c.Table, c.Set.Name, strings.Join(c.Set.elementTexts(), ", "))
}

func (c AddChain) String() string {
	if c.Chain.Hook == nil {
		return fmt.Sprintf("add chain %s %s", c.Table, c.Chain.Name)
	}
	return fmt.Sprintf("add chain %s %s { %s }", c.Table, c.Chain.Name, c.Chain.Hook)
}

func (c FlushChain) String() string  { return fmt.Sprintf("flush chain %s %s", c.Table, c.Chain) }
func (c DeleteChain) String() string { return fmt.Sprintf("delete chain %s %s", c.Table, c.Chain) }

func (c InsertRule) String() string {
	if c.Before == End {
		return fmt.Sprintf("add rule %s %s %s", c.Table, c.Chain, c.Rule)
	}
	return fmt.Sprintf("insert rule %s %s index %d %s", c.Table, c.Chain, c.Before, c.Rule)
}

func (c DeleteRule) String() string {
	return fmt.Sprintf("delete rule %s %s index %d %s", c.Table, c.Chain, c.At, c.Rule)
}
