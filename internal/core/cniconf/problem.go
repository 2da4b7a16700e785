package cniconf

import (
	"fmt"
	"slices"
	"strings"
)

// Reasons of problems: of the condition CNIConfigured and of events, one CamelCase word
// each.
const (
	ReasonOtherFirst   = "OtherConfigurationFirst"
	ReasonNotCalled    = "PluginNotCalled"
	ReasonNotWritten   = "ConfigurationNotWritten"
	ReasonMissing      = "PluginMissing"
	ReasonIncompatible = "PluginIncompatible"
	ReasonSilent       = "PluginDoesNotAnswer"
	ReasonBroken       = "PluginBroken"
)

// Problem is why new pods may not be wired as they should.
type Problem struct {
	Reason  string
	Message string // what is wrong with which object, and what to do
}

func otherFirst(name, why string) Problem {
	return Problem{ReasonOtherFirst, fmt.Sprintf("%s sorts before %s, so the container runtime uses it: %s", name, FileName, why)}
}

// NotWritten is the problem of a directory in which the configuration cannot be written.
// The error is in the agent's log: it has the name of a temporary file, another one for
// each try, and each would be a new problem.
func NotWritten(confDir string) Problem {
	return Problem{ReasonNotWritten, fmt.Sprintf(
		"%s, or a file that sorts before it, cannot be read or written in %s: see the log of the node's agent, and check the disk", FileName, confDir)}
}

// NotCalled is the problem of pods that wait although the runtime never called the plugin.
func NotCalled(pods []string, confDir string) Problem {
	return Problem{ReasonNotCalled, fmt.Sprintf(
		"the container runtime has not called the plugin since this agent began to serve, and pods wait for an address: %s; see kubectl describe pod whether they wait for something else, such as a volume, and check that the runtime reads its configuration in %s and is alive",
		some(pods), confDir)}
}

// NoLongerCalled is that of pods that wait although the runtime called the plugin before.
func NoLongerCalled(pods []string, confDir string) Problem {
	return Problem{ReasonNotCalled, fmt.Sprintf(
		"the container runtime has not called the plugin since pods were bound to the node that wait for an address: %s; check that the kubelet and the runtime are alive and that the runtime reads its configuration in %s",
		some(pods), confDir)}
}

// some names the first pods.
func some(pods []string) string {
	const shown = 3
	slices.Sort(pods)
	names := strings.Join(pods[:min(shown, len(pods))], ", ")
	if more := len(pods) - shown; more > 0 {
		names += fmt.Sprintf(" and %d more", more)
	}
	return names
}

// New are the problems of now that were not there before.
func New(now, before []Problem) []Problem {
	return slices.DeleteFunc(slices.Clone(now), func(p Problem) bool { return slices.Contains(before, p) })
}
