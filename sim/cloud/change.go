package cloud

import (
	"maps"
	"time"
)

// change is one atomic change: a State of its own. Its maps may be written; its
// entities must be replaced, never changed in place.
type change struct {
	*State
	cloud *Cloud
	now   time.Time
}

// fork copies the maps and shares the entities.
func (s *State) fork() *State {
	n := *s
	n.Subnets = maps.Clone(s.Subnets)
	n.RouteTables = maps.Clone(s.RouteTables)
	n.Groups = maps.Clone(s.Groups)
	n.Instances = maps.Clone(s.Instances)
	n.Hosts = maps.Clone(s.Hosts)
	n.Interfaces = maps.Clone(s.Interfaces)
	n.Addresses = maps.Clone(s.Addresses)
	n.Permissions = maps.Clone(s.Permissions)
	return &n
}
