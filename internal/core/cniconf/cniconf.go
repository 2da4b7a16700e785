// Package cniconf decides about a node's CNI configuration: which of the files in the
// runtime's directory count, which of them Trunkline replaces, which CNI version all
// plugins of a chain support, and which reference plugins are installed.
//
// It works on arguments alone. control/conflist calls it for the configuration,
// edge/cniplugin for the plugins.
package cniconf

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
)

// Names on the node.
const (
	// FileName is the file of our configuration.
	FileName = "10-trunkline.conflist"
	// PluginName is our plugin.
	PluginName = "trunkline-cni"
	// awsPluginName is the first plugin of AWS's configuration.
	awsPluginName = "aws-cni"
)

// Owner is the network that a configuration belongs to.
type Owner int

// Owners.
const (
	Other   Owner = iota
	Ours          // the first plugin is Trunkline's
	AWS           // the first plugin is that of the AWS VPC CNI
	Invalid       // the runtime cannot load it
)

// File is a configuration file of the runtime's directory.
type File struct {
	Name    string
	Owner   Owner
	Plugins []string // types, in the order of the calls
	Why     string   // why it is Invalid
}

// Loaded reports whether the runtime loads a file of this name. containerd takes the first
// of them by name and reports the node's network as not ready when it cannot load that one
// (github.com/containerd/go-cni, opts.go, loadFromConfDir).
func Loaded(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
}

// Parse reads a file as libcni does (github.com/containernetworking/cni, libcni/conf.go).
func Parse(name string, content []byte) File {
	type plugin struct {
		Type string `json:"type"`
	}
	var conf struct {
		plugin
		Name    string   `json:"name"`
		Plugins []plugin `json:"plugins"`
	}
	invalid := func(why string) File { return File{Name: name, Owner: Invalid, Why: why} }
	if err := json.Unmarshal(content, &conf); err != nil {
		return invalid("it is not valid JSON: " + err.Error())
	}
	if path.Ext(name) != ".conflist" {
		conf.Plugins = []plugin{conf.plugin}
	} else if conf.Name == "" {
		return invalid("it has no name")
	}
	if len(conf.Plugins) == 0 {
		return invalid("it has no plugins")
	}
	file := File{Name: name}
	for _, p := range conf.Plugins {
		if p.Type == "" {
			return invalid("a plugin has no type")
		}
		file.Plugins = append(file.Plugins, p.Type)
	}
	switch file.Plugins[0] {
	case PluginName:
		file.Owner = Ours
	case awsPluginName:
		file.Owner = AWS
	}
	return file
}

// Unreadable is a file that could not be read.
func Unreadable(name, why string) File { return File{Name: name, Owner: Invalid, Why: why} }

// Verdict is what to do about the files that sort before ours.
type Verdict struct {
	// Keep are AWS's files: Trunkline's configuration replaces each, and its content is
	// kept for the way back.
	Keep []File
	// Refresh are files that Trunkline replaced before: they have its configuration.
	Refresh []string
	// Problems are files that the runtime uses instead of ours.
	Problems []Problem
}

// Judge decides about files; those that the runtime does not load, or that sort after
// ours, do not matter.
func Judge(files []File) (v Verdict) {
	for _, f := range files {
		if !Loaded(f.Name) || f.Name >= FileName {
			continue
		}
		switch extra := f.beyondAWS(); {
		case f.Owner == Ours:
			v.Refresh = append(v.Refresh, f.Name)
		case f.Owner == AWS && len(extra) == 0:
			v.Keep = append(v.Keep, f)
		case f.Owner == AWS:
			v.Problems = append(v.Problems, otherFirst(f.Name, fmt.Sprintf(
				"it is the AWS VPC CNI's with %s chained, which Trunkline would drop: remove that from the file, and Trunkline replaces it", strings.Join(extra, ", "))))
		case f.Owner == Invalid:
			v.Problems = append(v.Problems, otherFirst(f.Name, fmt.Sprintf(
				"%s, and the runtime refuses every pod because of it: correct or remove it", f.Why)))
		default:
			v.Problems = append(v.Problems, otherFirst(f.Name, fmt.Sprintf(
				"it has the runtime call %s for new pods instead of Trunkline: remove it, with the program that writes it", f.Plugins[0])))
		}
	}
	return v
}

// beyondAWS are the plugins of a chain that AWS's daemon never writes itself: another
// program added them.
func (f File) beyondAWS() []string {
	own := []string{awsPluginName, "egress-cni", "portmap", "bandwidth", "tuning"}
	return slices.DeleteFunc(slices.Clone(f.Plugins), func(p string) bool { return slices.Contains(own, p) })
}

// Dropped are the plugins of one of AWS's chains that are not called for new pods any more
// when ours replaces it.
func (f File) Dropped() []string {
	replaced := []string{awsPluginName, "egress-cni", "portmap"}
	return slices.DeleteFunc(slices.Clone(f.Plugins), func(p string) bool { return slices.Contains(replaced, p) })
}
