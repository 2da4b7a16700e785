// Package config is the product's configuration as one value: its settings, their
// names, defaults and bounds, and the validation of a given set of values.
//
// It is pure: flags, environment and file are passed in as lookups, because only the
// programs in cmd may read them. Precedence is flag, environment, file, default.
// AWS's environment names are accepted as aliases; the table is in settings.go.
package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/trunkline/trunkline/internal/core/endpoint"
)

// Config holds the value of every setting. Load fills it; the zero value is not
// usable.
type Config struct {
	// Identity.
	ClusterName  string
	NodeName     string
	PodName      string // of the agent's or controller's own pod, for events and leases
	PodNamespace string
	LogLevel     string // debug, info, warn, error
	Backend      string // auto, eni, podcidr; see BackendFor

	// Pool; see ipam.Config.
	WarmIPs      int
	Headroom     int
	WarmENIs     int
	MinIPs       int
	MaxENIs      int
	ENITags      map[string]string // of created interfaces, besides our own
	CoolDown     time.Duration
	IdleAfter    time.Duration
	ReleaseEvery time.Duration

	// Security groups for pods.
	SecurityGroups     string // off, managed, own, ebpf, auto
	LateMatch          string // enforce, report, evict
	EnforcingMode      endpoint.Mode
	BranchCoolDown     time.Duration
	BranchLimits       map[string]int // by instance type or family
	QuarantineGroup    string         // empty: none
	WarmBranches       int
	ExactBranches      map[string]int // by groups, which "+" separates
	GroupsPerInterface int

	// Datapath.
	MTU              int // of ENIs, bytes
	PodMTU           int // of pods' links, bytes; 0: as MTU
	VethPrefix       string
	ExternalSNAT     bool
	ExcludeSNATCIDRs []netip.Prefix
	RandomizeSNAT    string // prng, hashrandom, none
	ExternalCIDRs    []netip.Prefix
	NodePort         bool
	PodMetadata      bool              // pods may reach the instance metadata service
	NetworkPolicy    bool              // network policies are enforced
	PolicyMapSizes   map[string]uint32 // entries, by the names of bpf/maps.h

	// Node.
	StateDir   string
	Socket     string
	CNIBinDir  string
	CNIConfDir string
	Checkpoint string // of AWS's daemon; see core/handover
	BPFRoot    string // of the bpffs
	CNIVersion string // of the conflist; auto: the highest that the node's runtime supports
	AddWait    time.Duration
	DelWait    time.Duration
	StaleAfter time.Duration // see core/stale

	// Endpoints.
	IntrospectionAddress string
	MetricsAddress       string

	origins   map[string]string // setting → source of its value
	notServed []NotServed
}

// Values of SecurityGroups.
const (
	SecurityGroupsOff     = "off"
	SecurityGroupsManaged = "managed" // AWS's controller owns trunk and branches
	SecurityGroupsOwn     = "own"     // Trunkline's controller does
	SecurityGroupsEBPF    = "ebpf"    // nodes enforce groups, without branches
	SecurityGroupsAuto    = "auto"    // one of managed, own and ebpf for each node; see core/groupmode
)

// Branches reports whether pods of the node can have branch interfaces.
func (c Config) Branches() bool {
	return c.SecurityGroups == SecurityGroupsManaged || c.SecurityGroups == SecurityGroupsOwn || c.ChoosesGroups()
}

// ChoosesGroups reports whether each node has a mode of its own.
func (c Config) ChoosesGroups() bool { return c.SecurityGroups == SecurityGroupsAuto }

// Values of LateMatch.
const (
	LateMatchReport  = "report"
	LateMatchEnforce = "enforce"
	LateMatchEvict   = "evict"
)

// NodeGroups reports whether nodes enforce security groups of pods: of all, or where pods have
// branches of those that were wired without one. Where each node has a mode of its own they enforce
// those of all pods without a branch.
func (c Config) NodeGroups() bool {
	return c.SecurityGroups == SecurityGroupsEBPF || c.ChoosesGroups() || c.Branches() && c.LateMatch == LateMatchEnforce
}

// EvictsLateMatches reports whether the controller evicts pods that were wired without a branch before a
// policy selected them.
func (c Config) EvictsLateMatches() bool { return c.Branches() && c.LateMatch == LateMatchEvict }

// Sources are the flags, environment and file that values are read from. Nil fields
// are empty sources.
type Sources struct {
	// Flags that were given, by setting name.
	Flags map[string]string
	// Env looks an environment variable up.
	Env func(name string) (string, bool)
	// File is the keys and values of a configuration file; FileName is its name for
	// error texts.
	File     map[string]string
	FileName string
}

// Load reads the configuration from src. The error names every invalid setting with
// its value, the source of the value and the reason.
func Load(src Sources) (Config, error) {
	c := Config{origins: map[string]string{}}
	var problems []error
	for _, s := range settings() {
		value, origin := s.find(src)
		c.origins[s.Name] = origin
		if err := s.set(&c, value); err != nil {
			problems = append(problems, fmt.Errorf("%s: %q from %s: %w", s.Name, value, origin, err))
		}
	}
	problems = append(problems, unknownSettings(src)...)
	problems = append(problems, c.unsupportedByAWSName(src)...)
	c.notServed = notServedByAWSName(src)
	if len(problems) == 0 {
		c.applyAWSDefaults()
		problems = c.checkCombinations()
	}
	if len(problems) > 0 {
		return Config{}, errors.Join(problems...)
	}
	return c, nil
}

// Origin returns the source of a setting's value, such as "environment WARM_IP_TARGET".
func (c Config) Origin(name string) string { return c.origins[name] }

// applyAWSDefaults gives AWS's warm targets the meaning they have on AWS: setting one
// of them disables our own defaults for the others.
func (c *Config) applyAWSDefaults() {
	if c.origins["warm-enis"] != fromDefault && c.origins["warm-ips"] == fromDefault {
		c.WarmIPs, c.Headroom = 0, 0
		c.origins["warm-ips"], c.origins["headroom"] = "warm-enis is set", "warm-enis is set"
	}
	if c.origins["warm-ips"] == "environment WARM_IP_TARGET" && c.origins["headroom"] == fromDefault {
		c.Headroom = 0
		c.origins["headroom"] = "WARM_IP_TARGET is set"
	}
}

// checkCombinations checks settings that are valid only in combination with others.
func (c Config) checkCombinations() (problems []error) {
	if c.PodMTU > c.MTU {
		problems = append(problems, fmt.Errorf("pod-mtu: %d from %s: must not exceed mtu, which is %d", c.PodMTU, c.origins["pod-mtu"], c.MTU))
	}
	if c.WarmBranches > 0 && c.QuarantineGroup == "" {
		problems = append(problems, fmt.Errorf("warm-branches: %d from %s: needs quarantine-group", c.WarmBranches, c.origins["warm-branches"]))
	}
	if len(c.ExactBranches) > 0 && c.QuarantineGroup == "" {
		problems = append(problems, fmt.Errorf("exact-branches: from %s: needs quarantine-group", c.origins["exact-branches"]))
	}
	if c.NodeGroups() && !c.NetworkPolicy {
		problems = append(problems, c.withoutPrograms())
	}
	if c.NodeGroups() && c.Backend == BackendPodCIDR {
		problems = append(problems, fmt.Errorf("security-groups-for-pods: %s from %s: there are no security groups without EC2 (backend: %s): set it to off", c.SecurityGroups, c.origins["security-groups-for-pods"], c.Backend))
	}
	if c.ChoosesGroups() && c.EvictsLateMatches() {
		problems = append(problems, fmt.Errorf("pod-security-group-late-match: %s from %s: with security-groups-for-pods: %s nodes enforce the groups of pods without a branch, and none is evicted: use %s", c.LateMatch, c.origins["pod-security-group-late-match"], c.SecurityGroups, LateMatchEnforce))
	}
	if c.IntrospectionAddress == c.MetricsAddress {
		problems = append(problems, fmt.Errorf("metrics-address: %q from %s: must differ from introspection-address", c.MetricsAddress, c.origins["metrics-address"]))
	}
	return problems
}

// withoutPrograms is the error of nodes that have to enforce groups while network policies are off. Nothing
// else is done in the place of what is asked for: a pod that matches late would be unprotected without an error.
func (c Config) withoutPrograms() error {
	remedy := "set network-policy to on"
	if c.Branches() && !c.ChoosesGroups() {
		remedy = "set pod-security-group-late-match to report or evict, or network-policy to on"
	}
	return fmt.Errorf("network-policy: off from %s: the programs of network policies enforce security groups on nodes (security-groups-for-pods: %s, pod-security-group-late-match: %s from %s): %s",
		c.origins["network-policy"], c.SecurityGroups, c.LateMatch, c.origins["pod-security-group-late-match"], remedy)
}

// unknownSettings returns an error for every flag and key of the file that is not a
// setting.
func unknownSettings(src Sources) (problems []error) {
	known := map[string]bool{}
	for _, s := range settings() {
		known[s.Name] = true
	}
	for _, key := range slices.Sorted(maps.Keys(src.File)) {
		if !known[key] {
			problems = append(problems, fmt.Errorf("%s: %q from file %s: unknown setting%s", key, src.File[key], src.FileName, nearest(key, known)))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(src.Flags)) {
		if !known[key] {
			problems = append(problems, fmt.Errorf("%s: %q from flag --%s: unknown setting%s", key, src.Flags[key], key, nearest(key, known)))
		}
	}
	return problems
}

// nearest suggests the setting that shares the most words with key.
func nearest(key string, known map[string]bool) (suggestion string) {
	words, most := strings.FieldsFunc(strings.ToLower(key), func(r rune) bool { return r == '-' || r == '_' }), 0
	for _, name := range slices.Sorted(maps.Keys(known)) {
		shared := 0
		for _, word := range words {
			if len(word) > 2 && strings.Contains(name, word) {
				shared++
			}
		}
		if shared > most {
			most, suggestion = shared, fmt.Sprintf("; did you mean %s?", name)
		}
	}
	return suggestion
}
