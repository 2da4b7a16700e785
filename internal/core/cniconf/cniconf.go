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
	Plugins []Plugin // in the order of the calls
	Why     string   // why it is Invalid
	// Fields are those of the file as a whole, of a list.
	Fields map[string]json.RawMessage
	// Kept is set if Trunkline keeps an earlier content of the file, which it replaced.
	Kept bool
}

// list reports whether a file is for a chain of plugins. The runtime takes a list in any other
// file for a plugin without a type, and refuses it.
func list(name string) bool { return path.Ext(name) == ".conflist" }

// Loaded reports whether the runtime loads a file of this name. containerd takes the first
// of them by name and reports the node's network as not ready when it cannot load that one
// (github.com/containerd/go-cni, opts.go, loadFromConfDir).
func Loaded(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(name))
}

// Parse reads a file as libcni does (github.com/containernetworking/cni, libcni/conf.go).
func Parse(name string, content []byte) File {
	invalid := func(why string) File { return File{Name: name, Owner: Invalid, Why: why} }
	var conf struct {
		Name    string            `json:"name"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(content, &conf); err != nil {
		return invalid("it is not valid JSON: " + err.Error())
	}
	if !list(name) {
		conf.Plugins = []json.RawMessage{content}
	} else if conf.Name == "" {
		return invalid("it has no name")
	}
	if len(conf.Plugins) == 0 {
		return invalid("it has no plugins")
	}
	file := File{Name: name}
	for _, raw := range conf.Plugins {
		p := Plugin{Config: raw}
		of := struct {
			Type *string `json:"type"`
		}{&p.Type}
		if err := json.Unmarshal(raw, &of); err != nil {
			return invalid("a plugin is not valid: " + err.Error())
		}
		if p.Type == "" {
			return invalid("a plugin has no type")
		}
		file.Plugins = append(file.Plugins, p)
	}
	switch file.Plugins[0].Type {
	case PluginName:
		file.Owner = Ours
	case awsPluginName:
		file.Owner = AWS
	}
	if list(name) {
		if err := json.Unmarshal(content, &file.Fields); err != nil {
			return invalid("it is not valid JSON: " + err.Error())
		}
	}
	return file
}

// Unreadable is a file that could not be read.
func Unreadable(name, why string) File { return File{Name: name, Owner: Invalid, Why: why} }

// InUse is the file that the runtime uses once Judge's verdict is carried out, as far as it is
// Trunkline's: the first one with its plugin or AWS's.
func InUse(files []File) File {
	for _, f := range files { // sorted
		ours := f.Owner == Ours && (f.Kept || f.Name == FileName)
		if f.Name <= FileName && list(f.Name) && (ours || f.Owner == AWS) {
			return f
		}
	}
	return File{Name: FileName}
}

// Named returns the file of a name; one without content if there is none.
func Named(files []File, name string) File {
	if i := slices.IndexFunc(files, func(f File) bool { return f.Name == name }); i >= 0 {
		return files[i]
	}
	return File{Name: name}
}

// Verdict is what to do about the files that sort before ours.
type Verdict struct {
	// Keep are AWS's files: Trunkline's configuration replaces each, and its content is
	// kept for the way back.
	Keep []File
	// Refresh are files that Trunkline replaced before: they have its configuration, and
	// perhaps plugins that other programs have added since.
	Refresh []File
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
		switch {
		case f.Owner == Ours && f.Kept && list(f.Name):
			v.Refresh = append(v.Refresh, f)
		case f.Owner == Ours:
			v.Problems = append(v.Problems, otherFirst(f.Name,
				"it calls Trunkline's plugin, but Trunkline did not write it and does not keep it up to date: remove it"))
		case f.Owner == AWS && list(f.Name):
			v.Keep = append(v.Keep, f)
		case f.Owner == AWS:
			v.Problems = append(v.Problems, otherFirst(f.Name,
				"it is the AWS VPC CNI's for a single plugin, which cannot get Trunkline's chain: remove it"))
		case f.Owner == Invalid:
			v.Problems = append(v.Problems, otherFirst(f.Name, fmt.Sprintf(
				"%s, and the runtime refuses every pod because of it: correct or remove it", f.Why)))
		default:
			v.Problems = append(v.Problems, otherFirst(f.Name, fmt.Sprintf(
				"it has the runtime call %s for new pods instead of Trunkline: remove it, with the program that writes it", f.Plugins[0].Type)))
		}
	}
	return v
}
