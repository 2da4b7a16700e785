package policy

import (
	"errors"
	"fmt"

	"github.com/trunkline/trunkline/internal/core/policy"
	"github.com/trunkline/trunkline/internal/edge/bpf"
)

// errBeside is returned when policies fit the maps, but cannot be written beside what is in force there.
var errBeside = errors.New("policies need other kernel maps than those in force")

// fits compares a change that compiles everything with the maps before it is written: stay is how
// many entries are in force there, until the change has replaced them. It returns errBeside, or an
// error that is the same for the same policies, or nil.
func fits(d *bpf.Datapath, change policy.Change, stay bpf.Entries) error {
	beside := false
	wanted := entries(change)
	for _, name := range []string{bpf.MapSets, bpf.MapRows, bpf.MapClasses, bpf.MapPrefixes, bpf.MapPorts, bpf.MapPortRanges} {
		size := d.Size(name)
		if wanted[name] > size {
			return fmt.Errorf("the policies that select pods of this node need %d entries of the kernel map %s, and its size is %d entries: set network-policy-map-sizes to %s=%d or more, or make these policies smaller",
				wanted[name], name, size, name, wanted[name])
		}
		beside = beside || wanted[name]+stay[name] > size
	}
	if beside {
		return errBeside
	}
	return nil
}

// entries are how many entries a change adds before it deletes any.
func entries(change policy.Change) bpf.Entries {
	n := bpf.Entries{}
	for _, phase := range [][]policy.Operation{change.Before, change.Switch} {
		for _, o := range phase {
			switch o.(type) {
			case policy.Put[policy.SetID, policy.Set]:
				n[bpf.MapSets]++
			case policy.Put[policy.RowKey, uint64]:
				n[bpf.MapRows]++
			case policy.Put[policy.ClassKey, policy.Class]:
				n[bpf.MapClasses]++
			case policy.Put[policy.PrefixKey, policy.Class]:
				n[bpf.MapPrefixes]++
			case policy.Put[policy.PortKey, policy.PortClass]:
				n[bpf.MapPorts]++
			case policy.Put[policy.PortRange, policy.PortClass]:
				n[bpf.MapPortRanges]++
			}
		}
	}
	return n
}

// named adds to the error of a full map which setting makes it larger.
func named(err error) error {
	var full *bpf.FullError
	if errors.As(err, &full) {
		return fmt.Errorf("%w: set network-policy-map-sizes to %s=%d or more", err, full.Map, 2*full.Size)
	}
	return err
}
