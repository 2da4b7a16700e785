package cniconf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Plugins of chains beside ours.
const (
	portmapName = "portmap"
	// egressName is AWS's plugin for the traffic of pods in the family that they have no address
	// of. Its configuration has "enabled": "false" unless the cluster uses it.
	egressName = "egress-cni"
)

// Plugin is one plugin of a file's chain.
type Plugin struct {
	Type   string
	Config json.RawMessage
}

// ours reports whether Trunkline alone decides about a plugin of a chain: it is ours, or what
// ours takes the place of.
func (p Plugin) ours() bool {
	switch p.Type {
	case PluginName, portmapName, awsPluginName:
		return true
	case egressName:
		var conf struct {
			Enabled any `json:"enabled"`
		}
		return json.Unmarshal(p.Config, &conf) != nil || conf.Enabled != true && conf.Enabled != "true"
	}
	return false
}

// Chained are the types of the plugins that other programs have added to the chain of one of
// our files, or of AWS's: meshes, bandwidth. They are called for new pods after ours.
func (f File) Chained() (types []string) {
	for _, p := range f.chain() {
		if !p.ours() && !slices.Contains(types, p.Type) {
			types = append(types, p.Type)
		}
	}
	return types
}

// chain is that of a file of which others' plugins are kept.
func (f File) chain() []Plugin {
	if f.Owner != Ours && f.Owner != AWS {
		return nil
	}
	return f.Plugins
}

// Wanted is what Trunkline decides of a configuration.
type Wanted struct {
	Version string
	Network string         // name
	Own     map[string]any // our plugin
	Portmap map[string]any // nil: it is not chained
}

// Render returns the content of a file with what Trunkline decides. Of what the file has, the
// plugins that other programs have added stay in their places, except those in without; and so
// do fields of our file that Trunkline does not know. A program that added its plugin and finds
// it gone would add it again, without end.
func (w Wanted) Render(f File, without []string) ([]byte, error) {
	conf := map[string]any{}
	if f.Owner == Ours {
		for name, value := range f.Fields {
			conf[name] = value
		}
	}
	chain, portmap := []any{w.Own}, w.Portmap
	had := func(p Plugin) bool { return p.Type == portmapName }
	if portmap != nil && !slices.ContainsFunc(f.chain(), had) {
		chain, portmap = append(chain, portmap), nil
	}
	for _, p := range f.chain() {
		switch {
		case p.Type == portmapName && portmap != nil:
			chain, portmap = append(chain, portmap), nil
		case !p.ours() && !slices.Contains(without, p.Type):
			chain = append(chain, p.Config)
		}
	}
	maps.Copy(conf, map[string]any{"cniVersion": w.Version, "name": w.Network, "plugins": chain})
	out, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the configuration: %w", err)
	}
	return append(out, '\n'), nil
}

// Same reports whether two contents of a file mean the same: another program may write the file
// with other white space.
func Same(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}
